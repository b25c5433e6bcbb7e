package spans

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/gofrs/flock"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/schema"
)

// positionsFormat is the format version of the file.
const positionsFormat = 1

// Position is the exported part of a shard's log.
type Position struct {
	// Cursor is the stream sequence up to which the log was read and all ended spans were accepted.
	Cursor schema.StreamSequence `json:"cursor"`
	// Floor is the cursor when the end of the log was last reached: no event up to it can have left the log unread.
	Floor schema.StreamSequence `json:"floor"`
}

// Positions keeps the positions of a fleet's shards in a synced file that is replaced as a whole. Only one process at a
// time may open it.
type Positions struct {
	path string
	lock *flock.Flock

	mu   sync.Mutex
	file positionsFile
}

type positionsFile struct {
	Format int                 `json:"format"`
	Fleet  string              `json:"fleet"`
	Shards map[string]Position `json:"shards"`
}

// OpenPositions opens the file, which the first Put creates. Errors about the file wrap [ErrPosition].
func OpenPositions(path, fleet string) (*Positions, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("positions: %w", err)
	}
	p := &Positions{path: path, lock: flock.New(path+".lock", flock.SetPermissions(0o600))}
	held, err := p.lock.TryLock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("positions: %w", err)
	case !held:
		return nil, fmt.Errorf("%w: another process has %s open", ErrPosition, path)
	}
	if err := p.read(fleet); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Positions) read(fleet string) error {
	p.file = positionsFile{Format: positionsFormat, Fleet: fleet, Shards: make(map[string]Position)}
	text, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("positions: %w", err)
	}
	var file positionsFile
	switch err := json.Unmarshal(text, &file); {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrPosition, p.path, err)
	case file.Format != positionsFormat:
		return fmt.Errorf("%w: %s has format %d, this binary knows %d", ErrPosition, p.path, file.Format, positionsFormat)
	case file.Fleet != fleet:
		return fmt.Errorf("%w: %s belongs to fleet %.64s", ErrPosition, p.path, file.Fleet)
	}
	if file.Shards == nil {
		file.Shards = make(map[string]Position)
	}
	p.file = file
	return nil
}

// Get returns a shard's position; false if it has none.
func (p *Positions) Get(shard int) (Position, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.file.Shards[strconv.Itoa(shard)]
	return at, ok
}

// Put stores a shard's position. After it returns, the position survives a crash.
func (p *Positions) Put(shard int, at Position) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.file.Shards[strconv.Itoa(shard)] = at
	text, err := json.Marshal(p.file, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("positions: %w", err)
	}
	err = durable.Replace(p.path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("positions: %w", err)
	}
	return nil
}

// Close releases the file for another process.
func (p *Positions) Close() error { return p.lock.Close() }
