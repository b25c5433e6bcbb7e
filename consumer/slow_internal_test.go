package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// TestNobodyIsGoneBecauseTheServerWasStopped is a server that was paused for longer than the silence: when it goes on, it may answer
// the folder before it brings the heartbeats that wait in it.
func TestNobodyIsGoneBecauseTheServerWasStopped(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("r1", "e1", "i1")
	w.pass(1, nil)
	w.clock.Forward(time.Minute)
	due := w.roster.due(0, 1, func(*rosterEntry) bool { return true })
	require.Len(t, due, 1)

	now := w.now
	w.now = func() time.Time {
		w.clock.Forward(4 * time.Second) // each answer takes so long
		return now()
	}
	require.NoError(t, w.write(t.Context(), due[0], true, w.clock.Now(), time.Time{}))
	w.now = now
	require.Zero(t, w.stats.Orphaned.Load())

	// And one that is heard of between the look at the clock and the answer has come back.
	w.hb.beat("e1", "i1", beat, false)
	require.NoError(t, w.write(t.Context(), due[0], true, w.clock.Now(), time.Time{}))
	require.Zero(t, w.stats.Orphaned.Load())

	w.clock.Forward(time.Minute)
	require.NoError(t, w.write(t.Context(), due[0], true, w.clock.Now(), time.Time{}))
	r.settled(func(c *schema.Checkpoint) bool { return c.Status == schema.StatusOrphaned })
}
