package schema_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestCallKey_NoOccurrence_IsFirst(t *testing.T) {
	first := schema.CallKey{Turn: 3, ToolCallID: "c", Occurrence: 1}
	require.Equal(t, first, (&schema.OpenInterrupt{Turn: 3, ToolCallID: "c"}).CallKey())
	require.Equal(t, first, (&schema.StateWait{Turn: 3, RunWaitingData: schema.RunWaitingData{ToolCallID: "c"}}).CallKey())
	require.Equal(t, first, (&schema.StateDecision{Turn: 3, ToolDecidedData: schema.ToolDecidedData{ToolCallID: "c"}}).CallKey())

	second := schema.CallKey{Turn: 3, ToolCallID: "c", Occurrence: 2}
	require.Equal(t, second, (&schema.OpenInterrupt{Turn: 3, ToolCallID: "c", Occurrence: 2}).CallKey())
	require.Equal(t, second, (&schema.StateWait{Turn: 3, RunWaitingData: schema.RunWaitingData{ToolCallID: "c", Occurrence: 2}}).CallKey())
	require.Equal(t, second, (&schema.StateDecision{Turn: 3, ToolDecidedData: schema.ToolDecidedData{ToolCallID: "c", Occurrence: 2}}).CallKey())
}

// An executor that names no turn has the documented key at its first try, and the next executor has the same.
func TestCallKey_NoTurnNamed_FirstTryAndTakeoverAgree(t *testing.T) {
	r := newTestRun(t)
	r.start()
	seen := map[string]int{}
	for _, id := range []string{"a", "b", "a"} {
		seen[id]++
		documented := fmt.Sprintf("r1.1.%s.%d", id, seen[id])
		v := r.write(&schema.ToolCalledData{ToolCallID: id, Name: "pay", Replay: schema.ReplayIdempotent}, 0)
		require.Equal(t, documented, v.Call.IdempotencyKey("r1"))
		r.takeover("ex-2")
		require.Equal(t, documented, schema.PlanOf(r.state).Calls[0].IdempotencyKey)
		require.Equal(t, schema.Applied, r.write(&schema.ToolSettledData{ToolCallID: id, How: schema.SettledRerun}, 0).Kind)
		require.Equal(t, documented, r.head.OpenCalls[0].IdempotencyKey("r1"))
		require.Equal(t, schema.Applied, r.write(&schema.ToolReturnedData{ToolCallID: id, Result: []byte(`"paid"`)}, 0).Kind)
	}
	require.Equal(t, []string{"a", "b", "a"}, r.head.TurnCalls)
}

func TestToolCalled_WrongOccurrence_IsInvalidData(t *testing.T) {
	r := newTestRun(t)
	r.start()
	v := r.write(&schema.ToolCalledData{ToolCallID: "a", Occurrence: 2, Name: "pay"}, 0)
	require.Equal(t, schema.ReasonInvalidData, v.Reason)
	require.Equal(t, `call "a" of turn 1 is occurrence 1, and says 2`, v.Detail)
}
