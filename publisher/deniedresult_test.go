package publisher_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A response that a message brings is a result, too. That of a call which the policy has not allowed is not recorded, whichever event has it.
func TestPolicy_MessageWithTheResultOfACallThatIsNotAllowed_IsRefused(t *testing.T) {
	t.Parallel()
	policy := func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
		if call.Name == "rm" {
			return publisher.Decision{Decision: schema.DecisionDeny, Reason: "no"}, nil
		}
		return publisher.Decision{Decision: schema.DecisionAllow}, nil
	}
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder", Policy: policy}, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	asks := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "rm"), schema.CallPart("c2", "ls"), schema.CallPart("c3", "rm")}}
	keys, err := turn.Answer(t.Context(), publisher.Answer{Message: asks, Calls: []publisher.ToolCall{{ID: "c1", Name: "rm"}, {ID: "c2", Name: "ls"}, {ID: "c3", Name: "rm"}}})
	require.NoError(t, err)
	require.ErrorIs(t, turn.Begin(t.Context(), keys[0]), publisher.ErrToolFailed)
	require.NoError(t, turn.Begin(t.Context(), keys[1]))

	brings := func(id string, callTurn int32) schema.Message {
		return schema.Message{Role: schema.RoleTool, Parts: []schema.Part{{Type: schema.PartToolCallResponse, ID: id, CallTurn: callTurn, Response: []byte(`"deleted /"`)}}}
	}
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, publisher.ErrNotAllowed)
		require.ErrorContains(t, err, "a message contains its result, but no policy has allowed the call: remove the response from the message")
	}
	refused(run.AddMessage(t.Context(), brings("c1", 0)))
	refused(run.AddMessage(t.Context(), brings("c3", 0))) // not decided about
	refused(run.Publish(t.Context(), &schema.TurnEndedData{Turn: 1, Messages: []schema.Message{user("x"), brings("c1", 0)}}, 1))
	require.NoError(t, run.AddMessage(t.Context(), brings("c2", 0)))
	require.NoError(t, run.AddMessage(t.Context(), brings("by the provider", 0)), "a call that is not recorded is none of the policy's")
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleTool, Parts: []schema.Part{{Type: schema.PartToolCallResponse, ID: "c1"}}}))
	require.NoError(t, turn.Return(t.Context(), keys[1], publisher.ToolResult{Result: json.RawMessage(`"a b"`)}))
	require.ErrorIs(t, turn.Begin(t.Context(), keys[2]), publisher.ErrToolFailed)
	refused(run.Publish(t.Context(), &schema.TurnStartedData{Turn: 2, Messages: []schema.Message{brings("c1", 1)}}, 2))
	refused(run.Publish(t.Context(), &schema.TurnStartedData{Turn: 2, Messages: []schema.Message{brings("c3", 0)}}, 2))
	answer := brings("c1", 0)
	answer.Role = schema.RoleAssistant
	refused(run.Publish(t.Context(), &schema.TurnAnsweredData{Turn: 2, Message: answer}, 2))
	conversation, err := run.Conversation(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(conversation)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), "deleted /"), "of c2 and of the provider's call")
}
