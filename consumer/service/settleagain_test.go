package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestSettle_SameIDInOneAnswer_OtherOccurrenceIsNotNamed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.Turn++
	call := schema.RequestedCall{ToolCallID: "a", Name: "send", Replay: schema.ReplayIdempotent}
	x.Publish(&schema.TurnAnsweredData{Turn: x.Turn, Message: schema.Message{Role: schema.RoleAssistant}, Calls: []schema.RequestedCall{call, call}}, x.Turn)
	taken, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	settled := w.control(schema.VerbSettle, "run-1", schema.SettleRequest{
		CallKey: schema.CallKey{Turn: x.Turn, ToolCallID: "a", Occurrence: 2}, How: schema.SettledDecided, Result: []byte(`1`), By: "alice",
	})
	x.resume(taken, "executor-2")
	x.Last = uint64(settled.Stream)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "a", Occurrence: 1, Result: []byte(`1`)}, x.Turn)
	said := w.refused(schema.VerbSettle, "run-1", schema.SettleRequest{
		CallKey: schema.CallKey{Turn: x.Turn, ToolCallID: "a", Occurrence: 1}, How: schema.SettledAbandoned, By: "bob",
	})
	require.NotContains(t, said.Message, "settled already", "alice settled the second call; the tool has returned the first")
}

func TestSettle_RequestedCall_SaysWhatIsKnownOfItsBegin(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.Turn++
	x.Publish(&schema.TurnAnsweredData{Turn: x.Turn, Message: schema.Message{Role: schema.RoleAssistant}, Calls: []schema.RequestedCall{
		{ToolCallID: "a", Name: "look", Replay: schema.ReplayPure}, {ToolCallID: "b", Name: "send", Replay: schema.ReplayHold},
	}}, x.Turn)
	for id, says := range map[string]string{"a": "is requested and may be running: as pure, its begin is not recorded", "b": "is requested and has not begun"} {
		said := w.refused(schema.VerbSettle, "run-1", schema.SettleRequest{
			CallKey: schema.CallKey{Turn: x.Turn, ToolCallID: id, Occurrence: 1}, CallEpoch: 1, How: schema.SettledAbandoned, By: "bob",
		})
		require.Equal(t, schema.CodeNotInDoubt, said.Code)
		require.Contains(t, said.Message, says)
	}
}
