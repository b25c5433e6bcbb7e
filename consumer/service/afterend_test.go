package service_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/schema"
)

func TestSettle_EndedRun_TakesEachWordButRerun(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for _, doubt := range []bool{true, false} {
		for _, how := range []schema.Settlement{schema.SettledDecided, schema.SettledVerified, schema.SettledAdopted, schema.SettledAbandoned} {
			id := fmt.Sprintf("run-%s-%v", how, doubt)
			x := w.aRun(id, 1, 10)
			x.openCall("call-x", schema.ReplayHold)
			if doubt {
				taken, _ := w.recover(id, takeover("executor-2", "req-1"))
				x.resume(taken, "executor-2")
			}
			x.Publish(&schema.RunEndedData{Status: "cancelled"}, 0)
			req := schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledRerun, By: "alice", CallEpoch: 1}
			e := w.refused(schema.VerbSettle, id, req)
			require.Equal(t, schema.CodeRunEnded, e.Code)
			require.Contains(t, e.Hint, "reopen")
			req.How = how
			if how != schema.SettledAbandoned {
				req.Result = []byte(`"sent"`)
			}
			settled := w.control(schema.VerbSettle, id, req)
			got, _ := w.get(id, schema.ViewState)
			require.Empty(t, got.Head.OpenCalls)
			require.Equal(t, schema.StatusCancelled, got.Head.Status)
			require.Equal(t, settled.EventID, got.Head.Position.ID)
			require.Zero(t, got.Head.Counts.DeadLetters)
			require.Empty(t, got.Head.HeldCalls())
			if how != schema.SettledAbandoned {
				require.JSONEq(t, `"sent"`, string(got.State.Calls[1].Result))
			}
			require.Equal(t, repeated(settled), w.control(schema.VerbSettle, id, req), "settled once")
		}
	}
}

// runStates are the states of a run when a request arrives. Each has a call in doubt, two open hand-offs of which one
// was accepted, and the maximum of marks.
var runStates = map[string]func(x *writer){
	"running": func(*writer) {},
	"waiting": func(x *writer) { x.wait("w1", "") },
	"in doubt": func(x *writer) {
		x.Publish(&schema.RunWaitingData{InterruptID: "w1", Reason: schema.WaitToolInDoubt, ToolCallID: "call-x"}, 2)
	},
	"unattended": func(x *writer) {
		x.wait("w1", "")
		x.Publish(&schema.RunInterruptedData{Reason: "waiting"}, 0)
	},
	"interrupted": func(x *writer) { x.Publish(&schema.RunInterruptedData{}, 0) },
	"completed":   func(x *writer) { x.Publish(&schema.RunEndedData{Status: "completed"}, 0) },
	"failed":      func(x *writer) { x.Publish(&schema.RunEndedData{Status: "failed"}, 0) },
	"cancelled": func(x *writer) {
		x.wait("w1", "")
		x.Publish(&schema.RunEndedData{Status: "cancelled"}, 0)
	},
}

// controlRequests are one of each kind that writes a control event, or is refused.
func controlRequests(hash string) map[string]struct {
	verb string
	req  any
} {
	type request = struct {
		verb string
		req  any
	}
	all := map[string]request{
		"cancel":          {schema.VerbCancel, schema.CancelRequest{By: "alice"}},
		"input":           {schema.VerbInput, schema.InputRequest{InterruptID: "w1", Payload: []byte(`{}`), By: "alice"}},
		"input cancelled": {schema.VerbInput, schema.InputRequest{InterruptID: "w1", Status: schema.InputCancelled, By: "alice"}},
		"mark":            {schema.VerbMark, schema.MarkRequest{Name: "another", By: "alice"}},
		"signal":          {schema.VerbSignal, signal("s1", "1")},
		"mark moved":      {schema.VerbMark, schema.MarkRequest{Name: "mark-1", By: "alice", Move: true}},
		"accept":          {schema.VerbHandoff, accept(hash, "run-2")},
	}
	for _, id := range []string{"h1", "h2", "h9"} {
		for _, action := range []string{schema.HandoffDecline, schema.HandoffClose} {
			all[action+" "+id] = request{schema.VerbHandoff, schema.HandoffRequest{HandoffID: id, Action: action, By: "executor-2", ChildRun: "run-2"}}
		}
	}
	for _, how := range []schema.Settlement{
		schema.SettledRerun, schema.SettledDecided, schema.SettledVerified, schema.SettledAdopted, schema.SettledAbandoned,
	} {
		req := schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: how, By: "alice"}
		if how == schema.SettledDecided || how == schema.SettledVerified {
			req.Result = []byte(`1`)
		}
		all["settle "+string(how)] = request{schema.VerbSettle, req}
	}
	for _, reason := range []string{schema.TakeoverClaim, schema.TakeoverRequest, schema.TakeoverRestart, schema.TakeoverInput, schema.TakeoverReopen} {
		all["recover "+reason] = request{schema.VerbRecover, schema.RecoverRequest{Executor: "executor-3", RequestID: "r-1", Reason: reason, View: schema.ViewHead}}
	}
	return all
}

func TestControlVerbs_EachStateOfARun_EndAtOnceAndWriteNothingThatTheFoldRefuses(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	states := slices.Sorted(maps.Keys(runStates))
	if testing.Short() {
		states = states[:2]
		t.Log("short: 2 of the states")
	}
	for _, state := range states {
		enter := runStates[state]
		for name := range controlRequests("") {
			id := strings.ReplaceAll(state+"-"+name, " ", "-")
			x := w.aRun(id, 1, 0)
			x.openCall("call-x", schema.ReplayHold)
			taken, _ := w.recover(id, takeover("executor-2", "req-1"))
			x.resume(taken, "executor-2")
			for _, offer := range []string{"h1", "h2"} {
				x.Publish(&schema.HandoffOfferedData{HandoffID: offer, Reason: "error"}, 0)
			}
			taking := schema.HandoffRequest{HandoffID: "h2", Action: schema.HandoffAccept, By: "executor-9", ChildRun: "run-9"}
			got, _ := w.get(id, schema.ViewHead)
			hash := got.Head.Handoffs[0].OfferHash
			taking.OfferHash = got.Head.Handoffs[1].OfferHash
			x.Last = uint64(w.control(schema.VerbHandoff, id, taking).Stream)
			x.Publish(&schema.CheckpointMarkedData{Name: "mark-1"}, 0)
			enter(x)
			before, _ := w.get(id, schema.ViewHead)
			request := controlRequests(hash)[name]
			_, err := w.ask(request.verb, id, request.req)
			after, _ := w.get(id, schema.ViewHead)
			require.Zero(t, after.Head.Counts.DeadLetters, "%s of a run that is %s: %v", name, state, err)
			if err == nil {
				continue
			}
			refused := new(schema.ServiceError)
			require.ErrorAs(t, err, &refused)
			require.Contains(t, []int{404, 409}, refused.Code.HTTPStatus(), "%s of a run that is %s: %s", name, state, refused.Message)
			require.Equal(t, before.Head.Position, after.Head.Position, "a refused request writes nothing")
		}
	}
}

func TestControl_FoldRefusesTheEvent_AnswersWithTheReasonAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.Publish(&schema.RunEndedData{Status: "failed"}, 0)
	before, _ := w.get("run-1", schema.ViewHead)
	for _, c := range []struct {
		data schema.Data
		code schema.Code
		says string
	}{
		{&schema.RunCancelRequestedData{By: "alice"}, schema.CodeRunEnded, "run_ended: the run is failed"},
		{&schema.RunInputData{InterruptID: "w9", Status: schema.InputCancelled}, schema.CodeRunEnded, "run.input"},
		{&schema.ToolSettledData{ToolCallID: "c9", How: schema.SettledAbandoned}, schema.CodeNotInDoubt, "unknown_call"},
		{&schema.HandoffClosedData{HandoffID: "h9", By: "alice"}, schema.CodeUnknownHandoff, "h9"},
	} {
		err := service.Write(t.Context(), w.svc, "run-1", c.data)
		refused := new(schema.ServiceError)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, c.code, refused.Code)
		require.Contains(t, refused.Message, c.says)
		after, _ := w.get("run-1", schema.ViewHead)
		require.Equal(t, before.Head, after.Head)
		// An event that is stored although the fold refuses it is not written again.
		err = service.Advance(t.Context(), w.svc, "run-1", c.data)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, c.code, refused.Code)
		before, _ = w.get("run-1", schema.ViewHead)
		require.Equal(t, after.Head.Counts.DeadLetters+1, before.Head.Counts.DeadLetters)
	}
}
