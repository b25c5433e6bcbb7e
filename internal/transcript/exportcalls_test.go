package transcript_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// chat is a conversation as OpenAI's Chat Completions takes it.
type chat struct {
	Messages []struct {
		Role       string `json:"role"`
		Content    any    `json:"content"`
		ToolCallID string `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string `json:"id"`
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	} `json:"messages"`
}

// accepted fails unless each call is asked for by an assistant, and answered once, before anything else is said: what the API takes.
func (c *chat) accepted(t *testing.T) (roles []string) {
	t.Helper()
	open := make(map[string]bool)
	for i, m := range c.Messages {
		roles = append(roles, m.Role)
		if m.Role == schema.RoleTool {
			require.True(t, open[m.ToolCallID], "message %d answers a call that no assistant asked for", i)
			delete(open, m.ToolCallID)
			continue
		}
		require.Empty(t, open, "message %d precedes an answer", i)
		for _, call := range m.ToolCalls {
			open[call.ID] = true
		}
	}
	require.Empty(t, open)
	return roles
}

func asChat(t *testing.T, s *schema.State) *chat {
	t.Helper()
	c := new(chat)
	require.NoError(t, json.Unmarshal(export(t, s, transcript.OpenAIChat), c))
	return c
}

// toolsAlone is the state of a run that only ran tools.
func toolsAlone(messages ...schema.StateMessage) *schema.State {
	call := func(turn int32, id string, occurrence int, called, closed string) schema.Call {
		return schema.Call{
			CallKey: schema.CallKey{Turn: turn, ToolCallID: id, Occurrence: occurrence}, Name: "look", Arguments: []byte(`{"at":"` + id + `"}`),
			Outcome: schema.OutcomeReturned, Result: []byte(`"seen ` + id + `"`), CalledAt: called, ClosedAt: closed,
		}
	}
	s := &schema.State{Head: schema.Head{Run: "r1"}, Messages: messages, Calls: []schema.Call{
		call(1, "a", 1, "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"),
		call(1, "b", 1, "2026-01-01T00:00:03Z", "2026-01-01T00:00:04Z"),
		call(2, "a", 1, "2026-01-01T00:00:06Z", "2026-01-01T00:00:07Z"),
	}}
	s.Calls = append(s.Calls, schema.Call{CallKey: schema.CallKey{Turn: 2, ToolCallID: "open", Occurrence: 1}, Name: "look", Outcome: schema.OutcomeOpen})
	return s
}

func said(role, text string, turn int32, at string) schema.StateMessage {
	return schema.StateMessage{Message: schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}}, Turn: turn, EventID: "e", Time: at}
}

func TestExport_RunOfToolsAlone_AsksBeforeEachResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		messages []schema.StateMessage
		want     []string
	}{
		"no messages": {nil, []string{"assistant", "tool", "tool", "assistant", "tool"}},
		"a task before": {
			[]schema.StateMessage{said("user", "Look.", 0, "2026-01-01T00:00:00Z")},
			[]string{"user", "assistant", "tool", "tool", "assistant", "tool"},
		},
		"an answer behind": {
			[]schema.StateMessage{said("user", "Look.", 1, "2026-01-01T00:00:00Z"), said("assistant", "Seen.", 1, "2026-01-01T00:00:05Z"), said("user", "More.", 2, "2026-01-01T00:00:05Z")},
			[]string{"user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"},
		},
		"a message between": {
			[]schema.StateMessage{said("user", "Look.", 1, "2026-01-01T00:00:00Z"), said("user", "And there.", 1, "2026-01-01T00:00:02.5Z")},
			[]string{"user", "assistant", "tool", "user", "assistant", "tool", "assistant", "tool"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c2 := asChat(t, toolsAlone(c.messages...))
			require.Equal(t, c.want, c2.accepted(t))
			for _, m := range c2.Messages {
				for _, call := range m.ToolCalls {
					require.Equal(t, "look", call.Function.Name)
					require.JSONEq(t, `{"at":"`+call.ID+`"}`, call.Function.Arguments)
				}
			}
			for _, f := range transcript.Formats() {
				require.NotEmpty(t, export(t, toolsAlone(c.messages...), f))
			}
		})
	}
}

// A result in a message, without one that asks for it, is asked for in front of that message. What is asked for is not asked for again.
func TestExport_SomeCallsAreInMessages_OnlyTheOthersAreMadeUp(t *testing.T) {
	t.Parallel()
	asks := schema.StateMessage{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("b", "look")}}, Turn: 1, EventID: "e", Time: "2026-01-01T00:00:02.5Z"}
	carries := schema.StateMessage{Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{schema.ResponsePart("a")}}, Turn: 2, EventID: "e", Time: "2026-01-01T00:00:08Z"}
	// A request that is answered later in the turn has its answer right behind it.
	answered := schema.StateMessage{Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{schema.ResponsePart("b")}}, Turn: 1, EventID: "e", Time: "2026-01-01T00:00:09Z"}
	early := asks
	early.Time = "2026-01-01T00:00:00.5Z"
	for _, messages := range [][]schema.StateMessage{{early, answered}, {early, said("user", "Go on.", 1, "2026-01-01T00:00:01Z")}} {
		asChat(t, toolsAlone(messages...)).accepted(t)
	}
	c := asChat(t, toolsAlone(said("user", "Look.", 1, "2026-01-01T00:00:00Z"), asks, carries))
	require.Equal(t, []string{"user", "assistant", "tool", "assistant", "tool", "assistant", "tool"}, c.accepted(t))
	require.Equal(t, "a", c.Messages[1].ToolCalls[0].ID)
	require.Equal(t, "b", c.Messages[3].ToolCalls[0].ID)
	require.Equal(t, "seen a", c.Messages[6].Content)
}
