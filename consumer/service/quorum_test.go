package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/schema"
)

func TestQuorum_AcknowledgedWrite_Proves(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	within := func(limit, fresh time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		list := w.svc.Quorum(ctx, fresh)
		require.Len(t, list, 1)
		require.Zero(t, list[0].Shard)
		return list[0].Err
	}
	require.NoError(t, within(time.Minute, 0))
	barriers := w.svc.Stats().Barriers.Load()
	require.Positive(t, barriers)
	require.NoError(t, within(time.Minute, time.Hour))
	require.Equal(t, barriers, w.svc.Stats().Barriers.Load(), "a write that is fresh enough is not made again")
	require.NoError(t, within(time.Minute, 0))
	require.Greater(t, w.svc.Stats().Barriers.Load(), barriers)

	w.Server.Stop(t)
	err := within(3*time.Second, 0)
	require.ErrorContains(t, err, "stream WAYMARK_EVENTS_default_0 takes no writes")
	w.Server.Resume(t)
	require.Eventually(t, func() bool { return within(3*time.Second, 0) == nil }, time.Minute, 20*time.Millisecond, "it goes on by itself")
}

func TestMetrics_Boundaries_CountedAcceptedAndCheckpointed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	coverage := func() (s schema.ShardState, of float64) {
		s = svc.State(t.Context()).Shards[0]
		require.Empty(t, s.Error)
		return s, s.Totals.Coverage(s.Waiting)
	}
	_, of := coverage()
	require.InDelta(t, 1, of, 0, "nothing was accepted and nothing waits")
	x := w.aRun("run-1", 3, 100)
	_, of = coverage()
	require.Zero(t, of, "all of it waits")

	f, stop := w.Fold(fold.Config{})
	require.Eventually(t, func() bool { s, _ := coverage(); return s.Waiting == 0 && s.Totals.Events > 0 }, time.Minute, time.Millisecond)
	stop()
	s, of := coverage()
	require.InDelta(t, 1, of, 0)
	head := schema.NewHead("default", "run-1")
	boundaries := int64(0)
	for i := range x.Acked {
		if head.Apply(schema.NoKeys, &x.Acked[i]).Boundary {
			boundaries++
		}
	}
	require.Positive(t, boundaries)
	require.Equal(t, boundaries, s.Totals.Boundaries)
	require.Equal(t, boundaries, s.Totals.Covered)
	require.Equal(t, boundaries, f.Stats().Boundaries.Load())
	require.Equal(t, boundaries, f.Stats().Covered.Load())
	require.NotZero(t, f.Stats().Beat.Load())

	x.TurnOf(100) // no worker folds it
	s, of = coverage()
	require.InDelta(t, float64(boundaries)/float64(boundaries+4), of, 1e-9)
	require.EqualValues(t, 4, s.Waiting)
	_, stop = w.Fold(fold.Config{})
	require.Eventually(t, func() bool {
		s, of := coverage()
		return s.Waiting == 0 && of == 1 && s.Totals.Boundaries == boundaries+4
	}, time.Minute, time.Millisecond,
		"the next fold worker adds to what the last one counted")
	stop()
}

func TestQuorum_WritesUnacknowledged_ListsRefused(t *testing.T) {
	t.Parallel()
	l := newServiceWorld(t)
	l.replicated(service.Config{Timeout: time.Second}, nil)
	x := l.aRun("run-1", 1, 10)
	_, stop := l.Fold(fold.Config{})
	l.awaitFolded(x.Acked[len(x.Acked)-1].Stream)
	stop()
	running := schema.ListRequest{Status: []schema.Status{schema.StatusRunning}}
	// All stored events can be read as before, but the log accepts no writes.
	stream, err := l.JS.Stream(t.Context(), l.Names.EventStream())
	require.NoError(t, err)
	open := stream.CachedInfo().Config
	closed := open
	closed.Subjects = []string{"unused.subject"}
	_, err = l.JS.UpdateStream(t.Context(), closed)
	require.NoError(t, err)
	for _, req := range []schema.ListRequest{{}, running} {
		require.Equal(t, schema.CodeUnavailable, l.refused(schema.VerbList, "", req).Code)
	}
	require.Equal(t, schema.CodeUnavailable, l.refused(schema.VerbHistory, "run-1", struct{}{}).Code)

	_, err = l.JS.UpdateStream(t.Context(), open)
	require.NoError(t, err)
	for _, verb := range []string{schema.VerbList, schema.VerbHistory} {
		run, req := "", any(schema.ListRequest{})
		if verb == schema.VerbHistory {
			run, req = "run-1", struct{}{}
		}
		require.Eventually(t, func() bool { _, err := l.ask(verb, run, req); return err == nil }, time.Minute, 20*time.Millisecond)
	}
}
