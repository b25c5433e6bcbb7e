package service_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// rewind asks for a run after one of its points, like an executor, and returns where it continues.
func (w *serviceWorld) rewind(run, point, view string) (*schema.RecoverReply, *answer) {
	w.TB.Helper()
	return w.recover(run, schema.RecoverRequest{Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "q-" + strings.NewReplacer(":", "-", ".", "-").Replace(point), At: point, View: view})
}

// The state of a rewound run, within its segments or after them, is the one at the record.
func TestRewind_SealedOrNot_StateIsTheOneAtTheRecord(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*serviceWorld, *writer){
		"in the log": func(*serviceWorld, *writer) {},
		"sealed":     func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, prepare)
			before := w.stateOf("run-1", "record:13")
			require.NotEqual(t, len(before.Messages), len(w.stateOf("run-1", "end").Messages))
			reply, _ := w.rewind("run-1", "record:13", schema.ViewState)
			require.True(t, reply.Complete)
			require.Equal(t, schema.Epoch(2), reply.Epoch)
			state := reply.State
			require.Equal(t, before.Messages, state.Messages)
			require.Equal(t, before.Turns, state.Turns)
			require.Len(t, reply.Head.Superseded, 1)
			left := reply.Head.Superseded[0]
			require.Equal(t, [3]int64{13, int64(len(x.Acked)), 2}, [3]int64{left.After, left.Through, int64(left.Epoch)})
			require.Equal(t, before.Messages, w.stateOf("run-1", "end").Messages)
			require.Empty(t, w.verify("run-1").Findings)
			e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: fmt.Sprintf("turn:%d", int(before.Turns[len(before.Turns)-1].Turn)+1), View: schema.ViewHead})
			require.Equal(t, schema.CodePointNotFound, e.Code, "a turn that was left behind is no point")
		})
	}
}

// A step's result is the point after which most runs continue: the calls up to it stay, and no later ones.
func TestRewind_BehindEachResult_KeepsTheCallsUpToIt(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	calls := int(w.model(x).Counts.ToolCalls)
	for n := calls; n >= 1; n-- {
		reply, _ := w.rewind("run-1", fmt.Sprintf("result:%d", n), schema.ViewState)
		state := reply.State
		require.Len(t, state.Calls, n)
		require.Equal(t, schema.OutcomeReturned, state.Calls[n-1].Outcome)
		require.Equal(t, int64(n), reply.Head.Counts.ToolCalls)
		require.Equal(t, schema.StatusRunning, reply.Head.Status)
	}
}

func TestRewind_AskedAgain_IsTheSameTakeover(t *testing.T) {
	t.Parallel()
	w, _ := pointWorld(t, func(*serviceWorld, *writer) {})
	first, _ := w.rewind("run-1", "turn:3", schema.ViewHead)
	again, _ := w.rewind("run-1", "turn:3", schema.ViewHead)
	require.Equal(t, first, again)
	e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: "q-turn-3"})
	require.Equal(t, schema.CodeConflict, e.Code, "the request id stands for a rewind")
}

// A rewind reads the run again after its own event. A takeover that came in between has the run, and its work stays.
func TestRewind_AnotherTakeoverRightBehind_IsRefusedAndRewindsOnce(t *testing.T) {
	t.Parallel()
	w, _ := pointWorld(t, func(*serviceWorld, *writer) {})
	w.stop()
	nc := w.Server.Conn(t)
	var svc *service.Service
	var between atomic.Bool
	other := make(chan error, 1)
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if svc.Stats().Takeovers.Load() != 1 || !between.CompareAndSwap(false, true) {
			natstest.Forward(nc, m, subject)
			return
		}
		go func() {
			_, err := w.ask(schema.VerbRecover, "run-1", takeover("executor-2", "q-other"))
			other <- err
			natstest.Forward(nc, m, subject)
		}()
	})
	svc, err := newService(t, service.Config{Fleet: "default", Name: "service-1"}, js, []*kvstore.Shard{w.openOn(js, "service-1")}, time.Now)
	require.NoError(t, err)
	w.svc, w.stop = svc, w.start(svc)
	e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{
		Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "q", ExpectedEpoch: 1, At: "turn:3", View: schema.ViewHead,
	})
	require.NoError(t, <-other)
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "another takeover came right behind: executor executor-2 has it in epoch 3")
	got, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, "executor-2", got.Head.Executor)
	require.Equal(t, schema.Epoch(3), got.Head.Epoch)
	require.Len(t, got.Head.Superseded, 1)
}

func TestRewind_RunThatHasEnded_GoesOn(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	x.Publish(&schema.RunEndedData{Status: string(schema.StatusFailed)}, 0)
	reply, _ := w.rewind("run-1", "turn:2", schema.ViewHead)
	require.Equal(t, schema.StatusRunning, reply.Head.Status)
	require.Equal(t, int32(2), reply.Head.Turn)
	require.Empty(t, w.verify("run-1").Findings)
}

func TestRewind_NoSuchPlace_IsRefusedAndWritesNothing(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	for point, code := range map[string]schema.Code{
		"":           schema.CodeBadRequest,
		"end":        schema.CodeBadRequest,
		"step":       schema.CodeBadRequest,
		"turn:99":    schema.CodePointNotFound,
		"result:99":  schema.CodePointNotFound,
		"record:999": schema.CodePointNotFound,
		"mark:none":  schema.CodePointNotFound,
	} {
		e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "q", At: point})
		require.Equal(t, code, e.Code, "%s: %s", point, e.Message)
	}
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, w.model(x), reply.Head)
}

// The refusal comes before the takeover is written, so the executor of the run continues.
func TestRewind_MostRangesInFrontOfThePoint_IsRefusedAndWritesNothing(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	for i := range schema.MaxRewinds {
		w.rewind("run-1", fmt.Sprintf("record:%d", len(x.Acked)+i), schema.ViewHead)
	}
	before, _ := w.get("run-1", schema.ViewHead)
	require.Len(t, before.Head.Superseded, schema.MaxRewinds)
	e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{
		Executor: "executor-2", Reason: schema.TakeoverRewind, RequestID: "q-more", At: fmt.Sprintf("record:%d", before.Head.Records),
	})
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "rewinds abandoned 64 ranges before record 106")
	after, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, before.Head, after.Head)
}

// A question that was answered is open again after a rewind to it, and in a fork at it. It has the time there that it
// had left at the point, by the server's clock.
func TestRewind_ToAQuestionThatExpires_HasTheTimeThatWasLeft(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.Publish(&schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, ExpiresAt: schema.FormatTime(time.Now().Add(time.Hour))}, 0)
	x.Publish(&schema.StateSetData{Key: "k", Value: []byte("1")}, 0) // the point
	point := fmt.Sprintf("record:%d", len(x.Acked))
	there, _ := w.at("run-1", schema.ViewHead, point)
	require.NotEmpty(t, there.At.Time)
	left := schema.ParseTime(there.Head.Interrupts[0].ExpiresAt).Sub(schema.ParseTime(there.At.Time))
	_, err := w.ask(schema.VerbInput, "run-1", schema.InputRequest{InterruptID: "q", EventID: there.Head.Interrupts[0].Position.ID, Payload: []byte(`"yes"`), By: "ann"})
	require.NoError(t, err)
	reply, _ := w.rewind("run-1", point, schema.ViewHead)
	base := schema.BaseOf(schema.Point{}, there.At.Records, &there.Head)
	base.Time = there.At.Time
	f := w.writer("fork")
	f.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", ResumedFrom: "run-1", Base: base}, 0)
	forked, _ := w.get("fork", schema.ViewHead)
	for run, h := range map[string]*schema.Head{"run-1": &reply.Head, "fork": &forked.Head} {
		require.Len(t, h.Interrupts, 1, run)
		log := w.logOf(run)
		since := time.Unix(0, log[len(log)-1].Stored)
		require.Equal(t, left, schema.ParseTime(h.Interrupts[0].ExpiresAt).Sub(since), run)
	}
}
