package kvstore_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func putMany(tb testing.TB, b *bench, n int) {
	tb.Helper()
	items := make([]kvstore.Item, n)
	for i := range items {
		cp := checkpoint(fmt.Sprintf("run-%05d", (i*7919)%n), schema.StreamSequence(i+1)) //nolint:gosec // small
		if i%10 == 0 {
			cp.Status = schema.StatusCompleted
		}
		items[i].Checkpoint = cp
	}
	for part := range slices.Chunk(items, 10_000) { // a batch has one deadline
		for _, r := range b.shard.Checkpoints.PutBatch(tb.Context(), part) {
			require.NoError(tb, r.Err)
		}
	}
}

// putManyLive puts checkpoints, and an entry of the live index for each.
func putManyLive(tb testing.TB, b *bench, n int) {
	tb.Helper()
	putMany(tb, b, n)
	runs := make([]string, n)
	for i := range runs {
		runs[i] = fmt.Sprintf("run-%05d", i)
	}
	for part := range slices.Chunk(runs, 10_000) { // a batch has one deadline
		putLive(tb, b, part...)
	}
}

func TestOf_DamagedOrMissingCheckpoint_CarriesItsError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putManyLive(t, b, 1500)
	_, rev, err := cps.GetFresh(t.Context(), "run-00003")
	require.NoError(t, err)
	b.purge(t, "run-00003", rev)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-00001", []byte("junk"))
	require.NoError(t, err)
	for _, key := range []string{"\xff", "\xfe", "not-valid!"} {
		_, err = b.js.Publish(t.Context(), "$KV."+b.names.CheckpointBucket()+"."+schema.LiveKeyPrefix+key, []byte("foreign"))
		require.NoError(t, err)
	}
	runs, upTo, err := cps.LiveRuns(t.Context())
	require.NoError(t, err)
	require.Len(t, runs, 1500, "keys of other clients are no runs")
	require.IsIncreasing(t, runs)
	last, err := b.js.Stream(t.Context(), "KV_"+b.names.CheckpointBucket())
	require.NoError(t, err)
	require.EqualValues(t, last.CachedInfo().State.LastSeq, upTo)
	list, _, upTo := checkpointsOf(t, cps, runs)
	require.NotZero(t, upTo)
	for _, s := range list {
		switch s.Run {
		case "run-00001":
			require.ErrorIs(t, s.Err, kvstore.ErrCorrupt)
		case "run-00003":
			require.ErrorIs(t, s.Err, kvstore.ErrNotFound)
		default:
			require.NoError(t, s.Err)
			require.Equal(t, s.Run, s.Checkpoint.Run)
			require.NotZero(t, s.Revision)
		}
	}
}

func TestLiveRuns_EmptyBucket_ReturnsNone(t *testing.T) {
	t.Parallel()
	cps := newBench(t).shard.Checkpoints
	runs, _, err := cps.LiveRuns(t.Context())
	require.NoError(t, err)
	require.Empty(t, runs)
	entries, _, err := cps.Live(t.Context())
	require.NoError(t, err)
	require.Empty(t, entries)
}
