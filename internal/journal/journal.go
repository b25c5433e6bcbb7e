package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// Operations of an entry.
const (
	// Begin and End enclose one execution of a tool.
	Begin = "begin"
	End   = "end"
	// Ack says that a boundary is durable: the server has acknowledged it.
	Ack = "ack"
	// Resumed says that a takeover was answered; Start is the time of its request.
	Resumed = "resumed"
	// Settled is the settlement of a call in doubt, Held that it waits for a person.
	Settled = "settled"
	Held    = "held"
	// Done says that the run has ended, Failed that its executor gave up.
	Done   = "done"
	Failed = "failed"
	// Effect is written by a tool itself, at the moment of its side effect, between its Begin and its End. It counts
	// interrupted executions.
	Effect = "effect"
	// Killed is written by the process that kills another, right before; PIDOf is the killed one.
	Killed = "killed"
)

// Rerun is the note of a [Settled] entry that lets the tool run again.
const Rerun = "rerun"

// Kinds of acknowledged boundaries that the checker examines further.
const (
	KindCalled   = "called"
	KindReturned = "returned"
)

// Call names one tool call of a run.
type Call struct {
	Turn       int    `json:"turn,omitzero"`
	ID         string `json:"id,omitzero"`
	Occurrence int    `json:"occurrence,omitzero"`
}

// String is turn, id and, after the first, the occurrence.
func (c Call) String() string {
	s := fmt.Sprintf("turn %d %s", c.Turn, c.ID)
	if c.Occurrence > 1 {
		s += fmt.Sprintf(" #%d", c.Occurrence)
	}
	return s
}

// Entry is one line.
type Entry struct {
	Op string `json:"op"`
	// Start is when the operation began, At when it had ended and was recorded; both in Unix nanoseconds.
	Start int64  `json:"start,omitzero"`
	At    int64  `json:"at"`
	PID   int    `json:"pid"`
	Run   string `json:"run,omitzero"`
	// Epoch and Sequence of an acknowledged boundary, or the place from which a takeover continues.
	Epoch    uint64 `json:"epoch,omitzero"`
	Sequence uint64 `json:"sequence,omitzero"`
	// Kind of an acknowledged boundary.
	Kind string `json:"kind,omitzero"`
	// Call of a begin, end, settled, held, or of a boundary about a call.
	Call Call `json:"call,omitzero"`
	// Name and Replay policy of the tool.
	Name   string `json:"name,omitzero"`
	Replay string `json:"replay,omitzero"`
	// Note is for people: how a call was settled, why an executor gave up.
	Note string `json:"note,omitzero"`
	// PIDOf is the process of a killed entry.
	PIDOf int `json:"pid_of,omitzero"`
}

// Writer appends entries.
type Writer struct {
	file     *os.File
	pid      int
	now      func() time.Time
	unsynced bool
}

// Open opens the file for appending, and creates it if missing.
func Open(path string, now func() time.Time) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &Writer{file: file, pid: os.Getpid(), now: now}, nil
}

// OpenUnsynced is [Open] for a writer that leaves syncing to the system: the test kills processes and not the
// machine, and hundreds of writers must not wait for one disk.
func OpenUnsynced(path string, now func() time.Time) (*Writer, error) {
	w, err := Open(path, now)
	if err != nil {
		return nil, err
	}
	w.unsynced = true
	return w, nil
}

// Write appends one entry, with time and process, and returns once it is on disk; see [OpenUnsynced].
func (w *Writer) Write(e Entry) error {
	e.At, e.PID = w.now().UnixNano(), w.pid
	line, err := json.Marshal(&e)
	if err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	// The line break before it ends a line that a killed writer left.
	if _, err := w.file.Write(slices.Concat([]byte("\n"), line, []byte("\n"))); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if w.unsynced {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Reader follows a file that others append to.
type Reader struct {
	path   string
	offset int64
	line   int
	rest   []byte
	torn   int
}

// NewReader returns a reader that begins at the file's start.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Torn counts the lines so far that a killed writer left unfinished. The action announced by such a line did not
// happen.
func (r *Reader) Torn() int { return r.torn }

// Next returns the entries completed since the last call; none if there are none.
func (r *Reader) Next() ([]Entry, error) {
	file, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	b, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	r.offset += int64(len(b))
	r.rest = append(r.rest, b...)
	var entries []Entry
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return entries, nil
		}
		r.rest = rest
		r.line++
		if len(line) == 0 {
			continue
		}
		var e Entry
		err := json.Unmarshal(line, &e)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			r.torn++
			continue
		}
		if err != nil {
			return entries, fmt.Errorf("read journal: line %d: %w", r.line, err)
		}
		entries = append(entries, e)
	}
}

// Read returns all entries of a file.
func Read(path string) ([]Entry, error) { return NewReader(path).Next() }
