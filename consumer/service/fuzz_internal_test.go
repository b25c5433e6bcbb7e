package service

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzPlace tries the places of lists that clients return.
func FuzzPlace(f *testing.F) {
	place := listPlace{Filter: "x", Shards: []shardPlace{{Before: 7, Floor: 1}}}
	f.Add(place.text())
	f.Add("bm90aGluZw")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text, "x", 4)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(p.Shards), 4)
		again, err := parsePlace(p.text(), "x", 4)
		require.NoError(t, err)
		require.Equal(t, p, again)
		for i := range p.Shards {
			p.Shards[i].over()
		}
	})
}
