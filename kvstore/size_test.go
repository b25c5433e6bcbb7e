package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestPutBatch_Size_EqualsStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	segments, checkpoints := "KV_"+b.names.SegmentBucket(), "KV_"+b.names.CheckpointBucket()
	size := func(stream string) int {
		info, err := b.js.Stream(t.Context(), stream)
		require.NoError(t, err)
		return int(kvstore.UsageOf(info.CachedInfo()).Bytes)
	}
	before, empty := size(checkpoints), size(segments)
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
	require.Equal(t, sum, size(checkpoints)-before)
	require.Equal(t, empty, size(segments))

	require.NoError(t, b.shard.Segments.Create(t.Context(), "a", 1, make([]byte, 1000)))
	require.Greater(t, size(segments), empty+1000)

	require.NoError(t, b.js.DeleteStream(t.Context(), segments))
	_, err := b.shard.Throttle(t.Context(), 0)
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
}
