package service_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// forkAt begins a run whose base is the writer's first n events.
func (w *serviceWorld) forkAt(x *writer, id string, n int) *writer {
	w.TB.Helper()
	head := schema.NewHead("default", x.Run.Run)
	for i := range n {
		head.Apply(schema.NoKeys, &x.Acked[i])
	}
	f := w.writer(id)
	f.Turn = head.Turn
	f.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", ResumedFrom: x.Run.Run, Base: schema.BaseOf(schema.Point{}, int64(n), &head)}, 0)
	return f
}

func (w *serviceWorld) stateOf(run, at string) *schema.State {
	w.TB.Helper()
	reply, _ := w.at(run, schema.ViewState, at)
	return reply.State
}

func TestFork_OfAFork_StateWhole(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	fork := w.forkAt(x, "fork", 13) // within a segment, after turn 3
	fork.TurnOf(20)
	second := w.forkAt(fork, "second", len(fork.Acked))
	x.TurnOf(10) // the origin continues
	second.TurnOf(30)

	for run, turns := range map[string]int{"run-1": 11, "fork": 4, "second": 5} {
		reply, _ := w.get(run, schema.ViewState)
		require.True(t, reply.Complete, run)
		require.Len(t, reply.State.Calls, turns, run)
		require.Len(t, reply.State.Turns, turns, run)
	}
	require.Len(t, w.stateOf("second", "seq:1").Calls, 4, "a point of the fork has its base, too")
	v := w.verify("second")
	require.Empty(t, v.Findings)
	require.Nil(t, w.verifyBases(v.Base))
	other := *v.Base
	other.Digest = v.Digest
	require.Equal(t, verify.InBase, w.verifyBases(&other).In)
	w.deleteMsg(x.Acked[35].Stream)
	require.Nil(t, w.verifyBases(v.Base), "it is behind the point")
	w.LoseSegment("run-1", 1)
	require.Contains(t, w.verifyBases(v.Base).Problem, "run run-1 had digest", "below the base")
	require.Contains(t, w.refused(schema.VerbRecover, "second", schema.RecoverRequest{Executor: "executor-3", RequestID: "r3", View: schema.ViewEvents}).Message,
		"run fork is a fork of run run-1")
	before, _ := w.get("second", schema.ViewHead)
	require.EqualValues(t, 1, before.Head.Epoch, "a request that cannot read it must not take it over")
	reply, _ := w.recover("second", schema.RecoverRequest{Executor: "executor-3", RequestID: "r3", View: schema.ViewHead})
	require.EqualValues(t, 2, reply.Epoch, "a request for the head alone needs no base")
}

// verifyBases verifies the base of a fork.
func (w *serviceWorld) verifyBases(base *schema.BaseRef) *verify.Finding {
	w.TB.Helper()
	f, err := verify.Bases(w.TB.Context(), w.JS, "default", base, func(string) (*kvstore.Shard, error) { return w.Shard, nil })
	require.NoError(w.TB, err)
	return f
}

// again publishes an unchanged message once more: a plain executor that uses no message ids.
func (x *writer) again(rec *schema.Record) {
	x.World.TB.Helper()
	ack, err := x.World.JS.PublishMsg(x.World.TB.Context(), &nats.Msg{Subject: x.World.Names.EventSubject(x.Run.Run), Header: rec.Header, Data: rec.Body})
	require.NoError(x.World.TB, err)
	x.Last = ack.Sequence
	x.Acked = append(x.Acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), rec.Header, rec.Body))
}

func TestFork_BaseWithDuplicateMessage_Whole(t *testing.T) {
	t.Parallel()
	garbage := schema.NewRecord(0, nil, []byte("garbage"))
	for name, twice := range map[string]func(x *writer){
		"an event": func(x *writer) { x.again(&x.Acked[len(x.Acked)-1]) },
		"garbage": func(x *writer) {
			x.again(&garbage)
			x.TurnOf(10)
			x.again(&garbage)
		},
	} {
		for _, sealed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sealed: %v", name, sealed), func(t *testing.T) {
				t.Parallel()
				w := newServiceWorld(t)
				x := w.aRun("run-1", 3, 10)
				twice(x)
				n := len(x.Acked)
				fork := w.forkAt(x, "fork", n)
				fork.TurnOf(20)
				x.TurnOf(10)
				if sealed {
					w.sealByHand(x, n, 5, false)
				}
				reply, _ := w.get("fork", schema.ViewState)
				require.True(t, reply.Complete)
				require.Len(t, reply.State.Calls, int(reply.Head.Turn))
				require.Nil(t, w.verifyBases(w.verify("fork").Base))
				w.requireFirst(x, fmt.Sprintf("record:%d", n), n)
			})
		}
	}
}

// Events sealed and purged between the reads of the segments and of the log are in neither.
func TestFork_BaseSealedDuringVerify_Whole(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	fork := w.forkAt(x, "fork", 20)
	head := fork.Model()
	var once sync.Once
	nc := w.Server.Conn(t)
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.STREAM.MSG.GET."+w.Names.EventStream() {
			once.Do(func() { w.sealByHand(x, 30, 7, true) })
		}
		natstest.Forward(nc, m, subject)
	})
	shard := w.openOn(js, "tester")
	f, err := verify.Bases(t.Context(), js, "default", head.Base, func(string) (*kvstore.Shard, error) { return shard, nil })
	require.NoError(t, err)
	require.Nil(t, f)
	_, err = w.Shard.Segments.GetFresh(t.Context(), "run-1", 5)
	require.NoError(t, err, "it was sealed during the check")
}

func TestFork_Takeover_ReadsBaseAsState(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	fork := w.forkAt(x, "fork", 13)
	fork.TurnOf(20)
	second := w.forkAt(fork, "second", len(fork.Acked))
	second.TurnOf(30)
	reply, _ := w.recover("second", schema.RecoverRequest{Executor: "executor-2", RequestID: "r", View: schema.ViewState})
	require.Len(t, reply.State.Calls, 5)
}

func TestFork_OpenQuestionOfBase_AnsweredInFork(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	w.forkAt(x, "fork", len(x.Acked))
	reply, _ := w.get("fork", schema.ViewHead)
	require.Equal(t, schema.StatusWaiting, reply.Head.Status)
	e := w.refused(schema.VerbInput, "fork", answerTo("w1", `{"ok":"perhaps"}`))
	require.Equal(t, schema.CodeInvalidAnswer, e.Code, "by the schema that the base asked with")
	w.control(schema.VerbInput, "fork", answerTo("w1", `{"ok":true}`))
	reply, _ = w.get("fork", schema.ViewHead)
	require.Equal(t, schema.StatusRunning, reply.Head.Status)
	reply, _ = w.get("run-1", schema.ViewHead)
	require.Equal(t, schema.StatusWaiting, reply.Head.Status, "the base still waits")
}

func TestFork_BaseRemoved_Reported(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	w.forkAt(x, "fork", 9)
	w.deleteMsg(x.Acked[4].Stream)
	e := w.refused(schema.VerbGet, "fork", schema.GetRequest{View: schema.ViewState})
	require.Equal(t, schema.CodeDamaged, e.Code)
	require.Contains(t, e.Message, "fork of run run-1")
	reply, _ := w.get("fork", schema.ViewHead)
	require.True(t, reply.Complete, "where it stands it says itself")
	require.Equal(t, int32(2), reply.Head.Turn)
}

// The chain of a fork can be longer than what can be read within the time of one request.
func TestRecover_ChainOfForksLongerThanARequest_LaterTryTakesItOver(t *testing.T) {
	t.Parallel()
	const forks, requestTime = 12, time.Second
	g := newGated(t, service.Config{Timeout: requestTime})
	x := g.aRun("run-0", 2, 10)
	for i := range forks {
		x = g.forkAt(x, fmt.Sprintf("run-%d", i+1), len(x.Acked))
		x.TurnOf(10)
	}
	g.arm(func(string, int) { <-time.After(requestTime / 8) })
	for try := 1; ; try++ {
		require.LessOrEqual(t, try, 10*forks, "no try goes further than the one before") // one on a busy machine may go no further
		_, err := g.ask(schema.VerbRecover, x.Run.Run, schema.RecoverRequest{Executor: "executor-2", RequestID: "r1", View: schema.ViewEvents})
		if err == nil {
			require.Greater(t, try, 1, "the chain is read within one request, and this test shows nothing")
			return
		}
		var told *schema.ServiceError
		require.ErrorAs(t, err, &told)
		require.Equal(t, schema.CodeUnavailable, told.Code, told.Message)
	}
}

func TestFork_Mark_StoredOnceAndKeptThroughRewindAndEnd(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("base")
	x.Start()
	x.TurnOf(100)
	req := schema.ForkRequest{Fork: "fork", By: "executor-1"}
	first := w.control(schema.VerbFork, "base", req)
	require.False(t, first.Already)
	require.True(t, w.control(schema.VerbFork, "base", req).Already)
	reply, _ := w.get("base", schema.ViewHead)
	require.Equal(t, []string{"fork"}, reply.Head.Forks)
	require.Empty(t, reply.Head.Marks, "it is no named point")
	to, _ := w.recover("base", schema.RecoverRequest{Executor: "executor-2", RequestID: "r1", Reason: schema.TakeoverRewind, At: "seq:1", View: schema.ViewHead})
	require.Equal(t, []string{"fork"}, to.Head.Forks, "a rewind does not take it back")
	require.Empty(t, schema.BaseOf(schema.Point{}, to.Head.Records, &to.Head).Head.Forks, "a fork does not inherit it")
	w.refusedAs(schema.CodeBadRequest, schema.VerbFork, "base", schema.ForkRequest{Fork: "base", By: "executor-1"})
	w.refusedAs(schema.CodeBadRequest, schema.VerbFork, "base", schema.ForkRequest{By: "executor-1"})
	w.refusedAs(schema.CodeNotFound, schema.VerbFork, "nothing", req)

	ended := w.writer("ended")
	ended.Start()
	ended.end(schema.StatusCompleted)
	for i := range schema.MaxForks {
		ended.Publish(&schema.CheckpointMarkedData{Name: fmt.Sprintf("fork-%d", i), Fork: true}, 0)
	}
	w.refusedAs(schema.CodeConflict, schema.VerbFork, "ended", req)
	require.True(t, w.control(schema.VerbFork, "ended", schema.ForkRequest{Fork: "fork-7", By: "executor-1"}).Already)
}
