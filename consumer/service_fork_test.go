package consumer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/schema"
)

// forkAt begins a run whose base is the writer's first n events.
func (w *serviceWorld) forkAt(x *writer, id string, n int) *writer {
	w.tb.Helper()
	head := schema.NewHead("default", x.run.Run)
	for i := range n {
		head.Apply(&x.acked[i])
	}
	f := w.writer(id)
	f.turn = head.Turn
	f.publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", ResumedFrom: x.run.Run, Base: schema.BaseOf(schema.Point{}, int64(n), &head)}, 0)
	return f
}

func (w *serviceWorld) stateOf(run, at string) *schema.State {
	w.tb.Helper()
	_, a := w.at(run, schema.ViewState, at)
	return decodeAs[schema.State](w.tb, a.state)
}

func TestTheStateOfAForkOfAForkIsWhole(t *testing.T) {
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	fork := w.forkAt(x, "fork", 13) // within a segment, behind turn 3
	fork.turnOf(20)
	second := w.forkAt(fork, "second", len(fork.acked))
	x.turnOf(10) // the origin goes on
	second.turnOf(30)

	for run, turns := range map[string]int{"run-1": 11, "fork": 4, "second": 5} {
		reply, a := w.get(run, schema.ViewState)
		require.True(t, reply.Complete, run)
		state := decodeAs[schema.State](t, a.state)
		require.Equal(t, reply.Head, state.Head, run)
		require.Len(t, state.Calls, turns, run)
		require.Len(t, state.Messages, 2*turns, run)
	}
	require.Len(t, w.stateOf("second", "seq:1").Calls, 4, "a point of the fork has its base, too")
	v := w.verify("second")
	require.Empty(t, v.Findings)
	f, err := consumer.VerifyBase(t.Context(), w.js, w.shard, "default", *v.Base)
	require.NoError(t, err)
	require.Nil(t, f)
	other := *v.Base
	other.Digest = v.Digest
	f, err = consumer.VerifyBase(t.Context(), w.js, w.shard, "default", other)
	require.NoError(t, err)
	require.Equal(t, consumer.InBase, f.In)

	a, err := w.ask(schema.VerbRecover, "second", schema.RecoverRequest{Executor: "executor-2", RequestID: "r", View: schema.ViewState})
	require.NoError(t, err)
	require.Len(t, decodeAs[schema.State](t, a.state).Calls, 5)
}

func TestAQuestionOfTheBaseIsAnsweredInTheFork(t *testing.T) {
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	w.forkAt(x, "fork", len(x.acked))
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

func TestAForkWhoseBaseIsGoneSaysSo(t *testing.T) {
	w := newDamagedWorld(t)
	x := w.aRun("run-1", 3, 10)
	w.forkAt(x, "fork", 9)
	w.deleteMsg(x.acked[4].Stream)
	e := w.refused(schema.VerbGet, "fork", schema.GetRequest{View: schema.ViewState})
	require.Equal(t, schema.CodeDamaged, e.Code)
	require.Contains(t, e.Message, "fork of run run-1")
	reply, _ := w.get("fork", schema.ViewHead)
	require.True(t, reply.Complete, "where it stands it says itself")
	require.Equal(t, int32(2), reply.Head.Turn)
}
