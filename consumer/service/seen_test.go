package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestInput_AskedAgainUnderItsID_AnswerToTheFirstQuestionIsAConflict(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	ask := func(message string) string {
		x.Publish(&schema.RunWaitingData{InterruptID: "confirm", Reason: schema.WaitHumanInput, Message: message}, 0)
		got, _ := w.get("run-1", schema.ViewHead)
		return got.Head.Interrupts[0].Position.ID
	}
	first := ask("Delete the old logs?")
	second := ask("Delete production?")
	yes := answerTo("confirm", `"yes"`)
	for _, status := range []string{schema.InputResolved, schema.InputCancelled} {
		yes.Status, yes.EventID = status, first
		refused := w.refused(schema.VerbInput, "run-1", yes)
		require.Equal(t, schema.CodeConflict, refused.Code)
		require.Contains(t, refused.Message, `"Delete production?"`, "the present question")
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.Len(t, got.Head.Interrupts, 1, "nothing was answered")
	yes.Status, yes.EventID = schema.InputResolved, second
	w.control(schema.VerbInput, "run-1", yes)
}

func TestSettle_CallRanAgainSinceItWasSeen_IsAConflict(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	x.openCall("call-y", schema.ReplayHold)
	taken, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	seen := func() schema.Epoch {
		got, _ := w.get("run-1", schema.ViewHead)
		return got.Head.OpenCalls[0].Epoch
	}
	settle := func(id string, seen schema.Epoch, by string) schema.SettleRequest {
		turn := map[string]int32{"call-x": 2, "call-y": 3}[id]
		return schema.SettleRequest{CallKey: schema.CallKey{Turn: turn, ToolCallID: id}, How: schema.SettledRerun, CallEpoch: seen, By: by}
	}
	first := seen()
	last := w.control(schema.VerbSettle, "run-1", settle("call-x", first, "bob"))
	x.resume(taken, "executor-2")
	x.Last = uint64(last.Stream)
	x.Publish(&schema.ToolCalledData{ToolCallID: "call-x", Name: "send"}, 2)
	w.recover("run-1", takeover("executor-3", "req-2"))

	refused := w.refused(schema.VerbSettle, "run-1", settle("call-x", first, "alice"))
	require.Equal(t, schema.CodeConflict, refused.Code)
	require.Contains(t, refused.Message, "was begun or settled again in epoch 2: the attempt of epoch 1 is over")
	w.control(schema.VerbSettle, "run-1", settle("call-y", first, "alice")) // that call had no effect
	got, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, 2, got.Head.Counts.Settled, "bob's, and that of the other call")
	w.control(schema.VerbSettle, "run-1", settle("call-x", seen(), "alice"))
}

// An executor settles a call itself, and begins it by that: no tool.called follows.
func TestSettle_SettledAgainByAnExecutorSinceItWasSeen_IsAConflict(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("call-x", schema.ReplayHold)
	taken, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	got, _ := w.get("run-1", schema.ViewHead)
	x.resume(taken, "executor-2")
	x.Publish(&schema.ToolSettledData{ToolCallID: "call-x", How: schema.SettledRerun, By: "executor-2"}, 2)
	w.recover("run-1", takeover("executor-3", "req-2"))
	refused := w.refused(schema.VerbSettle, "run-1", schema.SettleRequest{
		CallKey: schema.CallKey{Turn: 2, ToolCallID: "call-x"}, How: schema.SettledRerun, CallEpoch: got.Head.OpenCalls[0].Epoch, By: "alice",
	})
	require.Equal(t, schema.CodeConflict, refused.Code)
	require.Contains(t, refused.Message, "call call-x of turn 2 of run run-1 was begun or settled again in epoch 2")
}
