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

func TestListPagesInTheOrderOfRunIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putMany(t, b, 1500)
	_, rev, err := cps.GetFresh(t.Context(), "run-00003")
	require.NoError(t, err)
	require.NoError(t, cps.Delete(t.Context(), "run-00003", rev))
	putLive(t, b, "run-00001")

	var runs []string
	for after, pages := "", 0; ; pages++ {
		require.Less(t, pages, 6)
		page, next, err := cps.List(t.Context(), after, 300, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), 300)
		for _, s := range page {
			require.NoError(t, s.Err)
			require.Equal(t, s.Run, s.Checkpoint.Run)
			require.NotZero(t, s.Revision)
			runs = append(runs, s.Run)
		}
		if next == "" {
			break
		}
		after = next
	}
	require.Len(t, runs, 1499)
	require.IsIncreasing(t, runs)
	require.NotContains(t, runs, "run-00003")

	done, _, err := cps.List(t.Context(), "", 1000, func(cp *schema.Checkpoint) bool { return cp.Status.Terminal() })
	require.NoError(t, err)
	require.Len(t, done, 150)
}

func TestListShowsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	putMany(t, b, 3)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-00001", []byte("junk"))
	require.NoError(t, err)
	for _, key := range []string{"\xff", "\xfe", "not-valid!"} {
		_, err = b.js.Publish(t.Context(), "$KV."+b.names.CheckpointBucket()+"."+key, []byte("foreign"))
		require.NoError(t, err)
	}
	page, next, err := b.shard.Checkpoints.List(t.Context(), "", 10, func(*schema.Checkpoint) bool { return false })
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, page, 1)
	require.Equal(t, "run-00001", page[0].Run)
	require.ErrorIs(t, page[0].Err, kvstore.ErrCorrupt)
}

func TestListOfAnEmptyBucket(t *testing.T) {
	t.Parallel()
	cps := newBench(t).shard.Checkpoints
	page, next, err := cps.List(t.Context(), "", 10, nil)
	require.NoError(t, err)
	require.Empty(t, page)
	require.Empty(t, next)
	_, _, err = cps.List(t.Context(), "", 0, nil)
	require.ErrorContains(t, err, "limit")
}
