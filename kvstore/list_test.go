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

func TestListLive_ManyRuns_PagesInTheOrderOfRunIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putManyLive(t, b, 1500)
	_, rev, err := cps.GetFresh(t.Context(), "run-00003")
	require.NoError(t, err)
	b.purge(t, "run-00003", rev)

	var runs []string
	for after, pages := "", 0; ; pages++ {
		require.Less(t, pages, 6)
		page, next, err := cps.ListLive(t.Context(), after, 300)
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
}

func TestListLive_DamagedCheckpoint_CarriesItsError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	putManyLive(t, b, 3)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-00001", []byte("junk"))
	require.NoError(t, err)
	for _, key := range []string{"\xff", "\xfe", "not-valid!"} {
		_, err = b.js.Publish(t.Context(), "$KV."+b.names.CheckpointBucket()+"."+schema.LiveKeyPrefix+key, []byte("foreign"))
		require.NoError(t, err)
	}
	page, next, err := b.shard.Checkpoints.ListLive(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, page, 3)
	require.NoError(t, page[0].Err)
	require.Equal(t, "run-00001", page[1].Run)
	require.ErrorIs(t, page[1].Err, kvstore.ErrCorrupt)
	require.NoError(t, page[2].Err)
}

func TestListLive_EmptyBucket_ReturnsAnEmptyPage(t *testing.T) {
	t.Parallel()
	cps := newBench(t).shard.Checkpoints
	page, next, err := cps.ListLive(t.Context(), "", 10)
	require.NoError(t, err)
	require.Empty(t, page)
	require.Empty(t, next)
	_, _, err = cps.ListLive(t.Context(), "", 0)
	require.ErrorContains(t, err, "limit")
}
