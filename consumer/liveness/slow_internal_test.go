package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A server is paused for longer than the silence: afterwards it may answer the fold worker before it delivers the
// waiting heartbeats.
func TestSweeper_ServerStopped_OrphansNothing(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("r1", "e1", "i1")
	w.pass(1, nil)
	w.Clock.Forward(time.Minute)
	due := w.live.due(0, 1, func(*entry) bool { return true })
	require.Len(t, due, 1)

	now := w.machine
	w.machine = func() time.Time {
		w.Clock.Forward(4 * time.Second) // each answer takes so long
		return now()
	}
	require.NoError(t, w.write(t.Context(), due[0], true, time.Time{}))
	w.machine = now
	require.Zero(t, w.deps.Stats.Orphaned.Load())

	// An executor that was heard between the look at the clock and the answer has come back.
	w.hb.beat("e1", "i1", beat, false)
	require.NoError(t, w.write(t.Context(), due[0], true, time.Time{}))
	require.Zero(t, w.deps.Stats.Orphaned.Load())

	w.Clock.Forward(time.Minute)
	require.NoError(t, w.write(t.Context(), due[0], true, time.Time{}))
	r.Settled(func(c *schema.Checkpoint) bool { return c.Status == schema.StatusOrphaned })
}

func TestSweeper_LastHeartbeatDuringASweep_OrphansRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.hb.beat("executor-1", "i1", beat, false)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(9, nil)
	w.Clock.Forward(time.Second)
	steady, _ := w.hb.Steady()
	e := w.live.find("run-1")
	require.True(t, w.gone(e, steady))
	// The executor's last heartbeat comes from a clock that this process sets back.
	w.Clock.Forward(beat)
	w.hb.beat("executor-1", "i1", beat, true)
	w.Clock.Forward(-beat)
	require.NoError(t, w.write(t.Context(), e, true, time.Time{}))
	r.Becomes(schema.StatusOrphaned)
}
