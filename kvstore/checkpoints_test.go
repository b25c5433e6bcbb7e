package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestPutComparesRevisions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	_, rev, err := cps.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	require.Zero(t, rev)

	rev, err = cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	_, err = cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.ErrorIs(t, err, kvstore.ErrConflict, "created twice")
	next, err := cps.Put(t.Context(), checkpoint("run-1", 2), rev)
	require.NoError(t, err)
	require.Greater(t, next, rev)
	_, err = cps.Put(t.Context(), checkpoint("run-1", 3), rev)
	require.ErrorIs(t, err, kvstore.ErrConflict, "stale revision")

	cp, got, err := cps.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, next, got)
	require.EqualValues(t, 2, cp.Position.Stream)
	cp, got, err = cps.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, next, got)
	require.EqualValues(t, 2, cp.Position.Stream)
}
