package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// FuzzPlace tries the places of lists that clients return.
func FuzzPlace(f *testing.F) {
	place := listPlace{Filter: "x", Shards: []shardPlace{{Before: 7, Floor: 1}}}
	f.Add(placeText(&place))
	f.Add("bm90aGluZw")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := placeOf(text)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(p.Shards), 4)
		again, err := placeOf(placeText(&p))
		require.NoError(t, err)
		require.Equal(t, p, again)
		for i := range p.Shards {
			p.Shards[i].over()
		}
	})
}

func placeOf(text string) (listPlace, error) {
	l := listing{req: &schema.ListRequest{After: text}, shards: make([]*reader.Source, 4)}
	err := l.continues("x")
	return l.place, err
}
