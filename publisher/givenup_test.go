package publisher_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestGiveUp_UnresolvedRun_Abandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) {
		c.Heartbeat, c.PublishTimeout = 20*time.Millisecond, 500*time.Millisecond
	})
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		// The server stays, and takes no event any more.
		return w.js.DeleteStream(ctx, w.names.EventStream())
	}, func(spec *publisher.ExecutorSpec) { spec.Patience = 100 * time.Millisecond })
	run, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeLeft, got.outcome)
	require.ErrorContains(t, got.err, "not published")
	require.Error(t, run.Mark(t.Context(), "later"), "nothing follows what could not be said")
	require.Eventually(t, func() bool {
		return slices.Contains(next().GivenUp, schema.GivenUp{Run: "r1", Epoch: 1})
	}, patience, time.Millisecond)
}

func TestHeartbeat_TooManyGivenUpRuns_DroppedRunIsLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var out bytes.Buffer
	log := zerolog.New(&out)
	f := w.fleet(func(c *publisher.Config) { c.Logger = &log })
	for i := range schema.MaxGivenUp {
		publisher.Abandon(f, schema.GivenUp{Run: fmt.Sprintf("r%d", i), Epoch: 1})
	}
	require.NotContains(t, out.String(), "too many abandoned runs")
	publisher.Abandon(f, schema.GivenUp{Run: "last", Epoch: 1})
	require.Contains(t, out.String(), "too many abandoned runs")
	require.Contains(t, out.String(), `"run":"r0","epoch":1`)
	require.NotContains(t, out.String(), `"run":"r1",`)
}
