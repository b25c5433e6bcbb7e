package purge

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A walk through a long log finds a run repeatedly, even long after the run's purge was due: no event is forgotten.
func TestQueue_LateEntry_PurgedNextRound(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newQueue(time.Minute)
	require.True(t, q.found("run-1", 1, 10, now))
	require.True(t, q.found("run-1", 1, 12, now.Add(time.Second)))
	require.True(t, q.found("run-1", 1, 20, now.Add(time.Minute)), "after the window")
	now = now.Add(2 * time.Minute)
	e, ok := q.due(now)
	require.True(t, ok)
	require.EqualValues(t, 12, e.upTo)
	require.EqualValues(t, 12, e.met)
	require.True(t, q.found("run-1", 1, 30, now), "while it is purged")
	q.done(e, false, now)
	now = now.Add(2 * time.Minute)
	e, ok = q.due(now)
	require.True(t, ok)
	require.EqualValues(t, 13, e.first)
	require.EqualValues(t, 30, e.upTo)
	require.EqualValues(t, 30, e.met)
	require.Zero(t, e.counted, "a walk does not know the sealed position")
	q.done(e, true, now)
	now = now.Add(2 * time.Minute)
	e, ok = q.due(now)
	require.True(t, ok, "it is tried again")
	require.EqualValues(t, 30, e.upTo)
	q.done(e, false, now)
	require.Zero(t, q.len())
}

// Events sealed after their run was taken out of the queue wait for their own grace, even if a walk found the run
// before.
func TestQueue_SealedDuringPurge_WaitsForNextRound(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newQueue(time.Minute)
	require.True(t, q.found("run-1", 1, 30, now))
	now = now.Add(2 * time.Minute)
	e, ok := q.due(now)
	require.True(t, ok)
	require.True(t, q.mayGo("run-1", 30))
	q.sealed("run-1", 11, 20, 100, now)
	require.True(t, q.mayGo("run-1", 10))
	require.False(t, q.mayGo("run-1", 11))
	q.done(e, false, now)
	_, ok = q.due(now.Add(time.Minute))
	require.False(t, ok)
	now = now.Add(2 * time.Minute)
	e, ok = q.due(now)
	require.True(t, ok)
	require.Equal(t, []schema.StreamSequence{11, 30, 20, 30}, []schema.StreamSequence{e.first, e.upTo, e.counted, e.met})
}

// An entry that freed nothing when tried, such as a run whose seal fails, must not block others in a full log.
func TestQueue_EntryFreesNothing_ComesLast(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newQueue(time.Hour)
	q.sealed("large", 1, 10, 1000, now)
	q.sealed("small", 11, 20, 100, now)
	for range 2 {
		most := q.gains(50, 0, now)
		require.Len(t, most, 1)
		require.Equal(t, "large", most[0].run, "the first try may have come too early")
		most[0].fruitless++
		q.done(most[0], true, now)
	}
	require.EqualValues(t, 100, q.waiting(), "nothing is hoped for from the other")
	most := q.gains(50, 0, now)
	require.Len(t, most, 1)
	require.Equal(t, "small", most[0].run)
	q.done(most[0], false, now)
	most = q.gains(50, 0, now)
	require.Len(t, most, 1, "it is not given up")
	require.Equal(t, "large", most[0].run)
	q.done(most[0], false, now)
	require.Zero(t, q.len())
}
