package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestPutBatch_Size_EqualsStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before, err := b.shard.Kept(t.Context())
	require.NoError(t, err)
	long := checkpoint("run-with-a-longer-name", 7)
	long.Labels = map[string]string{"team": "search", "tier": "gold"}
	sum, items := 0, []kvstore.Item{{Checkpoint: checkpoint("a", 5)}, {Checkpoint: long}}
	for range 3 { // creations, and updates
		for i, r := range b.shard.Checkpoints.PutBatch(t.Context(), items) {
			require.NoError(t, r.Err)
			items[i].Revision = r.Revision
			sum += r.Bytes
		}
	}
	after, err := b.shard.Kept(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, sum, after.Checkpoints-before.Checkpoints)
	require.Equal(t, before.Segments, after.Segments)

	require.NoError(t, b.shard.Segments.Create(t.Context(), "a", 1, make([]byte, 1000)))
	after, err = b.shard.Kept(t.Context())
	require.NoError(t, err)
	require.Greater(t, after.Segments, before.Segments+1000)

	require.NoError(t, b.js.DeleteStream(t.Context(), "KV_"+schema.NamesOf("alpha", 0).SegmentBucket()))
	_, err = b.shard.Kept(t.Context())
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
}
