package inbox_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/schema"
)

// inline loads no field: all are in the state.
type inline struct{}

func (inline) Field(_ context.Context, _ []schema.Ref, _ string, value []byte) ([]byte, error) {
	return value, nil
}

// The person sees the key that the tool gets, also behind a rewind and in a fork.
func TestAsked_CallOfAnotherTimeline_HasTheToolsKey(t *testing.T) {
	key := schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
	s := schema.NewState("f", "r1")
	s.Head.OpenCalls = []schema.OpenCall{{CallKey: key, Name: "pay", Replay: schema.ReplayHold, Scope: "r1@3"}}
	s.Calls = []schema.Call{{CallKey: key, Name: "pay", Outcome: schema.OutcomeOpen}}
	wait := &schema.OpenInterrupt{InterruptID: "approval.1.c1.1@3", Reason: schema.WaitToolApproval, Turn: 1, ToolCallID: "c1", Occurrence: 1}
	require.Equal(t, "r1@3.1.c1.1", inbox.Asked(t.Context(), inline{}, s, wait).IdempotencyKey)
	s.Calls[0].IdempotencyKey = "own"
	require.Equal(t, "own", inbox.Asked(t.Context(), inline{}, s, wait).IdempotencyKey)
}
