package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestSegment_Repeated_CreatedOnce(t *testing.T) {
	t.Parallel()
	segments := newBench(t).shard.Segments
	require.NoError(t, segments.Create(t.Context(), "run-1", 1, []byte("first")))
	require.ErrorIs(t, segments.Create(t.Context(), "run-1", 1, []byte("other")), kvstore.ErrExists)
	for _, get := range []func() ([]byte, error){
		func() ([]byte, error) { return segments.Get(t.Context(), "run-1", 1) },
		func() ([]byte, error) { return segments.GetFresh(t.Context(), "run-1", 1) },
	} {
		b, err := get()
		require.NoError(t, err)
		require.Equal(t, "first", string(b))
	}
	_, err := segments.Get(t.Context(), "run-1", 2)
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestSegments_ReplaceOfExaminedRevision_ReplacesNoOther(t *testing.T) {
	t.Parallel()
	segments := newBench(t).shard.Segments
	require.NoError(t, segments.Create(t.Context(), "run-1", 1, []byte("damaged")))
	stored, rev, err := segments.Examine(t.Context(), "run-1", 1)
	require.NoError(t, err)
	require.Equal(t, "damaged", string(stored))
	require.NoError(t, segments.Replace(t.Context(), "run-1", 1, []byte("of the next worker"), rev))
	require.ErrorIs(t, segments.Replace(t.Context(), "run-1", 1, []byte("of the one that stood still"), rev), kvstore.ErrConflict)
	require.Error(t, segments.Replace(t.Context(), "run-1", 2, []byte("not examined"), 0))
	stored, _, err = segments.Examine(t.Context(), "run-1", 1)
	require.NoError(t, err)
	require.Equal(t, "of the next worker", string(stored))
	_, _, err = segments.Examine(t.Context(), "run-1", 2)
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestSegments_CreateOverDeletion_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	segments := b.shard.Segments
	require.NoError(t, segments.Create(t.Context(), "run-1", 1, []byte("of a run that is removed next")))
	b.deleteSegment(t, "run-1", 1)
	require.ErrorIs(t, segments.Create(t.Context(), "run-1", 1, []byte("of a worker that stood still")), kvstore.ErrExists)
	_, err := segments.Get(t.Context(), "run-1", 1)
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestSegment_Sizes_Checked(t *testing.T) {
	t.Parallel()
	segments := newBench(t).shard.Segments
	require.NoError(t, segments.Create(t.Context(), "run-1", 1, make([]byte, schema.MaxSegment+4<<10)), "the largest fits")
	require.ErrorIs(t, segments.Create(t.Context(), "run-1", 2, make([]byte, schema.MaxSegment+4<<10+1)), kvstore.ErrTooLarge)
	require.ErrorIs(t, segments.Create(t.Context(), "run-1", 2, nil), kvstore.ErrCorrupt)
	for _, n := range []int{0, -1, kvstore.MaxSegments + 1} {
		require.Error(t, segments.Create(t.Context(), "run-1", n, []byte("x")), n)
		_, err := segments.Get(t.Context(), "run-1", n)
		require.Error(t, err)
	}
}

// deleteSegment leaves a delete marker instead of a segment, like the removal of its run.
func (b *bench) deleteSegment(tb testing.TB, run string, n int) {
	tb.Helper()
	kv, err := b.js.KeyValue(tb.Context(), b.names.SegmentBucket())
	require.NoError(tb, err)
	require.NoError(tb, kv.Purge(tb.Context(), schema.SegmentKey(run, n)))
}
