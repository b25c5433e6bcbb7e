package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestPoint_Text_RoundTrip(t *testing.T) {
	for text, want := range map[string]schema.Point{
		"end":                 {},
		"seq:120":             {Kind: schema.PointSequence, Number: 120},
		"seq:2.14":            {Kind: schema.PointSequence, Number: 14, Epoch: 2},
		"turn:0":              {Kind: schema.PointTurn},
		"turn:7":              {Kind: schema.PointTurn, Number: 7},
		"result:3":            {Kind: schema.PointResult, Number: 3},
		"checkpoint:5120":     {Kind: schema.PointCheckpoint, Number: 5120},
		"mark:before: deploy": {Kind: schema.PointMark, Name: "before: deploy"},
		"record:125":          {Kind: schema.PointRecord, Number: 125},
		"event:run-1.2.c.XYZ": {Kind: schema.PointEvent, Name: "run-1.2.c.XYZ"},
	} {
		t.Run(text, func(t *testing.T) {
			got, err := schema.ParsePoint(text)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, text, got.String())
		})
	}
}

func TestPoint_Invalid_RefusedByName(t *testing.T) {
	for _, text := range []string{
		"7", "turn", "turn:", "turn:x", "turn:-1", "seq:0", "seq:1.0", "seq:0.1", "seq:1.2.3", "step:1", "result:0", "record:0", "checkpoint:0", "mark:", "event:", "line:3", ":", "seq: 1",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := schema.ParsePoint(text)
			require.ErrorIs(t, err, schema.ErrPoint)
			require.ErrorContains(t, err, text)
		})
	}
}

// FuzzTexts reads the texts that have a grammar: points, hashes, sources, references to blobs, names.
func FuzzTexts(f *testing.F) {
	for _, seed := range []string{
		"end", "seq:120", "seq:2.14", "turn:0", "mark:a", "event:x.1.2", "checkpoint:9", "turn:99999999999999999999",
		"/waymark/default/ex-1", "/waymark//", "waymark-blob:r-1.sha256-" + strings.Repeat("0a", 32), strings.Repeat("0a", 32), "r-1", "a b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := schema.ParsePoint(text); err != nil {
			require.ErrorIs(t, err, schema.ErrPoint)
		} else {
			again, err := schema.ParsePoint(p.String())
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
		if h, err := schema.ParseHash(text); err == nil && text != "" {
			require.Equal(t, text, h.String())
		}
		if fleet, executor, ok := schema.ParseSource(text); ok {
			require.Equal(t, text, schema.Source(fleet, executor))
			require.True(t, schema.ValidName(fleet) && schema.ValidName(executor))
		}
		if run, sum, err := schema.ParseDataRef(text); err == nil {
			require.Equal(t, text, schema.DataRef(run, sum))
		}
		if schema.ValidName(text) {
			require.NoError(t, schema.CheckName("name", text))
			require.Equal(t, text, schema.NamesOf("f", 0).RunOfSubject(schema.NamesOf("f", 0).EventSubject(text)))
			require.Less(t, schema.ShardOf(text, 7), 7)
		}
	})
}
