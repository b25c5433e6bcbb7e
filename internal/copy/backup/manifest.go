package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Format is the format version of backups.
const Format = 1

const (
	manifestName = "manifest.json"
	streamsDir   = "streams"
	aboutName    = "backup.json"
	contentName  = "stream.arc.s2"
	// maxManifest bounds a manifest: it has a few lines for each stream.
	maxManifest = 16 << 20
)

// Manifest describes the content of a backup.
type Manifest struct {
	// Format is [Format].
	Format int `json:"format"`
	// ID of the backup.
	ID string `json:"id"`
	// Fleet that was backed up, and its settings.
	Fleet    string               `json:"fleet"`
	Settings schema.FleetSettings `json:"settings"`
	// Began and Ended by the clock of the machine that took the backup, RFC 3339. They are for people; Shards define
	// the content.
	Began string `json:"began"`
	Ended string `json:"ended"`
	// Shards in order.
	Shards []ShardCut `json:"shards"`
	// Streams in restore order.
	Streams []Stream `json:"streams"`
	// Sum is the SHA-256 (hex) of this value with an empty Sum.
	Sum   string         `json:"sum"`
	Extra jsontext.Value `json:",embed"`
}

// ShardCut is the part of a shard's log in a backup.
type ShardCut struct {
	Shard int `json:"shard"`
	// Barrier is a position of the log that was reached after the backup began: everything acknowledged before is up
	// to it.
	Barrier schema.StreamSequence `json:"barrier"`
	// Cut is the last position of the log in the backup.
	Cut schema.StreamSequence `json:"cut"`
	// Runs with an event in the log.
	Runs int `json:"runs"`
}

// Stream is one stream of a backup.
type Stream struct {
	// Name of the stream and of its directory.
	Name string `json:"name"`
	// Messages in the file, and the sequences that the stream has.
	Messages uint64 `json:"messages"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	// Files by name, sorted.
	Files []File `json:"files"`
}

// File is one file of a stream.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Bytes of all files.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, s := range m.Streams {
		for _, f := range s.Files {
			n += f.Bytes
		}
	}
	return n
}

// Messages of all streams.
func (m *Manifest) Messages() uint64 {
	var n uint64
	for _, s := range m.Streams {
		n += s.Messages
	}
	return n
}

// encode sets Sum and returns the file.
func (m *Manifest) encode() ([]byte, error) {
	m.Sum = ""
	b, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	m.Sum = hex.EncodeToString(sum[:])
	return json.Marshal(m, json.Deterministic(true), jsontext.WithIndent("  "))
}

// decodeManifest reads a manifest. Its result is safe to use: names are those of the fleet's streams.
func decodeManifest(b []byte) (*Manifest, error) {
	var probe struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &probe); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", manifestName, ErrDamaged, err)
	}
	if probe.Format != Format {
		return nil, fmt.Errorf("%s: %w %d, this program knows %d", manifestName, ErrFormat, probe.Format, Format)
	}
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", manifestName, ErrDamaged, err)
	}
	bad := func(format string, args ...any) (*Manifest, error) {
		return nil, fmt.Errorf("%s: %w: %s", manifestName, ErrDamaged, fmt.Sprintf(format, args...))
	}
	said := m.Sum
	if _, err := m.encode(); err != nil || m.Sum != said {
		return bad("its sum is %.16s…, it says %.16s…", m.Sum, said)
	}
	if err := schema.CheckName("fleet", m.Fleet); err != nil {
		return bad("%s", err)
	}
	if m.Settings.Fleet != m.Fleet || !schema.ValidName(m.ID) {
		return bad("it is of fleet %.64q, its settings of %.64q", m.Fleet, m.Settings.Fleet)
	}
	if m.Settings.Format != schema.SettingsFormat {
		return nil, fmt.Errorf("%s: settings: %w %d, this program knows %d", manifestName, ErrFormat, m.Settings.Format, schema.SettingsFormat)
	}
	if err := kvstore.CheckSettings(&m.Settings); err != nil {
		return bad("%s", err)
	}
	want := streamNames(&m.Settings)
	if len(want) != len(m.Streams) || len(m.Shards) != m.Settings.Shards {
		return bad("it has %d streams of %d, %d shards of %d", len(m.Streams), len(want), len(m.Shards), m.Settings.Shards)
	}
	for i, s := range m.Streams {
		if s.Name != want[i].name {
			return bad("stream %d is %.80q, it must be %s", i+1, s.Name, want[i].name)
		}
		if len(s.Files) != 2 || s.Files[0].Name != aboutName || s.Files[1].Name != contentName {
			return bad("stream %s has not the files %s and %s", s.Name, aboutName, contentName)
		}
	}
	return m, nil
}

// Open reads the manifest of a backup. It returns [ErrNotABackup], [ErrFormat] or [ErrDamaged].
func Open(dir string) (*Manifest, error) {
	b, err := readRegular(filepath.Join(dir, manifestName), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it has no %s", dir, ErrNotABackup, manifestName)
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

// Age of the backup at a time.
func (m *Manifest) Age(now time.Time) (time.Duration, error) {
	began, err := time.Parse(time.RFC3339Nano, m.Began)
	return now.Sub(began), err
}

// kind of a stream.
type kind int

const (
	logStream kind = iota
	segmentStream
	blobStream
	letterStream
)

// named is one stream of a fleet.
type named struct {
	name  string
	kind  kind
	shard int
}

// streamNames are the streams of a fleet in a backup, in the order in which they are restored.
func streamNames(s *schema.FleetSettings) []named {
	var list []named
	for i := range s.Shards {
		list = append(list, named{schema.NamesOf(s.Fleet, i).EventStream(), logStream, i})
	}
	for i := range s.Shards {
		list = append(list, named{"KV_" + schema.NamesOf(s.Fleet, i).SegmentBucket(), segmentStream, i})
	}
	return append(list,
		named{"OBJ_" + schema.BlobBucket(s.Fleet), blobStream, -1},
		named{schema.DeadLetterStream(s.Fleet), letterStream, -1})
}
