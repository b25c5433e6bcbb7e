package liveness

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// holds sends a heartbeat that lists runs.
func (w *lifeWorld) holds(runs ...schema.HeldRun) {
	w.TB.Helper()
	require.NoError(w.TB, w.hb.executor(heartbeatMsg(w.TB, &schema.Heartbeat{Executor: "executor-1", Instance: "i1", Held: append([]schema.HeldRun{}, runs...)})))
}

func TestHeartbeat_RunNoLongerHeld_OrphanedAndCounted(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	dropped, kept := w.begin("run-1", "executor-1", "i1"), w.begin("run-2", "executor-1", "i1")
	first, second := schema.HeldRun{Run: "run-1", Epoch: 1}, schema.HeldRun{Run: "run-2"}
	w.pass(11, func() { w.holds(first, second) })
	dropped.stays(schema.StatusRunning)
	w.holds(second)
	w.pass(1, nil)
	dropped.Becomes(schema.StatusOrphaned)
	require.Equal(t, schema.StatusRunning, kept.Checkpoint().Status, "a run that is taken over has any epoch")
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
	require.False(t, w.orphanings("run-1")[0].Unheld)
}

// The answer to a claim was lost: the executor lives, and does not know of the run.
func TestHeartbeat_RunNeverHeld_FreedAfterAnIntervalWithoutCount(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-2", "i2")
	r.Control(&schema.RunResumedData{Executor: "executor-1", Instance: "i1", Reason: schema.TakeoverClaim, RequestID: "q1"})
	require.Equal(t, 1, r.Checkpoint().Stalled)
	other := schema.HeldRun{Run: "run-1", Epoch: 1} // it had the run in an earlier epoch
	w.holds(other)
	w.pass(int(beat/time.Second)-1, func() { w.holds(other) })
	r.stays(schema.StatusRunning)
	w.pass(1, func() { w.holds(other) })
	r.Becomes(schema.StatusOrphaned)
	require.Zero(t, r.Checkpoint().Stalled, "the claim is no fault of the run")
	require.True(t, w.orphanings("run-1")[0].Unheld)
}

// The executor got the run, and could not read it: the daemon was overloaded.
func TestHeartbeat_RunCouldNotBeRead_FreedWithoutCount(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-2", "i2")
	r.Control(&schema.RunResumedData{Executor: "executor-1", Instance: "i1", Reason: schema.TakeoverClaim, RequestID: "q1"})
	w.pass(int(beat/time.Second)+3, func() { w.holds(schema.HeldRun{Run: "run-1"}) })
	r.stays(schema.StatusRunning)
	w.holds()
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
	require.Zero(t, r.Checkpoint().Stalled, "the claim is no fault of the run")
}

// The answer to a claim may take longer than a short heartbeat interval.
func TestHeartbeat_ShortInterval_RunFreedAfterASecond(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	listsNothing := func() {
		require.NoError(t, w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "executor-1", Instance: "i1", IntervalMS: 20, Held: []schema.HeldRun{}})))
		require.NoError(t, w.sweep(t.Context()))
	}
	w.Clock.Forward(answerPatience - time.Millisecond)
	listsNothing()
	r.stays(schema.StatusRunning)
	w.Clock.Forward(time.Millisecond)
	listsNothing()
	r.Becomes(schema.StatusOrphaned)
}

func TestHeartbeat_NoList_RunKept(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	listed, unnamed := w.begin("run-1", "executor-1", "i1"), w.begin("run-2", "executor-1", "")
	w.pass(20, func() { w.hb.beat("executor-1", "i1", beat, false) })
	listed.stays(schema.StatusRunning)
	w.holds(schema.HeldRun{Run: "run-1", Epoch: 1})
	w.pass(20, func() { w.holds(schema.HeldRun{Run: "run-1", Epoch: 1}) })
	unnamed.stays(schema.StatusRunning) // it may be another process of the name
}

// orphanings are the orphanings of a run in its log.
func (w *lifeWorld) orphanings(run string) []*schema.RunOrphanedData {
	w.TB.Helper()
	var list []*schema.RunOrphanedData
	require.NoError(w.TB, eventlog.Read(w.TB.Context(), w.JS, w.Shard.Names, run, 1, func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return err
		}
		data, err := schema.ParseData(e)
		if d, ok := data.(*schema.RunOrphanedData); ok {
			list = append(list, d)
		}
		return err
	}))
	return list
}

func TestHeartbeat_TooManyHeldRuns_Refused(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	b := schema.Heartbeat{Executor: "executor-1", Held: make([]schema.HeldRun, schema.MaxHeld+1)}
	for i := range b.Held { // the longest id and epoch: the limit of bytes leaves room for as many
		b.Held[i] = schema.HeldRun{Run: fmt.Sprintf("%064d", i), Epoch: math.MaxUint32}
	}
	require.Error(t, w.hb.executor(heartbeatMsg(t, &b)))
	b.Held = b.Held[1:]
	require.NoError(t, w.hb.executor(heartbeatMsg(t, &b)))
}

// One executor's key can name any number of instances: all their lists together are bounded. A list without room must
// not end the life of its executor, nor free its runs.
func TestHeartbeats_HeldRunsOfAllInstances_AreBounded(t *testing.T) {
	t.Parallel()
	now := fleettest.Noon
	hb := NewHeartbeats("default", nil, nil, func() time.Time { return now }, zerolog.Nop())
	list := func(executor, instance string, runs int) *instanceLife {
		b := schema.Heartbeat{Executor: executor, Instance: instance, Held: make([]schema.HeldRun, runs)}
		for i := range b.Held {
			b.Held[i] = schema.HeldRun{Run: fmt.Sprintf("run-%d", i), Epoch: 1}
		}
		hb.take(heartbeatMsg(t, &b))
		l, _ := hb.last(executor, instance, time.Second)
		return &l
	}
	require.Len(t, list("honest", "i1", 1).held, 1)
	instances := maxHeld / schema.MaxHeld
	for i := range instances - 1 {
		list("flood", fmt.Sprintf("i%d", i), schema.MaxHeld)
	}
	list("flood", "last", schema.MaxHeld-1)
	require.Zero(t, hb.Stats().Refused.Load())

	now = now.Add(time.Second)
	more := list("honest", "i1", 2)
	require.EqualValues(t, 1, hb.Stats().Refused.Load())
	require.Equal(t, now, more.seen, "it is a sign of life")
	require.Nil(t, more.held, "it counts as an instance that lists none")
	agents := schema.Heartbeat{Executor: "agents", Instance: "i", Agents: []string{"coder", "writer"}}
	require.ErrorIs(t, hb.executor(heartbeatMsg(t, &agents)), errHeartbeat)

	list("flood", "i0", 0)
	require.Len(t, list("honest", "i1", 2).held, 2, "there is room again")
	now = now.Add(surelyGone)
	require.Len(t, list("honest", "i1", schema.MaxHeld).held, schema.MaxHeld)
	list("other", "i1", schema.MaxHeld)
	require.Equal(t, 2*schema.MaxHeld, hb.held, "instances that are gone take no room")
}

// beat receives a heartbeat that lists nothing.
func (h *Heartbeats) beat(executor, instance string, interval time.Duration, leaving bool) {
	b := schema.Heartbeat{Executor: executor, Instance: instance, IntervalMS: interval.Milliseconds(), Leaving: leaving}
	if err := h.record(&b); err != nil {
		panic(err) // it lists nothing that can be refused
	}
}

func heartbeatMsg(tb testing.TB, b *schema.Heartbeat) *nats.Msg {
	tb.Helper()
	body, err := json.Marshal(b)
	require.NoError(tb, err)
	return &nats.Msg{Subject: schema.HeartbeatSubject("default", b.Executor), Data: body}
}
