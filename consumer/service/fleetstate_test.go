package service_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/schema"
)

// looking is a service whose clock moves ten seconds at each read, so that no state is shown twice.
func (w *serviceWorld) looking() (*service.Service, *atomic.Int64) {
	w.TB.Helper()
	var steps atomic.Int64
	svc, err := newService(w.TB, serviceConfig{Fleet: "default", Name: "looker"}, w.JS, w.shards, func() time.Time {
		return time.Now().Add(time.Duration(steps.Add(1)) * 10 * time.Second)
	})
	require.NoError(w.TB, err)
	return svc, &steps
}

func TestTotals_ShardWithoutWorker_ReportsWaitingEvents(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	look := func() schema.ShardState {
		reply := svc.State(t.Context())
		require.Len(t, reply.Shards, 1)
		require.Empty(t, reply.Shards[0].Error)
		return reply.Shards[0]
	}
	s := look()
	require.Zero(t, s.Waiting)
	require.Zero(t, s.WaitingMS)
	require.Empty(t, s.Worker)
	require.EqualValues(t, 256<<20, s.QuotaBytes)

	x := w.aRun("run-1", 3, 100)
	s = look()
	require.EqualValues(t, len(x.Acked), s.Waiting)
	require.Positive(t, s.WaitingMS)
	require.Less(t, s.WaitingMS, time.Hour.Milliseconds()) // a machine may stand still
	require.Zero(t, s.Position)
	require.Positive(t, s.LogBytes)

	w.get("run-1", schema.ViewHead) // its barrier is no waiting event
	require.EqualValues(t, len(x.Acked), look().Waiting)

	_, stop := w.Fold(fold.Config{})
	w.told("run-1")
	require.Eventually(t, func() bool { return look().Waiting == 0 }, time.Minute, time.Millisecond)
	s = look()
	require.NotEmpty(t, s.Worker)
	require.Equal(t, x.Acked[len(x.Acked)-1].Stream, s.Position)
	require.Positive(t, s.CheckpointBytes)
	stop()
	s = look()
	require.Empty(t, s.Worker, "its lease was given back")
	x.TurnOf(100)
	require.EqualValues(t, 4, look().Waiting)
}

func TestTotals_WorkerReplaced_EqualStore(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	x := w.aRun("run-1", 8, 3000)
	y := w.aRun("run-2", 2, 10)
	events, payload := 0, int64(0)
	for round := range 3 {
		if round > 0 {
			x.TurnOf(3000)
		}
		events, payload = len(x.Acked)+len(y.Acked), 0
		for _, list := range [][]schema.Record{x.Acked, y.Acked} {
			for i := range list {
				payload += int64(len(list[i].Body))
			}
		}
		f, stop := w.Fold(smallSeals())
		var s schema.ShardState
		require.Eventually(t, func() bool {
			s = svc.State(t.Context()).Shards[0]
			return s.Waiting == 0
		}, time.Minute, time.Millisecond)
		stop()
		s = svc.State(t.Context()).Shards[0] // the worker wrote while the last one was read
		require.EqualValues(t, events, s.Totals.Events, "round %d", round)
		require.Equal(t, payload, s.Totals.PayloadBytes)
		require.Equal(t, s.LogBytes, s.Totals.LogBytes, "what the stream says it holds")
		require.Positive(t, s.Totals.Checkpoints)
		require.Greater(t, s.Totals.CheckpointBytes, 300*s.Totals.Checkpoints)
		require.Positive(t, s.Totals.Segments)
		require.Less(t, s.Totals.SegmentBytes, s.SegmentBytes)
		require.Less(t, s.SegmentBytes, s.Totals.SegmentBytes+400*s.Totals.Segments, "but for keys and headers")
		require.Greater(t, s.Totals.LogBytes+s.Totals.SegmentBytes+s.Totals.CheckpointBytes, s.Totals.PayloadBytes)
		if round > 0 {
			require.Less(t, f.Stats().Events.Load(), s.Totals.Events, "this fold worker did not fold them all")
		}
	}
}

func TestTotals_NextTerm_GoOn(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	x := w.aRun("run-1", 4, 3000)
	var before schema.FoldTotals
	for range 3 {
		_, stop := w.Fold(smallSeals())
		var s schema.ShardState
		require.Eventually(t, func() bool {
			s = svc.State(t.Context()).Shards[0]
			return s.Waiting == 0 && s.Position == x.Acked[len(x.Acked)-1].Stream
		}, time.Minute, time.Millisecond)
		stop()
		payload := int64(0)
		for i := range x.Acked {
			payload += int64(len(x.Acked[i].Body))
		}
		after := s.Totals
		require.EqualValues(t, len(x.Acked), after.Events)
		require.Equal(t, payload, after.PayloadBytes)
		require.Equal(t, after.Covered, after.Boundaries)
		require.Greater(t, after.Boundaries, before.Boundaries)
		require.Greater(t, after.Checkpoints, before.Checkpoints)
		before = after
		x.TurnOf(3000)
	}
}

func TestTotals_UnreadableShard_Reported(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	w.aRun("run-1", 1, 10)
	require.NoError(t, w.JS.DeleteStream(t.Context(), w.Names.EventStream()))
	s := svc.State(t.Context()).Shards[0]
	require.Contains(t, s.Error, w.Names.EventStream())
	require.Zero(t, s.Waiting)
}

func TestTotals_CheckpointBucketLost_AllEventsWait(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	svc, _ := w.looking()
	x := w.aRun("run-1", 2, 10)
	require.NoError(t, w.JS.DeleteKeyValue(t.Context(), w.Names.CheckpointBucket()))
	s := svc.State(t.Context()).Shards[0]
	require.Empty(t, s.Error)
	require.EqualValues(t, len(x.Acked), s.Waiting)
}

func TestFleetVerb_AnsweringReplica_Named(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	ask := func() *schema.FleetReply {
		a, err := w.ask(schema.VerbFleet, "", nil)
		require.NoError(t, err)
		return decodeAs[schema.FleetReply](t, a.first)
	}
	first := ask()
	require.Equal(t, "default", first.Fleet)
	require.Equal(t, "service-1", first.Replica)
	w.recover("run-1", takeover("executor-2", "req-1"))
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbRecover, "unknown", takeover("executor-2", "req-2")).Code)
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.svc.Stats().Recovery)
	var took uint64
	require.Eventually(t, func() bool { // it is counted behind the reply
		families, err := registry.Gather()
		require.NoError(t, err)
		took = families[0].GetMetric()[0].GetHistogram().GetSampleCount()
		return took > 0
	}, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, took, "a refused takeover is not counted")
}
