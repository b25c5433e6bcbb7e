package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A walk through a long log meets a run again and again, also long after the run's purge came due: nothing of it is forgotten.
func TestWhatAWalkMeetsLateIsPurgedWithTheNextRound(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newPurgeQueue(time.Minute)
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
	require.Zero(t, e.counted, "a walk does not know what is sealed")
	q.done(e, true, now)
	now = now.Add(2 * time.Minute)
	e, ok = q.due(now)
	require.True(t, ok, "it is tried again")
	require.EqualValues(t, 30, e.upTo)
	q.done(e, false, now)
	require.Zero(t, q.len())
}

// What is sealed once its run is taken out of the queue waits for its own grace, though a walk met it before.
func TestWhatIsSealedDuringAPurgeDoesNotGoWithIt(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newPurgeQueue(time.Minute)
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

// Who frees nothing when it is tried, as a run whose seal fails does, stands before no other in a full log.
func TestAnEntryThatFreesNothingComesLastWhenRoomIsNeeded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	q := newPurgeQueue(time.Hour)
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

// purging is a janitor that is about to purge a run of a folder that has stopped.
func (r *lifeRun) purging() *janitor {
	r.w.tb.Helper()
	c := r.checkpoint()
	require.Positive(r.w.tb, c.Segments.Count)
	j := r.w.paused().janitor
	j.queue.sealed(r.out.Run, 1, c.Segments.Last.Stream, 1000, j.now())
	return j
}

func TestARunWhoseOnlyEventIsTheLogsFirstIsDoneWith(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := &lifeRun{w: w, out: schema.Writer{Fleet: "default", Run: "run-1", Executor: "executor-1", Epoch: 1}}
	r.own(&schema.RunEndedData{Status: "completed"})
	w.stop()
	require.EqualValues(t, 1, r.last)
	j := r.purging()
	e := j.queue.gains(1, 0, j.now())
	require.Len(t, e, 1)
	require.NoError(t, j.purgeRun(t.Context(), e[0], proofBytes))
	require.Zero(t, j.queue.len(), "there is nothing to wait for")
}

// A proof is used within its time, counted to the purge itself.
func TestAProofThatIsTooOldAtItsPurgeIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.own(&schema.TurnStartedData{Turn: 1})
	r.own(&schema.RunEndedData{Status: "completed"})
	w.stop()
	j := r.purging()
	kept := func() int {
		list, err := w.shard.Checkpoints.History(t.Context(), "run-1")
		require.NoError(t, err)
		return len(list)
	}
	require.Greater(t, kept(), 1)
	// The process is stopped behind the last thing that is done before the purge.
	j.now = func() time.Time {
		if kept() == 1 {
			return noon.Add(proofTrust + time.Second)
		}
		return noon
	}
	_, err := j.purgeOnce(t.Context(), "run-1", r.last, proofBytes)
	require.ErrorIs(t, err, errSlowProof)
	require.Equal(t, 1, kept())
	_, err = j.purgeOnce(t.Context(), "run-1", r.last, proofBytes)
	require.NoError(t, err)
}
