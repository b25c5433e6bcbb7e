package schema_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// headerLines and parseHeader convert headers to one text and back, so that the fuzzer can write any.
func headerLines(header map[string][]string) string {
	var b strings.Builder
	for name, values := range header {
		for _, v := range values {
			b.WriteString(name + ":" + v + "\n")
		}
	}
	return b.String()
}

func parseHeader(text string) map[string][]string {
	header := map[string][]string{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			header[name] = append(header[name], value)
		}
	}
	return header
}

func seedMessages(f *testing.F) {
	f.Helper()
	names, events := goldenEvents(f)
	for _, name := range names {
		header, body := events[name].Encode()
		f.Add(headerLines(header), body)
		structured, err := events[name].EncodeStructured()
		require.NoError(f, err)
		f.Add("content-type:application/cloudevents+json", structured)
		f.Add("", structured)
	}
	e, err := schema.NewErased("daemon", &schema.Removal{Fleet: "f1", Run: "r1", ID: "n1"}, "1", time.Unix(1, 0))
	require.NoError(f, err)
	header, body := e.Encode()
	f.Add(headerLines(header), body)
}

// requireValid checks the invariants of every decoded event.
func requireValid(t *testing.T, e *schema.Event) {
	t.Helper()
	for _, text := range append([]string{e.ID, e.Source, e.Type, e.Subject, e.Time, e.TraceParent, e.DataContentType}, mapTexts(e.Extensions)...) {
		require.True(t, utf8.ValidString(text))
		require.LessOrEqual(t, len(text), schema.MaxAttribute)
		require.NotContains(t, text, "\n")
	}
	require.NotEmpty(t, e.ID)
	require.NotEmpty(t, e.Source)
	require.NotEmpty(t, e.Type)
}

func mapTexts(m map[string]string) []string {
	var out []string
	for k, v := range m {
		out = append(out, k, v)
	}
	return out
}

func FuzzDecode(f *testing.F) {
	seedMessages(f)
	f.Fuzz(func(t *testing.T, lines string, body []byte) {
		header := parseHeader(lines)
		e, err := schema.Decode(header, body)
		if err != nil {
			again, err2 := schema.Decode(header, body)
			require.Nil(t, again)
			require.EqualError(t, err2, err.Error())
			return
		}
		requireValid(t, e)
		content := e.ContentHash()
		back, err := schema.Decode(e.Encode())
		require.NoError(t, err, "what was read once is read again")
		require.Equal(t, content, back.ContentHash())
		require.Equal(t, e.ID, back.ID)
		structured, err := e.EncodeStructured()
		if err != nil {
			require.False(t, jsontext.Value(e.Data).IsValid(), "only JSON data that is none has no structured form")
			return
		}
		back, err = schema.Decode(nil, structured)
		require.NoError(t, err)
		require.Equal(t, content, back.ContentHash())
		var sdk ce.Event
		if sdk.UnmarshalJSON(structured) == nil && sdk.Validate() == nil {
			back, err = schema.FromCloudEvent(sdk)
			require.NoError(t, err)
			require.Equal(t, e.ID, back.ID)
		}
	})
}

func FuzzPercent(f *testing.F) {
	for _, s := range []string{"", "a b", "%41", "%2541", "100%", "%zz", "é", "🐛", `"`, "%", "%4", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		read := func(value string) (*schema.Event, error) {
			return schema.Decode(map[string][]string{
				"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-note": {value},
			}, nil)
		}
		e, err := read(s)
		if err != nil {
			return
		}
		header, _ := e.Encode()
		encoded := header["ce-note"][0]
		for i := range len(encoded) {
			require.True(t, encoded[i] > ' ' && encoded[i] < 0x7f && encoded[i] != '"', "%q", encoded)
		}
		back, err := read(encoded)
		require.NoError(t, err)
		require.Equal(t, e.Extensions["note"], back.Extensions["note"])
	})
}

func FuzzParseData(f *testing.F) {
	for _, d := range samples() {
		f.Add(d.EventName(), mustJSON(f, d))
	}
	f.Add(schema.HandoffOffered, []byte(nodeHandoff))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		data, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), Data: body})
		if err != nil {
			var bad *schema.DataError
			require.ErrorAs(t, err, &bad)
			require.Nil(t, data)
			return
		}
		if data == nil {
			require.Nil(t, schema.NewData(name))
			return
		}
		again, err := schema.MarshalData(data)
		require.NoError(t, err, "what was read can be written")
		back, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), Data: again})
		require.NoError(t, err)
		require.Equal(t, string(again), string(mustJSON(t, back)))
	})
}

func FuzzApply(f *testing.F) {
	seedMessages(f)
	f.Fuzz(func(t *testing.T, lines string, body []byte) {
		r := newTestRun(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls"}, 1)
		r.takeover("ex-2")
		before := mustJSON(t, r.head.Digest)
		header := parseHeader(lines)
		v := r.record(header, body)
		if v.Kind == schema.Duplicate {
			require.Equal(t, string(before), string(mustJSON(t, r.head.Digest)))
		}
		requireConsistent(t, r.state)
		v2 := r.record(header, body)
		require.NotEqual(t, schema.Applied, v2.Kind, "nothing is applied twice")
		stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: r.head})
		require.NoError(t, err)
		c, err := schema.DecodeCheckpoint(stored)
		require.NoError(t, err)
		require.Equal(t, r.head, c.Head)
		require.NoError(t, json.Unmarshal(mustJSON(t, r.state), new(schema.State)))
		r.state.Conversation()
		require.NoError(t, json.Unmarshal(mustJSON(t, r.state.View()), new(schema.State)))
		keyed(t, header, body)
	})
}

// keyed folds the message in a fleet with keys, and in the model, while a call waits for a person.
func keyed(t *testing.T, header map[string][]string, body []byte) {
	t.Helper()
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1}, 1)
	r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls"}, 1)
	r.write(&schema.RunWaitingData{InterruptID: "w1", Reason: schema.WaitToolApproval, ToolCallID: "c1"}, 1)
	keys := keysOf(t, schema.Key{Name: signers[0].name, Public: signers[0].public, Since: 1})
	m := referencefold.New(r.head.Fleet, r.head.Run)
	for _, rec := range r.log {
		m.Apply(schema.NoKeys, &rec)
	}
	rec := schema.NewRecord(r.stream+1, header, body)
	for _, k := range []*schema.Keys{keys, schema.NoKeys} {
		h := r.head.Clone()
		h.Apply(k, &rec)
	}
	m.Apply(schema.NoKeys, &rec)
}

// Kinds of stored data.
const (
	fuzzSegment = iota
	fuzzFrames
	fuzzCheckpoint
	fuzzKinds
)

// FuzzStored reads segments, frames and checkpoints; seal gives stored data a correct sum.
func FuzzStored(f *testing.F) {
	_, frames, err := schema.DecodeSegment(anySegment(f))
	require.NoError(f, err)
	f.Add(uint8(fuzzFrames), frames, false)
	f.Add(uint8(fuzzSegment), anySegment(f), false)
	f.Add(uint8(fuzzSegment), keyedSegment(f), false)
	f.Add(uint8(fuzzSegment), sealedSegment(`{"format":3,"raw_bytes":1`, "x"), true)
	f.Add(uint8(fuzzCheckpoint), anyCheckpoint(f), false)
	f.Add(uint8(fuzzCheckpoint), []byte(`{"format":1,"run":"r"`), true)
	f.Fuzz(func(t *testing.T, kind uint8, stored []byte, seal bool) {
		switch kind % fuzzKinds {
		case fuzzSegment:
			tryDecodeSegment(t, stored, seal)
		case fuzzFrames:
			tryFrames(t, stored)
		case fuzzCheckpoint:
			tryDecodeCheckpoint(t, stored, seal)
		}
	})
}

func tryDecodeSegment(t *testing.T, stored []byte, seal bool) {
	t.Helper()
	if line, packed, ok := bytes.Cut(stored, []byte{'\n'}); ok && seal {
		description, _, _ := strings.Cut(string(line), `,"sum":"`)
		stored = sealedSegment(description, string(packed))
	}
	info, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		require.Nil(t, frames)
		return
	}
	require.Len(t, frames, info.RawBytes)
	require.LessOrEqual(t, len(frames), schema.MaxSegmentRaw)
	if first, err := schema.DecodeSegmentInfo(stored); err == nil {
		require.Equal(t, info, first, "what a segment says of itself is the same without its content")
	}
	keyed, head, err := schema.DecodeKeyframe(stored)
	switch {
	case err != nil:
		require.Nil(t, head)
		require.ErrorIs(t, err, schema.ErrCorrupt)
	case head != nil:
		require.Equal(t, info, keyed)
		require.Equal(t, info.DigestAfter, head.Digest)
		require.Equal(t, info.Run, head.Run)
	}
}

func tryFrames(t *testing.T, frames []byte) {
	t.Helper()
	var again []byte
	err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		again = schema.AppendFrame(again, &rec)
		return true
	})
	if err != nil {
		require.ErrorIs(t, err, schema.ErrCorrupt)
		return
	}
	var twice []byte
	require.NoError(t, schema.ReadFrames(again, func(rec schema.Record) bool {
		twice = schema.AppendFrame(twice, &rec)
		return true
	}))
	require.Equal(t, again, twice)
}

func tryDecodeCheckpoint(t *testing.T, stored []byte, seal bool) {
	t.Helper()
	if seal {
		members, _, _ := strings.Cut(string(stored), `,"sum":"`)
		stored = sealedCheckpoint(members)
	}
	c, err := schema.DecodeCheckpoint(stored)
	if err != nil {
		return
	}
	again, err := schema.EncodeCheckpoint(c)
	require.NoError(t, err)
	_, err = schema.DecodeCheckpoint(again)
	require.NoError(t, err)
	// Whatever a checkpoint says, folding onto it must not panic.
	rec := schema.NewRecord(1<<62, map[string][]string{}, []byte(`{"specversion":"1.0","id":"x","source":"y","type":"io.waymark.turn.started.v1","data":{"turn":1}}`))
	c.Apply(schema.NoKeys, &rec)
}
