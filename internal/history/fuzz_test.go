package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/schema"
)

// FuzzFiles tries the input of a person: a file of calls, and a predicate over events with any data.
func FuzzFiles(f *testing.F) {
	golden, err := (&history.Golden{Run: "r-1", Point: "end", Steps: []history.Step{{}}}).Encode()
	require.NoError(f, err)
	f.Add(golden, "event.name == 'tool.called'")
	f.Add([]byte(`{"format":1,"steps":null}`), "run.turn > 3 && event.data.x.y[0] == 1")
	f.Add([]byte(`{"a":[1,{"b":2}]}`), "any(event.data.a, # == 1)")
	f.Add([]byte(`7`), "event.data matches '^('")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		if g, err := history.DecodeGolden(file); err == nil {
			again, err := g.Encode()
			require.NoError(t, err)
			back, err := history.DecodeGolden(again)
			require.NoError(t, err)
			require.Len(t, back.Steps, len(g.Steps))
		}
		if len(text) > 256 {
			return // a person types it; we cannot bound the library
		}
		p, err := history.CompilePredicate(text)
		if err != nil {
			return
		}
		head := schema.NewHead("f", "r-1")
		_, _ = p.Holds(t.Context(), &head, &schema.Event{Type: schema.TypeOf(schema.ToolCalled), Data: file})
	})
}
