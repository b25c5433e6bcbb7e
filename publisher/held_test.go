package publisher_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestHeartbeat_UnresolvedRun_NotHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		// The server stays, and takes no event any more.
		publisher.SetPublishTimeout(f, 500*time.Millisecond)
		return w.js.DeleteStream(ctx, w.names.EventStream())
	}, func(spec *publisher.ExecutorSpec) { spec.Patience = 100 * time.Millisecond })
	run, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	require.Equal(t, []schema.HeldRun{{Run: "r1", Epoch: 1}}, heldBy(next, "r1"))
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeLeft, got.outcome)
	require.ErrorContains(t, got.err, "not published")
	require.Error(t, run.Mark(t.Context(), "later"), "nothing follows what could not be said")
	require.Eventually(t, func() bool { return len(next().Held) == 0 }, patience, time.Millisecond)
}

// heldBy is the list of the first heartbeat that names a run in an epoch.
func heldBy(next func() schema.Heartbeat, run string) []schema.HeldRun {
	for {
		held := next().Held
		if slices.ContainsFunc(held, func(h schema.HeldRun) bool { return h.Run == run && h.Epoch != 0 }) {
			return held
		}
	}
}
