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
	w.recover("run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: "plain", View: schema.ViewHead})
	ask := func(id, at string) schema.RecoverRequest {
		return schema.RecoverRequest{Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: id, At: at, View: schema.ViewHead}
	}
	w.recover("run-1", ask("q", "turn:3"))
	e := w.refused(schema.VerbRecover, "run-1", ask("q", "turn:2"))
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "request_id q opened epoch 3 of run run-1 elsewhere than at turn:2")
	e = w.refused(schema.VerbRecover, "run-1", ask("plain", "turn:2"))
	require.Equal(t, schema.CodeConflict, e.Code)
	same, _ := w.recover("run-1", ask("q", "turn:3"))
	require.Equal(t, schema.Epoch(3), same.Epoch)
	require.EqualValues(t, 2, w.svc.Stats().Takeovers.Load())
}

// A client that reads the run of its takeover once more must not take it over again.
func TestControl_RepeatedBehindARewind_IsDoneAgain(t *testing.T) {
	t.Parallel()
	answer := func(payload string) schema.InputRequest {
		return schema.InputRequest{InterruptID: "q", RequestID: "click-1", Payload: jsontext.Value(payload), By: "ann"}
	}
	for name, c := range map[string]struct {
		verb    string
		request any
		prepare func(*serviceWorld, *writer)
		done    func(*schema.Head) bool
	}{
		"input": {schema.VerbInput, answer(`"red"`), func(_ *serviceWorld, x *writer) { x.wait("q", "") }, func(h *schema.Head) bool { return len(h.Interrupts) == 0 }},
		"cancel": {
			schema.VerbCancel, schema.CancelRequest{RequestID: "click-1", By: "ann"}, func(*serviceWorld, *writer) {}, func(h *schema.Head) bool { return h.CancelRequested },
		},
		"settle": {
			schema.VerbSettle, schema.SettleRequest{
				CallKey: schema.CallKey{Turn: 2, ToolCallID: "c9", Occurrence: 1}, How: schema.SettledAbandoned, RequestID: "click-1", By: "ann",
			}, func(w *serviceWorld, x *writer) {
				x.openCall("c9", schema.ReplayHold)
				reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: "r", View: schema.ViewHead})
				x.resume(reply, "executor-1")
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
			state := func() *schema.Head {
				reply, _ := w.get("run-1", schema.ViewHead)
				return &reply.Head
			}
			at := fmt.Sprintf("record:%d", state().Records)
			for round := range 3 {
				require.False(t, c.done(state()), "round %d", round)
				_, err := w.ask(c.verb, "run-1", c.request)
				require.NoError(t, err, "round %d", round)
				require.True(t, c.done(state()), "round %d", round)
				records := state().Records
				_, err = w.ask(c.verb, "run-1", c.request)
				require.NoError(t, err, "round %d", round)
				require.Equal(t, records, state().Records, "a repeat writes nothing")
				// If the rewind's point is after the answer, the answer counts.
				w.recover("run-1", schema.RecoverRequest{
					Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: fmt.Sprint("keep", round), At: fmt.Sprintf("record:%d", records), View: schema.ViewHead,
				})
				if name != "cancel" { // a rewind ends the request to cancel
					records = state().Records
					_, err = w.ask(c.verb, "run-1", c.request)
					require.NoError(t, err, "round %d", round)
					require.Equal(t, records, state().Records, "it is done already")
				}
				w.recover("run-1", schema.RecoverRequest{
					Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: fmt.Sprint("back", round), At: at, View: schema.ViewHead,
				})
			}
		})
	}
}

// A request id stands for one answer, and for one settlement.
func TestControl_RequestIDWithAnotherAnswer_IsRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.wait("q", "")
	req := schema.InputRequest{InterruptID: "q", RequestID: "click-1", Payload: jsontext.Value(`{"n":1.0}`), By: "ann"}
	require.False(t, w.control(schema.VerbInput, "run-1", req).Already)
	same := req
	same.Payload = jsontext.Value(`{ "n":1 }`)
	require.True(t, w.control(schema.VerbInput, "run-1", same).Already)
	other := req
	other.Payload = jsontext.Value(`{"n":2}`)
	e := w.refused(schema.VerbInput, "run-1", other)
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, `request_id "click-1" gave another answer to "q" of run run-1 already`)
	other = req
	other.Status, other.Payload = schema.InputCancelled, nil
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbInput, "run-1", other).Code)

	y := w.writer("run-2")
	y.Start()
	y.openCall("c9", schema.ReplayHold)
	reply, _ := w.recover("run-2", schema.RecoverRequest{Executor: "executor-1", RequestID: "r", View: schema.ViewHead})
	require.Len(t, reply.InDoubt, 1)
	settle := schema.SettleRequest{CallKey: reply.InDoubt[0].CallKey, How: schema.SettledVerified, Result: jsontext.Value(`1`), RequestID: "click-2", By: "ann"}
	_, err := w.ask(schema.VerbSettle, "run-2", settle)
	require.NoError(t, err)
	_, err = w.ask(schema.VerbSettle, "run-2", settle)
	require.NoError(t, err)
	settle.Result = jsontext.Value(`2`)
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbSettle, "run-2", settle).Code)
}
