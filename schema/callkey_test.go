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
