package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestRemovals_ListedSinceTheLook_StaysListed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := b.shard.Removals
	_, _, err := r.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	require.NoError(t, r.Add(t.Context(), "run-1", 7))
	entry, rev, err := r.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, kvstore.Removal{Stream: 7}, entry)
	entry.GoneBy = "2026-01-01T00:00:00Z"
	require.NoError(t, r.Put(t.Context(), "run-1", entry, rev))
	_, rev, err = r.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.NoError(t, r.Add(t.Context(), "run-1", 9))
	require.ErrorIs(t, r.Put(t.Context(), "run-1", entry, rev), kvstore.ErrConflict)
	require.NoError(t, r.Done(t.Context(), "run-1", rev))
	require.NoError(t, r.Done(t.Context(), "run-1", 0), "there was none")
	entry, rev, err = r.Get(t.Context(), "run-1")
	require.NoError(t, err, "something came since the look")
	require.Equal(t, kvstore.Removal{Stream: 9}, entry)
	runs, err := r.Runs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"run-1"}, runs)
	require.NoError(t, r.Done(t.Context(), "run-1", rev))
	runs, err = r.Runs(t.Context())
	require.NoError(t, err)
	require.Empty(t, runs)
}
