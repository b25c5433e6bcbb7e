package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/history"
)

func FuzzGolden(f *testing.F) {
	golden, err := (&history.Golden{Run: "r-1", Point: "end", Steps: []history.Step{{}}}).Encode()
	require.NoError(f, err)
	f.Add(golden)
	f.Add([]byte(`{"format":1,"steps":null}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		g, err := history.DecodeGolden(file)
		if err != nil {
			return
		}
		again, err := g.Encode()
		require.NoError(t, err)
		back, err := history.DecodeGolden(again)
		require.NoError(t, err)
		require.Len(t, back.Steps, len(g.Steps))
	})
}
