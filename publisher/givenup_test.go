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

func TestARunOfWhichNothingCanBeSaidIsGivenUp(t *testing.T) {
	w := newWorld(t)
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) {
		c.Heartbeat, c.PublishTimeout = 20*time.Millisecond, 50*time.Millisecond
	})
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		// The server stays, and takes no event any more.
		return w.js.DeleteStream(ctx, w.names.EventStream())
	}, func(spec *publisher.ExecutorSpec) { spec.Patience = 100 * time.Millisecond })
	run, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeLeft, got.outcome)
	require.ErrorContains(t, got.err, "left as it stands")
	require.Error(t, run.Mark(t.Context(), "later"), "nothing follows what could not be said")
	require.Eventually(t, func() bool {
		return slices.Contains(next().GivenUp, schema.GivenUp{Run: "r1", Epoch: 1})
	}, patience, time.Millisecond)
}
