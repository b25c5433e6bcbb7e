package schema_test

import (
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

// Outside of turns no bounded list of ids tells a repeated id, so all calls are counted. The first try and the next
// executor have the same key.
func TestCallKey_OutsideOfTurns_OccurrenceCountsAllCalls(t *testing.T) {
	r := newTestRun(t)
	r.start()
	for i, id := range []string{"a", "b", "a"} {
		v := r.write(&schema.ToolCalledData{ToolCallID: id, Name: "pay", Replay: schema.ReplayIdempotent}, 0)
		require.Equal(t, schema.CallKey{ToolCallID: id, Occurrence: i + 1}, v.Call)
		first := v.Call.IdempotencyKey("r1")
		r.takeover("ex-2")
		require.Equal(t, first, schema.PlanOf(r.state).Calls[0].IdempotencyKey)
		require.Equal(t, schema.Applied, r.write(&schema.ToolSettledData{ToolCallID: id, How: schema.SettledRerun}, 0).Kind)
		require.Equal(t, first, r.head.OpenCalls[0].IdempotencyKey("r1"))
		require.Equal(t, schema.Applied, r.write(&schema.ToolReturnedData{ToolCallID: id, Result: []byte(`"paid"`)}, 0).Kind)
	}
}
