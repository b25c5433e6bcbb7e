package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Format is the format version of archives.
const Format = 3

const manifestName = "manifest.json"

// Limits of a read. The zero value means the defaults.
type Limits struct {
	// Bytes of all entries as unpacked; default 64 GiB.
	Bytes int64
	// Entries; default 1,048,576.
	Entries int
}

const (
	defaultBytes   = 64 << 30
	defaultEntries = 1 << 20
	// maxEvents bounds one entry of frames, maxBlob a blob, maxManifest the manifest, which has a line for each
	// entry. manifestOfEntry is the share of each entry, including a run's line, as each run has an entry.
	maxEvents   = 8 << 20
	maxBlob     = 64 << 20
	maxManifest = 256 << 20

	manifestOfNone, manifestOfEntry = 64 << 10, 4 << 10
	// eventsTarget is the size at which frames are written to an entry: with one more event they are below maxEvents.
	eventsTarget = 4 << 20
	// window is the compression window, and how much a reader must keep.
	window = 4 << 20
	// maxRuns bounds the runs of one archive.
	maxRuns = 1 << 16
)

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = defaultBytes
	}
	if l.Entries == 0 {
		l.Entries = defaultEntries
	}
	return l
}

// Manifest describes the content of an archive.
type Manifest struct {
	// Format is [Format].
	Format int `json:"format"`
	// Fleet that the runs are of.
	Fleet string `json:"fleet"`
	// Made is when, by the clock of the exporting machine, RFC 3339.
	Made string `json:"made"`
	// Runs in order; a base comes before its forks.
	Runs []Run `json:"runs"`
	// Entries before the manifest, in order.
	Entries []Entry `json:"entries"`
	// Sum is the SHA-256 (hex) of this value with an empty Sum.
	Sum   string         `json:"sum"`
	Extra jsontext.Value `json:",embed"`
}

// Run is one run of an archive.
type Run struct {
	Run    string        `json:"run"`
	Agent  string        `json:"agent,omitzero"`
	Status schema.Status `json:"status"`
	// Records are the run's messages, Events the accepted ones.
	Records int64 `json:"records"`
	Events  int64 `json:"events"`
	// Digest of the run after its last event.
	Digest string `json:"digest"`
	// Blobs of its events.
	Blobs int `json:"blobs,omitzero"`
	// Base of a fork.
	Base *schema.BaseRef `json:"base,omitzero"`
}

// Entry is one entry of an archive.
type Entry struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// encode sets Sum and returns the entry.
func (m *Manifest) encode() ([]byte, error) {
	m.Sum = ""
	b, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	m.Sum = hex.EncodeToString(sum[:])
	return json.Marshal(m, json.Deterministic(true), jsontext.WithIndent(" "))
}

// decodeManifest reads a manifest and checks its own sum and fields.
func decodeManifest(b []byte) (*Manifest, error) {
	var probe struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &probe); err != nil {
		return nil, damaged(manifestName, "it cannot be read: %s", err)
	}
	if probe.Format != Format {
		return nil, &EntryError{
			Entry: manifestName, Problem: fmt.Sprintf("it has format %d, this program knows %d", probe.Format, Format), Hint: hintVersion, Err: ErrFormat,
		}
	}
	m := new(Manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, damaged(manifestName, "it cannot be read: %s", err)
	}
	said := m.Sum
	if _, err := m.encode(); err != nil || m.Sum != said {
		return nil, damaged(manifestName, "its sum is %.16s…, it says %.16q", m.Sum, said)
	}
	if !schema.ValidName(m.Fleet) {
		return nil, hostile(manifestName, "fleet %.80q is no name", m.Fleet)
	}
	if len(m.Runs) == 0 || len(m.Runs) > maxRuns {
		return nil, hostile(manifestName, "it has %d runs", len(m.Runs))
	}
	seen := map[string]bool{}
	for _, r := range m.Runs {
		if !schema.ValidName(r.Run) || seen[r.Run] {
			return nil, hostile(manifestName, "run %.80q is no run id, or there twice", r.Run)
		}
		seen[r.Run] = true
	}
	return m, nil
}

// name is a parsed name of an entry.
type name struct {
	run string
	// number of an entry of events, from 1; 0 for a blob.
	number int
	// blob is the SHA-256 of a blob's content, in hex.
	blob string
}

func eventsName(run string, number int) string {
	return fmt.Sprintf("runs/%s/events/%06d", run, number)
}

func blobName(run, sum string) string { return "runs/" + run + "/blobs/" + sum }

// parseName reads the name of an entry, and accepts no other spelling of it.
func parseName(s string) (n name, ok bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 || parts[0] != "runs" || !schema.ValidName(parts[1]) {
		return n, false
	}
	n.run = parts[1]
	switch parts[2] {
	case "events":
		number, err := strconv.Atoi(parts[3])
		if err != nil || number < 1 || eventsName(n.run, number) != s {
			return n, false
		}
		n.number = number
		return n, true
	case "blobs":
		if h, err := schema.ParseHash(parts[3]); err != nil || h.IsZero() {
			return n, false
		}
		n.blob = parts[3]
		return n, true
	}
	return n, false
}
