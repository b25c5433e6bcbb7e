package service_test

import (
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A rewind is done once for a request id. A repeat that comes after another executor has continued must not abandon
// its work.
func TestRewind_RepeatedLate_IsRefused(t *testing.T) {
	t.Parallel()
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed %v", sealed), func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, func(*serviceWorld, *writer) {})
			first, _ := w.rewind("run-1", "turn:3", schema.ViewHead)
			require.Len(t, first.Head.Superseded, 1)
			taken, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "claim-1", View: schema.ViewHead})
			x.resume(taken, "executor-2")
			x.Turn = taken.Head.Turn
			x.conversation(10)
			if sealed {
				// A second rewind to a point before the first: the head no longer has that one.
				again, _ := w.rewind("run-1", "turn:2", schema.ViewHead)
				require.Len(t, again.Head.Superseded, 1)
			}
			before, _ := w.get("run-1", schema.ViewHead)
			for _, executor := range []string{"executor-1", "executor-2"} {
				e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{
					Executor: executor, Reason: schema.TakeoverRewind, RequestID: "q-turn-3", At: "turn:3", View: schema.ViewHead,
				})
				require.Equal(t, schema.CodeConflict, e.Code)
				require.Contains(t, e.Message, "request_id q-turn-3 rewound run run-1 to turn:3 in epoch 2")
			}
			after, _ := w.get("run-1", schema.ViewHead)
			require.Equal(t, before.Head, after.Head)
		})
	}
}

// A request id stands for one rewind, to one point.
func TestRewind_RequestIDWithAnotherPoint_IsRefused(t *testing.T) {
	t.Parallel()
	w, _ := pointWorld(t, func(*serviceWorld, *writer) {})
	ask := func(id, at string) schema.RecoverRequest {
		return schema.RecoverRequest{Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: id, At: at, View: schema.ViewHead}
	}
	w.recover("run-1", ask("q", "turn:3"))
	e := w.refused(schema.VerbRecover, "run-1", ask("q", "turn:2"))
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "request_id q opened epoch 2 of run run-1 elsewhere than at turn:2")
	w.recover("run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: "plain", View: schema.ViewHead})
	e = w.refused(schema.VerbRecover, "run-1", ask("q", "turn:2"))
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "request_id q opened epoch 2 of run run-1 elsewhere than at turn:2", "behind another takeover, too")
	require.EqualValues(t, 2, w.svc.Stats().Takeovers.Load())
}

// An answer and a settlement name what they decide about: if a rewind has opened it again, they decide again.
func TestControl_RepeatedBehindARewind_IsDoneAgain(t *testing.T) {
	t.Parallel()
	call := schema.CallKey{Turn: 2, ToolCallID: "c9", Occurrence: 1}
	for name, c := range map[string]struct {
		verb    string
		prepare func(*serviceWorld, *writer)
		request func(*serviceWorld) any
		done    func(*schema.Head) bool
	}{
		"input": {
			schema.VerbInput, func(_ *serviceWorld, x *writer) { x.wait("q", "") }, func(w *serviceWorld) any {
				return schema.InputRequest{InterruptID: "q", EventID: w.asked("run-1", "q"), Payload: jsontext.Value(`"red"`), By: "ann"}
			}, func(h *schema.Head) bool { return len(h.Interrupts) == 0 },
		},
		"settle": {
			schema.VerbSettle, func(w *serviceWorld, x *writer) {
				x.openCall("c9", schema.ReplayHold)
				reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: "r", View: schema.ViewHead})
				x.resume(reply, "executor-1")
			}, func(w *serviceWorld) any {
				return schema.SettleRequest{CallKey: call, CallEpoch: w.attempt("run-1", call), How: schema.SettledAbandoned, By: "ann"}
			}, func(h *schema.Head) bool { return len(h.OpenCalls) == 0 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.writer("run-1")
			x.Start()
			x.conversation(10)
			c.prepare(w, x)
			request := c.request(w)
			at := fmt.Sprintf("record:%d", w.head("run-1").Records)
			for round := range 3 {
				require.False(t, c.done(w.head("run-1")), "round %d", round)
				first := w.control(c.verb, "run-1", request)
				require.True(t, c.done(w.head("run-1")), "round %d", round)
				records := w.head("run-1").Records
				require.Equal(t, repeated(first), w.control(c.verb, "run-1", request), "round %d", round)
				require.Equal(t, records, w.head("run-1").Records, "a repeat writes nothing")
				// If the rewind's point is after the answer, the answer counts.
				w.recover("run-1", schema.RecoverRequest{
					Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: fmt.Sprint("keep", round), At: fmt.Sprintf("record:%d", records), View: schema.ViewHead,
				})
				require.Equal(t, repeated(first), w.control(c.verb, "run-1", request), "it is done already")
				w.recover("run-1", schema.RecoverRequest{
					Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: fmt.Sprint("back", round), At: at, View: schema.ViewHead,
				})
			}
		})
	}
}

// A request to cancel had its effect before the rewind, and stops no work after it.
func TestCancel_RepeatedBehindARewind_StopsNothing(t *testing.T) {
	t.Parallel()
	w, _ := pointWorld(t, func(*serviceWorld, *writer) {})
	req := schema.CancelRequest{RequestID: "click-1", By: "ann"}
	first := w.control(schema.VerbCancel, "run-1", req)
	w.rewind("run-1", "turn:3", schema.ViewHead)
	require.Equal(t, repeated(first), w.control(schema.VerbCancel, "run-1", req))
	require.False(t, w.head("run-1").CancelRequested)
	req.RequestID = "click-2"
	require.False(t, w.control(schema.VerbCancel, "run-1", req).Already)
	require.True(t, w.head("run-1").CancelRequested)
}
