package liveness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

// Two waits expire in one sweep, with events one after the other, and a run is orphaned. Unsigned events change
// nothing.
func TestSweeper_FleetWithKeys_SignsWhatItWrites(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t, fleettest.Keyed(t))
	at := schema.FormatTime(fleettest.Noon.Add(30 * time.Minute))
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input", ExpiresAt: at})
	r.Own(&schema.RunWaitingData{InterruptID: "q2", Reason: "human_input", ExpiresAt: at})
	e, err := schema.NewControl("default", "daemon-1", "run-1", 1, "forged", &schema.RunInputData{InterruptID: "q1", By: "me"}, w.Clock.Now())
	require.NoError(t, err)
	r.Send(e)
	c := r.Settled(func(c *schema.Checkpoint) bool { return c.Position.Stream == r.Last })
	require.Len(t, c.Interrupts, 2)
	require.EqualValues(t, 1, c.Counts.DeadLetters)
	w.skip(32 * time.Minute)
	c = r.Settled(func(c *schema.Checkpoint) bool { return len(c.Interrupts) == 0 })
	require.EqualValues(t, 1, c.Counts.DeadLetters, "the daemon's own events are none")
	require.EqualValues(t, 2, w.deps.Stats.Expired.Load())
	w.pass(11, nil)
	c = r.Becomes(schema.StatusOrphaned)
	require.EqualValues(t, 1, c.Counts.DeadLetters)
	r.Control(&schema.RunResumedData{Executor: "executor-2", Reason: schema.TakeoverClaim, RequestID: "q"})
	require.EqualValues(t, 2, r.Checkpoint().Epoch)
}
