package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Members of an event's data that name the run, or follow from ids and digests.
const (
	memberFrom  = "from"
	memberTo    = "to"
	memberBase  = "base"
	memberOffer = "offer_hash"
	memberRefs  = "refs"
)

// derived are the members of an event's data that follow from ids and digests.
func derived(eventName string) []string {
	switch eventName {
	case schema.RunResumed:
		return []string{memberFrom, memberTo}
	case schema.RunStarted:
		return []string{memberBase}
	case schema.HandoffAccepted:
		return []string{memberOffer}
	}
	return nil
}

// rewoundTo is the number of the record that a rewind goes on behind; 0 of an event that is none.
func rewoundTo(e *schema.Event) int64 {
	var d struct {
		To schema.BaseRef `json:"to"`
	}
	if e.Name() != schema.RunResumed || json.Unmarshal(e.Data, &d) != nil {
		return 0
	}
	return d.To.Records
}

// errNoObject is returned for data that is no JSON object.
var errNoObject = errors.New("the data is no JSON object")

// replaceMember replaces the value of a member of a JSON object, and leaves every other byte as it is. Data without the member comes
// back as it is.
func replaceMember(data []byte, member string, with func(old jsontext.Value) ([]byte, error)) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return data, errNoObject
	}
	for dec.PeekKind() == '"' {
		tok, err := dec.ReadToken()
		if err != nil {
			return data, err
		}
		key := tok.String()
		value, err := dec.ReadValue()
		if err != nil {
			return data, err
		}
		if key != member {
			continue
		}
		end := int(dec.InputOffset())
		begin := end - len(value)
		next, err := with(value.Clone())
		if err != nil {
			return data, err
		}
		return slices.Concat(data[:begin], next, data[end:]), nil
	}
	return data, nil
}

// renameRefs gives the references of an event's data to blobs of a run the name of another.
func renameRefs(data []byte, from, to string) ([]byte, error) {
	if !bytes.Contains(data, []byte(schema.DataRef(from, ""))) {
		return data, nil
	}
	return replaceMember(data, memberRefs, func(old jsontext.Value) ([]byte, error) {
		return bytes.ReplaceAll(old, []byte(`"`+schema.DataRef(from, "")), []byte(`"`+schema.DataRef(to, ""))), nil
	})
}

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
	if bytes.Contains(e.Data, []byte(`"`+memberRefs+`"`)) && json.Unmarshal(e.Data, &data) == nil {
		for _, r := range data.Refs {
			add(r.DataRef)
		}
	}
	slices.Sort(sums)
	return slices.Compact(sums)
}

// ContentSum sums up what of a run does not depend on its id and its fleet's name: for every message the fold's verdict and the
// event's type, epoch, sequence, turn, time, executor, other attributes and data. Left out are the run id and the fleet, event ids,
// and of the data what follows from them: where a takeover continues, the base of a fork, the hash of an accepted offer, the run in the
// names of blobs, and of a rewind all but the number of the record. Left out, too, is the signature of a control event that was accepted: an import signs it anew.
type ContentSum struct {
	h hash.Hash
}

// NewContentSum returns the sum of no message.
func NewContentSum() *ContentSum { return &ContentSum{sha256.New()} }

// Add adds a message of a run with what the fold made of it.
func (c *ContentSum) Add(run string, rec *schema.Record, v *schema.Verdict) {
	line := func(name, value string) { _, _ = fmt.Fprintf(c.h, "%s=%d:%s\n", name, len(value), value) } // a hash takes all
	line("verdict", fmt.Sprint(int(v.Kind)))
	line("reason", string(v.Reason))
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		frame := *rec
		frame.Stream, frame.Stored = 0, 0
		line("message", string(schema.AppendFrame(nil, &frame)))
		return
	}
	source := e.Source
	if _, executor, ok := schema.ParseSource(e.Source); ok {
		source = "//" + executor
	}
	ref := e.DataRef
	if of, sum, err := schema.ParseDataRef(ref); err == nil && of == run {
		ref = sum
	}
	line("type", e.Type)
	line("source", source)
	line("time", e.Time)
	line("place", fmt.Sprintf("%d.%d.%d", e.Epoch, e.Sequence, e.Turn))
	line("trace", e.TraceParent)
	line("ref", ref)
	line("form", e.DataContentType+" "+e.DataSchema)
	bare := *e
	if e.IsControl() && !unsigned(v) {
		bare.Unsign() // who signs is the fleet's that has the run
	}
	for _, name := range slices.Sorted(maps.Keys(bare.Extensions)) {
		line(name, bare.Extensions[name])
	}
	data := e.Data
	for _, member := range derived(e.Name()) {
		if b, err := replaceMember(data, member, func(jsontext.Value) ([]byte, error) {
			if member == memberTo {
				return fmt.Appendf(nil, "%d", rewoundTo(e)), nil
			}
			return []byte("null"), nil
		}); err == nil {
			data = b
		}
	}
	if b, err := renameRefs(data, run, "_"); err == nil {
		data = b
	}
	line("data", string(data))
}

// String is the sum in hex.
func (c *ContentSum) String() string { return hex.EncodeToString(c.h.Sum(nil)) }

// tally is what the records of a run add up to.
type tally struct {
	keys    *schema.Keys
	head    schema.Head
	records int64
	content *ContentSum
	// blobs that accepted or refused events refer to.
	blobs map[string]bool
}

func newTally(keys *schema.Keys, run string) *tally {
	return &tally{keys: keys, head: schema.NewHead("", run), content: NewContentSum(), blobs: map[string]bool{}}
}

// add folds a record. Places are counted, not taken from the record: they are the log's that it came from.
func (t *tally) add(rec *schema.Record) schema.Verdict {
	t.records++
	counted := *rec
	counted.Stream = schema.StreamSequence(t.records) //nolint:gosec // a count
	v := t.head.Apply(t.keys, &counted)
	t.content.Add(t.head.Run, rec, &v)
	if v.Event != nil {
		for _, sum := range refsOf(t.head.Run, v.Event) {
			t.blobs[sum] = true
		}
	}
	return v
}

// run describes what was added.
func (t *tally) run() Run {
	return Run{
		Run: t.head.Run, Agent: t.head.Agent, Status: t.head.Status, Records: t.records, Events: t.head.Counts.Events,
		Digest: t.head.Digest, Content: t.content.String(), Blobs: len(t.blobs), Base: t.head.Base,
	}
}

// same reports in what a run is not as the manifest says; "" when it is.
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
		{"content", is.Content, want.Content},
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

// baseText is what a fork stands on, to be compared.
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
