package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// A log that was damaged and created again has stream sequences twice: its records follow those that were sealed
// before, and add up to what they would with sequences that rise.
func TestOrder_SequencesStartAgain_RecordsFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		at := rapid.IntRange(0, len(log)).Draw(t, "damage")
		want, got := schema.NewHead("f", "r1"), schema.NewHead("f", "r1")
		var order schema.Order
		for i := range log {
			rec := log[i]
			if i >= at {
				rec.Stream -= log[at].Stream - 1
			}
			order.Next(&got, &rec)
			require.Equal(t, brief(want.Apply(schema.NoKeys, &log[i])), brief(got.Apply(schema.NoKeys, &rec)), "record %d", i)
			require.Equal(t, want.Digest, got.Digest)
			require.Equal(t, want.Records, got.Records)
		}
	})
}
