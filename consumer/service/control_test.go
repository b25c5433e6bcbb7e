package service_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestCancel_Repeated_OneEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	req := schema.CancelRequest{By: "alice", Reason: "too dear"}
	first := w.control(schema.VerbCancel, "run-1", req)
	got, _ := w.get("run-1", schema.ViewHead)
	require.True(t, got.Head.CancelRequested)
	require.Equal(t, schema.Position{Stream: first.Stream, ID: first.EventID}, got.Head.Position)
	x.Last = uint64(first.Stream)
	x.TurnOf(10)
	require.Equal(t, repeated(first), w.control(schema.VerbCancel, "run-1", req))
	require.Equal(t, repeated(first), w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "bob"}), "asked for is asked for")
	require.EqualValues(t, 3, w.svc.Stats().Cancels.Load())

	require.Contains(t, w.refused(schema.VerbCancel, "run-1", schema.CancelRequest{}).Message, "/by")
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbCancel, "unknown", req).Code)
	ended := w.aRun("ended", 1, 10)
	ended.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	require.Equal(t, schema.CodeRunEnded, w.refused(schema.VerbCancel, "ended", req).Code)
	before, _ := w.get("ended", schema.ViewHead)
	require.False(t, before.Head.CancelRequested)
}

func TestCancel_Racing_OneEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	var wg sync.WaitGroup
	replies := make([]*schema.ControlReply, 8)
	for i := range replies {
		wg.Go(func() {
			replies[i] = w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: fmt.Sprintf("operator-%d", i)})
		})
	}
	wg.Wait()
	for _, r := range replies {
		require.Equal(t, repeated(replies[0]), repeated(r))
	}
}

// offer publishes a hand-off and returns its hash.
func (x *writer) offer(id, reason string) string {
	x.World.TB.Helper()
	x.Publish(&schema.HandoffOfferedData{
		HandoffID: id, Kind: schema.HandoffTransfer, Reason: reason, NextAgent: "agent-2",
		Remaining: []schema.HandoffRemaining{{Description: "the rest"}},
	}, 0)
	head := x.Model()
	for _, o := range head.Handoffs {
		if o.HandoffID == id {
			return o.OfferHash
		}
	}
	require.FailNow(x.World.TB, "the offer is not open", id)
	return ""
}

func accept(hash, child string) schema.HandoffRequest {
	return schema.HandoffRequest{HandoffID: "h1", Action: schema.HandoffAccept, By: "executor-2", ChildRun: child, OfferHash: hash}
}

func TestHandoff_AfterRunEnds_StillTransactional(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended %v", ended), func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 1, 10)
			hash := x.offer("h1", "task_complete")
			if ended {
				x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
			}
			first := w.control(schema.VerbHandoff, "run-1", accept(hash, "run-2"))
			got, _ := w.get("run-1", schema.ViewHead)
			require.Equal(t, schema.HandoffStatusAccepted, got.Head.Handoffs[0].Status)
			require.Equal(t, "run-2", got.Head.Handoffs[0].ChildRun)
			require.Equal(t, repeated(first), w.control(schema.VerbHandoff, "run-1", accept(hash, "run-2")), "once more is the same")

			closing := schema.HandoffRequest{HandoffID: "h1", Action: schema.HandoffClose, By: "executor-2", ChildRun: "run-2"}
			closed := w.control(schema.VerbHandoff, "run-1", closing)
			require.Equal(t, repeated(closed), w.control(schema.VerbHandoff, "run-1", closing))
			got, _ = w.get("run-1", schema.ViewHead)
			require.Empty(t, got.Head.Handoffs)
			require.Zero(t, got.Head.Counts.DeadLetters)
			require.Equal(t, schema.CodeUnknownHandoff, w.refused(schema.VerbHandoff, "run-1", accept(hash, "run-2")).Code, "a closed one is not accepted again")
		})
	}
}

func TestHandoff_Declined_IsClosed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	hash := x.offer("h1", "error")
	req := schema.HandoffRequest{HandoffID: "h1", Action: schema.HandoffDecline, By: "executor-2", Reason: "no room"}
	declined := w.control(schema.VerbHandoff, "run-1", req)
	require.Equal(t, repeated(declined), w.control(schema.VerbHandoff, "run-1", req))
	other := req
	other.By = "executor-3"
	require.Equal(t, schema.CodeUnknownHandoff, w.refused(schema.VerbHandoff, "run-1", other).Code)
	require.Equal(t, schema.CodeUnknownHandoff, w.refused(schema.VerbHandoff, "run-1", accept(hash, "run-2")).Code)
}

func TestHandoff_Invalid_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	hash := x.offer("h1", "task_complete")
	other := x.offer("h2", "error")
	change := func(f func(*schema.HandoffRequest)) schema.HandoffRequest {
		r := accept(hash, "run-2")
		f(&r)
		return r
	}
	for _, c := range []struct {
		name, run string
		req       schema.HandoffRequest
		code      schema.Code
		says      string
	}{
		{"a hand-off that the run does not have", "run-1", change(func(r *schema.HandoffRequest) { r.HandoffID = "h9" }), schema.CodeUnknownHandoff, `"h1" (offered)`},
		{"a run that does not exist", "unknown", accept(hash, "run-2"), schema.CodeNotFound, "unknown"},
		{"another offer than the one that was read", "run-1", accept(other, "run-2"), schema.CodeHandoffTaken, hash},
		{"no child", "run-1", accept(hash, ""), schema.CodeBadRequest, "/child_run"},
		{"the run itself as its child", "run-1", accept(hash, "run-1"), schema.CodeBadRequest, "/child_run"},
		{"no hash", "run-1", accept("", "run-2"), schema.CodeBadRequest, "/offer_hash"},
		{"a hash in other letters", "run-1", accept(strings.ToUpper(hash), "run-2"), schema.CodeBadRequest, "/offer_hash"},
		{"half a hash", "run-1", accept(hash[:10], "run-2"), schema.CodeBadRequest, "/offer_hash"},
		{"no hand-off", "run-1", change(func(r *schema.HandoffRequest) { r.HandoffID = "" }), schema.CodeBadRequest, "/handoff_id"},
		{"unknown", "run-1", change(func(r *schema.HandoffRequest) { r.By = "" }), schema.CodeBadRequest, "/by"},
		{"no action", "run-1", change(func(r *schema.HandoffRequest) { r.Action = "" }), schema.CodeBadRequest, "/action"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := w.refused(schema.VerbHandoff, c.run, c.req)
			require.Equal(t, c.code, e.Code, e.Message)
			require.Contains(t, e.Message, c.says)
		})
	}
	w.control(schema.VerbHandoff, "run-1", accept(hash, "run-2"))
	for name, req := range map[string]schema.HandoffRequest{
		"another child": accept(hash, "run-3"),
		"another taker": change(func(r *schema.HandoffRequest) { r.By = "executor-3" }),
		"declined":      change(func(r *schema.HandoffRequest) { r.Action = schema.HandoffDecline }),
	} {
		e := w.refused(schema.VerbHandoff, "run-1", req)
		require.Equal(t, schema.CodeHandoffTaken, e.Code, name)
		require.Contains(t, e.Message, "executor-2")
		require.JSONEq(t, `{"by":"executor-2","child_run":"run-2"}`, string(e.Details))
	}
}

func TestHandoff_ManyTakers_OneGetsIt(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	hash := x.offer("h1", "task_complete")
	x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	const takers = 8
	errs := make([]error, takers)
	var wg sync.WaitGroup
	for i := range takers {
		wg.Go(func() {
			req := accept(hash, fmt.Sprintf("child-%d", i))
			req.By = fmt.Sprintf("executor-%d", i)
			_, errs[i] = w.ask(schema.VerbHandoff, "run-1", req)
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err == nil {
			require.Negative(t, won, "two takers")
			won = i
		}
	}
	require.GreaterOrEqual(t, won, 0)
	for i, err := range errs {
		if i == won {
			continue
		}
		e := new(schema.ServiceError)
		require.ErrorAs(t, err, &e)
		require.Equal(t, schema.CodeHandoffTaken, e.Code)
		require.Contains(t, string(e.Details), fmt.Sprintf("child-%d", won))
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.Zero(t, got.Head.Counts.DeadLetters)
}
