package archive

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// refsOf returns the blobs of a run, by their sums, that an event refers to.
func refsOf(run string, e *schema.Event) []string {
	var sums []string
	add := func(ref string) {
		if of, sum, err := schema.ParseDataRef(ref); err == nil && of == run {
			sums = append(sums, sum)
		}
	}
	add(e.DataRef)
	var data struct {
		Refs []schema.Ref `json:"refs"`
	}
	if bytes.Contains(e.Data, []byte(`"refs"`)) && json.Unmarshal(e.Data, &data) == nil {
		for _, r := range data.Refs {
			add(r.DataRef)
		}
	}
	slices.Sort(sums)
	return slices.Compact(sums)
}

// tally is the sum of a run's records.
type tally struct {
	keys    *schema.Keys
	head    schema.Head
	records int64
	// blobs of accepted or refused events.
	blobs map[string]bool
}

func newTally(keys *schema.Keys, run string) *tally {
	return &tally{keys: keys, head: schema.NewHead("", run), blobs: map[string]bool{}}
}

// add folds a record. Positions are counted, not taken from the record: those belong to the log of its origin.
func (t *tally) add(rec *schema.Record) schema.Verdict {
	t.records++
	counted := *rec
	counted.Stream = schema.StreamSequence(t.records) //nolint:gosec // a count
	v := t.head.Apply(t.keys, &counted)
	if v.Event != nil {
		for _, sum := range refsOf(t.head.Run, v.Event) {
			t.blobs[sum] = true
		}
	}
	return v
}

// run describes the added records.
func (t *tally) run() Run {
	return Run{
		Run: t.head.Run, Agent: t.head.Agent, Status: t.head.Status, Records: t.records, Events: t.head.Counts.Events,
		Digest: t.head.Digest, Blobs: len(t.blobs), Base: t.head.Base,
	}
}

// same returns how a run differs from the manifest; "" if it does not.
func (t *tally) same(want *Run) string {
	is := t.run()
	var differ []string
	for _, c := range []struct {
		what     string
		is, want any
	}{
		{"records", is.Records, want.Records},
		{"events", is.Events, want.Events},
		{"digest", is.Digest, want.Digest},
		{"status", is.Status, want.Status},
		{"blobs", is.Blobs, want.Blobs},
		{"agent", is.Agent, want.Agent},
		{"base", baseText(is.Base), baseText(want.Base)},
	} {
		if c.is != c.want {
			differ = append(differ, fmt.Sprintf("%s is %.80v, the manifest says %.80v", c.what, c.is, c.want))
		}
	}
	return strings.Join(differ, "; ")
}

// baseText is the base of a fork, for comparison.
func baseText(b *schema.BaseRef) string {
	if b == nil {
		return "none"
	}
	return fmt.Sprintf("%d messages of run %s, from %s up to %s at %d with digest %s", b.Records, b.Run, b.Point, b.Position.ID, b.Position.Stream, b.Digest)
}

// limited is a reader that fails, instead of ending, when more is read than allowed.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(b []byte) (int, error) {
	if l.left <= 0 {
		var one [1]byte
		if n, err := l.r.Read(one[:]); n == 0 {
			return 0, err
		}
		return 0, ErrTooLarge
	}
	n, err := l.r.Read(b[:min(int64(len(b)), l.left)])
	l.left -= int64(n)
	return n, err
}
