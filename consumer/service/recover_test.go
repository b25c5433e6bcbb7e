package service_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// openCall publishes a turn that is in the middle of a call.
func (x *writer) openCall(id string, replay schema.Replay) {
	x.World.TB.Helper()
	x.Turn++
	x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
	x.Publish(&schema.ToolCalledData{ToolCallID: id, Name: "send", Replay: replay}, x.Turn)
}

// resume makes the writer the executor that a takeover was given to.
func (x *writer) resume(r *schema.RecoverReply, executor string) {
	x.Run = schema.Writer{Fleet: "default", Run: x.Run.Run, Executor: executor, Epoch: r.Epoch, Last: r.NextSequence - 1}
	x.Last = uint64(r.LastStream)
}

func TestTakeover_RunningRun_FencesOldExecutor(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 2, 10)
	x.openCall("call-x", schema.ReplayHold)
	old := *x
	reply, a := w.recover("run-1", takeover("executor-2", "req-1"))
	require.Equal(t, []string{schema.KindAnswer, schema.KindEnd}, a.kinds)
	require.EqualValues(t, 2, reply.Epoch)
	require.EqualValues(t, 1, reply.NextSequence)
	require.Equal(t, "executor-2", reply.Head.Executor)
	require.True(t, reply.Complete)
	require.Len(t, reply.InDoubt, 1)
	require.Equal(t, schema.CallHeld, reply.InDoubt[0].State)

	e, err := old.Run.Event(&schema.TurnEndedData{Turn: old.Turn}, old.Turn, time.Unix(1, 0), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	_, err = w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: header, Data: body},
		jetstream.WithExpectLastSequencePerSubject(old.Last))
	require.ErrorContains(t, err, "wrong last sequence")

	x.resume(reply, "executor-2")
	x.Publish(&schema.ToolSettledData{ToolCallID: "call-x", How: schema.SettledAbandoned, By: "executor-2"}, x.Turn)
	x.Publish(&schema.TurnEndedData{Turn: x.Turn}, x.Turn)
	got, _ := w.get("run-1", schema.ViewHead)
	require.Empty(t, got.Head.OpenCalls)
	require.EqualValues(t, 2, got.Head.Sequence)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

func TestTakeover_Views_EndAtTakeover(t *testing.T) {
	t.Parallel()
	for _, view := range []string{schema.ViewEvents, schema.ViewState} {
		t.Run(view, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 10, 100)
			w.checkpointAt(x, 30, w.sealByHand(x, 24, 8, true))
			req := takeover("executor-2", "req-1")
			req.View = view
			reply, a := w.recover("run-1", req)
			require.True(t, reply.Complete)
			var takeovers []schema.RunResumedData
			if reply.State != nil {
				takeovers = reply.State.Takeovers
			} else {
				state := a.fold(t, "run-1")
				require.Equal(t, reply.Head, state.Head)
				takeovers = state.Takeovers
			}
			require.Len(t, takeovers, 1)
			require.Equal(t, "req-1", takeovers[0].RequestID)
		})
	}
}

func TestTakeover_Repeated_ContinuesOnlyCurrentEpoch(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	first, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	again, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.Equal(t, first, again)
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())

	x.resume(first, "executor-2")
	x.TurnOf(10)
	again, _ = w.recover("run-1", takeover("executor-2", "req-1"))
	require.EqualValues(t, 2, again.Epoch)
	require.EqualValues(t, 5, again.NextSequence, "behind what was written since")

	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbRecover, "run-1", takeover("executor-3", "req-1")).Code)

	other, _ := w.recover("run-1", takeover("executor-3", "req-2"))
	require.EqualValues(t, 3, other.Epoch)
	later, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.EqualValues(t, 4, later.Epoch, "an epoch that is over is not continued")
}

func TestTakeover_Invalid_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("running", 1, 10)
	ended := w.aRun("ended", 1, 10)
	ended.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	interrupted := w.aRun("interrupted", 1, 10)
	interrupted.Publish(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
	_, err := w.JS.Publish(t.Context(), w.Names.EventSubject("garbage"), []byte("no event"))
	require.NoError(t, err)

	req := func(change func(*schema.RecoverRequest)) schema.RecoverRequest {
		r := takeover("executor-2", "req-1")
		change(&r)
		return r
	}
	for _, c := range []struct {
		name, run string
		req       any
		code      schema.Code
		says      string
	}{
		{"run that does not exist", "unknown", takeover("executor-2", "req-1"), schema.CodeNotFound, "unknown"},
		{"run of which nothing was accepted", "garbage", takeover("executor-2", "req-1"), schema.CodeNotFound, "accepted"},
		{"run that has ended", "ended", takeover("executor-2", "req-1"), schema.CodeRunEnded, "completed"},
		{"wrong agent", "running", req(func(r *schema.RecoverRequest) { r.Agent = "other" }), schema.CodeWrongAgent, "agent-1"},
		{"claim of a run that is at work", "running", req(func(r *schema.RecoverRequest) { r.Reason = "claim" }), schema.CodeConflict, "executor-1"},
		{"no executor", "running", req(func(r *schema.RecoverRequest) { r.Executor = "" }), schema.CodeBadRequest, "/executor"},
		{"executor outside the grammar", "running", req(func(r *schema.RecoverRequest) { r.Executor = "a.b" }), schema.CodeBadRequest, "/executor"},
		{"agent outside the grammar", "running", req(func(r *schema.RecoverRequest) { r.Agent = "a b" }), schema.CodeBadRequest, "/agent"},
		{"no request id", "running", req(func(r *schema.RecoverRequest) { r.RequestID = "" }), schema.CodeBadRequest, "/request_id"},
		{"unknown reason", "running", req(func(r *schema.RecoverRequest) { r.Reason = "fun" }), schema.CodeBadRequest, "/reason"},
		{"unknown view", "running", req(func(r *schema.RecoverRequest) { r.View = "all" }), schema.CodeBadRequest, "/view"},
		{"point without a rewind", "running", req(func(r *schema.RecoverRequest) { r.At = "turn:1" }), schema.CodeBadRequest, "/at"},
		{"no JSON", "running", []byte("{"), schema.CodeBadRequest, "request at"},
		{"wrong type", "running", []byte(`{"executor":[1]}`), schema.CodeBadRequest, "/executor"},
		{"duplicate name", "running", []byte(`{"executor":"a","executor":"b"}`), schema.CodeBadRequest, "executor"},
		{"invalid UTF-8", "running", []byte("{\"executor\":\"\xff\"}"), schema.CodeBadRequest, "/executor"},
		{"deep JSON", "running", []byte(`{"x":` + nested(20_000) + `}`), schema.CodeBadRequest, "/x"},
		{"run id outside the grammar", "_barrier", takeover("executor-2", "req-1"), schema.CodeBadRequest, "_barrier"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := w.refused(schema.VerbRecover, c.run, c.req)
			require.Equal(t, c.code, e.Code, e.Message)
			require.Contains(t, e.Message, c.says)
		})
	}
	require.Zero(t, w.svc.Stats().Takeovers.Load(), "nothing was changed")
	require.EqualValues(t, 1, w.svc.Stats().Errors()[schema.CodeRunEnded])

	reply, _ := w.recover("ended", req(func(r *schema.RecoverRequest) { r.Reason = "reopen" }))
	require.Equal(t, schema.StatusRunning, reply.Head.Status)
	reply, _ = w.recover("interrupted", req(func(r *schema.RecoverRequest) { r.Reason = "claim" }))
	require.EqualValues(t, 2, reply.Epoch)
}

func nested(n int) string {
	b := make([]byte, 2*n)
	for i := range n {
		b[i], b[2*n-1-i] = '[', ']'
	}
	return string(b)
}

// Many executors ask for one run at once, from two replicas. Each epoch has one winner, and every request gets one.
func TestTakeover_Racing_EachEpochOnce(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	second, _ := w.serve(settings, serviceConfig{Name: "service-2"})
	w.aRun("run-1", 3, 10)
	const askers = 16
	replies := make([]*schema.RecoverReply, askers)
	var wg sync.WaitGroup
	for i := range askers {
		wg.Go(func() {
			a, err := w.ask(schema.VerbRecover, "run-1", takeover(fmt.Sprintf("executor-%d", i), fmt.Sprintf("req-%d", i)))
			if err == nil {
				replies[i] = decodeAs[schema.RecoverReply](t, a.first)
			}
		})
	}
	wg.Wait()
	epochs := map[schema.Epoch]string{}
	for i, r := range replies {
		require.NotNil(t, r, "asker %d", i)
		require.Empty(t, epochs[r.Epoch], "epoch %d was won twice", r.Epoch)
		epochs[r.Epoch] = r.Head.Executor
		require.Equal(t, fmt.Sprintf("executor-%d", i), r.Head.Executor)
	}
	require.Len(t, epochs, askers)
	stats, stats2 := w.svc.Stats(), second.Stats()
	require.EqualValues(t, askers, stats.Takeovers.Load()+stats2.Takeovers.Load())
	require.Positive(t, stats.Takeovers.Load())
	require.Positive(t, stats2.Takeovers.Load(), "both replicas answer")

	reply, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, askers+1, reply.Head.Epoch)
	require.EqualValues(t, askers, reply.Head.Counts.Resumes)
	require.Zero(t, reply.Head.Counts.DeadLetters, "no takeover was published that the fold refuses")
}

func TestTakeover_RepeatedConcurrently_OneEpoch(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 3, 10)
	var wg sync.WaitGroup
	replies := make([]*schema.RecoverReply, 8)
	for i := range replies {
		wg.Go(func() {
			if a, err := w.ask(schema.VerbRecover, "run-1", takeover("executor-2", "req-1")); err == nil {
				replies[i] = decodeAs[schema.RecoverReply](t, a.first)
			}
		})
	}
	wg.Wait()
	for _, r := range replies {
		require.NotNil(t, r)
		require.Equal(t, replies[0], r)
	}
	require.EqualValues(t, 2, replies[0].Epoch)
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())
}

func TestFullFleet_Takeover_ReadAndSettleWork(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) {
		f.QuotaBytes, f.ReserveBytes = kvstore.MinQuotaBytes, 1<<20
	})
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	fill := func() {
		t.Helper()
		for size := 256 << 10; size > 0; size /= 2 {
			for {
				if _, err := w.JS.Publish(t.Context(), w.Names.EventSubject("filler"), make([]byte, size)); err != nil {
					require.ErrorContains(t, err, "maximum bytes exceeded")
					break
				}
			}
		}
	}
	fill()
	got, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), got.Head)
	fill()
	reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.EqualValues(t, 2, reply.Epoch)
	fill()
	_, err := w.ask(schema.VerbSettle, "run-1", schema.SettleRequest{
		CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledAbandoned, By: "alice",
	})
	require.NoError(t, err)
}

func TestSettle_ByOperator_Recorded(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	req := schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledDecided, Result: []byte(`"sent"`), By: "alice", CallEpoch: 1}

	e := w.refused(schema.VerbSettle, "run-1", req)
	require.Equal(t, schema.CodeNotInDoubt, e.Code, "the executor is still at it")
	x.Publish(&schema.RunInterruptedData{Reason: schema.InterruptedShutdown}, 0)
	e = w.refused(schema.VerbSettle, "run-1", req)
	require.Equal(t, schema.CodeNotInDoubt, e.Code)
	require.Contains(t, e.Message, "its executor is gone")
	require.Contains(t, e.Hint, "waymark settle opens the next epoch first")
	w.recover("run-1", takeover("executor-2", "req-1"))

	bad := req
	bad.How = "somehow"
	require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbSettle, "run-1", bad).Code)
	bad = req
	bad.By = "not a name"
	require.Contains(t, w.refused(schema.VerbSettle, "run-1", bad).Message, "/by")
	bad = req
	bad.How, bad.Result = schema.SettledAdopted, nil
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbSettle, "run-1", bad).Code)
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbSettle, "unknown", req).Code)

	a, err := w.ask(schema.VerbSettle, "run-1", req)
	require.NoError(t, err)
	settled := decodeAs[schema.ControlReply](t, a.first)
	got, _ := w.get("run-1", schema.ViewState)
	require.Empty(t, got.Head.OpenCalls)
	require.Equal(t, settled.EventID, got.Head.Position.ID)
	require.Equal(t, settled.Stream, got.Head.Position.Stream)
	require.JSONEq(t, `"sent"`, string(got.State.Calls[1].Result))

	require.Equal(t, repeated(settled), w.control(schema.VerbSettle, "run-1", req), "settled once")
	for _, other := range []func(*schema.SettleRequest){
		func(r *schema.SettleRequest) { r.By = "bob" },
		func(r *schema.SettleRequest) { r.Result = value(`"lost"`) },
		func(r *schema.SettleRequest) { r.How, r.Result = schema.SettledAbandoned, nil },
	} {
		again := req
		other(&again)
		e := w.refused(schema.VerbSettle, "run-1", again)
		require.Equal(t, schema.CodeNotInDoubt, e.Code)
		require.Contains(t, e.Message, "call call-x of turn 2 of run run-1 was settled already, as decided by alice")
	}
}

// The first try may be read long after the second was answered, when the call is in doubt again: one decision of a
// person must not rerun the call twice.
func TestSettle_Repeated_OneEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	taken, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	req := schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledRerun, By: "alice", CallEpoch: 1}
	settled := w.control(schema.VerbSettle, "run-1", req)
	require.Equal(t, repeated(settled), w.control(schema.VerbSettle, "run-1", req))
	x.resume(taken, "executor-2")
	x.Last = uint64(settled.Stream)
	x.Publish(&schema.ToolCalledData{ToolCallID: "call-x", Name: "send"}, 2)
	w.recover("run-1", takeover("executor-3", "req-2"))
	require.Equal(t, repeated(settled), w.control(schema.VerbSettle, "run-1", req))
	got, _ := w.get("run-1", schema.ViewHead)
	require.Len(t, got.Head.InDoubt(), 1)
	require.EqualValues(t, 1, got.Head.Counts.Settled)
	req.CallEpoch = 0
	require.Contains(t, w.badly(schema.VerbSettle, "run-1", req).Message, "/call_epoch: is required: the epoch of the attempt that was seen; the present one is 2")
	req.CallEpoch = 2
	require.NotEqual(t, settled, w.control(schema.VerbSettle, "run-1", req), "the second attempt is settled, too")
}

func TestSettle_Racing_OneEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	w.recover("run-1", takeover("executor-2", "req-1"))
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = w.ask(schema.VerbSettle, "run-1", schema.SettleRequest{
				CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledAbandoned, By: fmt.Sprintf("operator-%d", i), CallEpoch: 1,
			})
		})
	}
	wg.Wait()
	requireOneWon(t, errs, schema.CodeNotInDoubt)
	got, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, 1, got.Head.Counts.Settled)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

func TestTakeover_PoisonedRun_Succeeds(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	for _, header := range []nats.Header{nil, {"ce-specversion": {"9"}}, {"Status": {"204"}, "Description": {"EOB"}}, {"Nats-Sequence": {"1"}}} {
		_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: header, Data: []byte("poison")})
		require.NoError(t, err)
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, 4, got.Head.Counts.DeadLetters)
	require.Equal(t, x.Model().Digest, got.Head.Digest)
	reply, a := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "req-1", View: schema.ViewEvents})
	require.EqualValues(t, 2, reply.Epoch)
	require.True(t, reply.Complete)
	require.Equal(t, reply.Head, a.fold(t, "run-1").Head)
}
