package schema_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// viewed is the view of a state as a client decodes it.
func viewed(tb testing.TB, s *schema.State) *schema.State {
	tb.Helper()
	v := new(schema.State)
	require.NoError(tb, json.Unmarshal(mustJSON(tb, s.View()), v))
	return v
}

func TestStateView_Calls_StandInTheMessages(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	const numbers = `{"big":123456789012345678901234567890,"exact":0.10,"far":1E+400}`
	large := schema.Ref{Path: "/calls/1/arguments", DataRef: "waymark-blob:r1.sha256-" + strings.Repeat("a", 64), Size: 300_000}
	answer := asks(1, pure("a"), pure("b"), pure("c"), pure("d"))
	answer.Calls[0].Arguments, answer.Calls[1].Arguments = jsontext.Value(numbers), nil
	answer.Message.Parts = append([]schema.Part{schema.Text("c2VjcmV0")}, answer.Message.Parts...)
	secret := func(path string) schema.Ref { return schema.Ref{Path: path, KeyID: "k1", Codec: "aes"} }
	answer.Refs = []schema.Ref{large, secret("/message/parts/0/content")}
	mustApply(t, r.write(answer, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Result: jsontext.Value(`[1.50,1e2]`), IsError: new(true)}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "b", Result: jsontext.Value(`"c2VjcmV0"`), Refs: []schema.Ref{secret("/result")}}, 1))
	mustApply(t, r.write(&schema.ToolFailedData{
		ToolCallID: "c", Error: schema.Error{Type: "gone", Message: "c2VjcmV0"}, Refs: []schema.Ref{secret("/error/message")},
	}, 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "hook", Name: "hook", Arguments: jsontext.Value(numbers), Replay: schema.ReplayPure}, 1))

	before := string(mustJSON(t, r.state))
	v := viewed(t, r.state)
	require.Equal(t, before, string(mustJSON(t, r.state)), "the state is not changed")
	require.Len(t, v.Messages, 2)
	asked, answered := v.Messages[0], v.Messages[1]
	require.Equal(t, numbers, string(asked.Parts[1].Arguments), "to the letter")
	require.Empty(t, asked.Parts[2].Arguments)
	require.Equal(t, []schema.Ref{secret("/parts/0/content"), {Path: "/parts/2/arguments", DataRef: large.DataRef, Size: large.Size}}, asked.Refs)
	require.Equal(t, schema.RoleTool, answered.Role)
	require.Equal(t, int32(1), answered.Turn)
	require.Empty(t, answered.EventID, "no event has the message")
	require.Equal(t, `[1.50,1e2]`, string(answered.Parts[0].Response))
	require.Equal(t, []bool{true, false, true, true}, []bool{
		answered.Parts[0].IsError, answered.Parts[1].IsError, answered.Parts[2].IsError, answered.Parts[3].IsError,
	})
	require.JSONEq(t, `{"error":{"type":"open","message":"the call has no result yet"}}`, string(answered.Parts[3].Response))
	require.Equal(t, []schema.Ref{secret("/parts/1/response"), secret("/parts/2/response/error/message")}, answered.Refs)

	require.Len(t, v.Calls, 5)
	for _, c := range v.Calls[:4] {
		require.Empty(t, c.Arguments, "they stand in the message")
		require.Empty(t, c.Result)
		require.Equal(t, schema.ReplayPure, c.Replay)
	}
	require.Equal(t, []schema.Ref{secret("/error/message")}, v.Calls[2].Refs, "the error is in the call, too")
	require.Equal(t, numbers, string(v.Calls[4].Arguments), "no message names it")
	require.Len(t, v.Turns, 1)
	require.Equal(t, "coder", v.Started.Agent)
}

func TestStateView_CompactedRun_HasTheSummaryAndNothingBeforeIt(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleSystem, "be brief")}, 0))
	for turn := range int32(3) {
		turn++
		mustApply(t, r.write(asks(turn, pure("a"), pure("b")), turn))
		mustApply(t, r.write(result("a"), turn))
		if turn != 1 {
			mustApply(t, r.write(result("b"), turn))
		}
	}
	mustApply(t, r.write(&schema.ContextCompactedData{
		Summary: "c28gZmFy", ThroughTurn: 2, Refs: []schema.Ref{{Path: "/summary", KeyID: "k1", Codec: "aes"}},
	}, 0))
	v := viewed(t, r.state)
	require.Len(t, v.Messages, 4)
	require.Equal(t, "c28gZmFy", *v.Messages[1].Parts[0].Content)
	require.Equal(t, []schema.Ref{{Path: "/parts/0/content", KeyID: "k1", Codec: "aes"}}, v.Messages[1].Refs)
	require.Equal(t, &schema.Compacted{ThroughTurn: 2, Messages: 2, Time: v.Messages[1].Time}, v.Compacted)
	require.Len(t, v.Turns, 1)
	require.Equal(t, []int32{3, 3}, []int32{v.Calls[0].Turn, v.Calls[1].Turn})
	require.Len(t, v.Calls, 2)
	require.Equal(t, schema.OutcomeAbandoned, r.state.Call(schema.CallKey{Turn: 1, ToolCallID: "b", Occurrence: 1}).Outcome)
}

// A program in another language may write members with the names of the state's own fields.
func TestStateView_UnknownMembersNamedLikeItsOwn_AreNoDuplicates(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	m := say(schema.RoleUser, "task")
	m.Extra = jsontext.Value(`{"turn":7,"event_id":"x","epoch":9,"time":"t","refs":[],"mine":1.0}`)
	response := responsePart("a")
	response.Extra = jsontext.Value(`{"is_error":false}`)
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{m}}, 1))
	mustApply(t, r.write(asks(1, pure("a")), 1))
	mustApply(t, r.write(&schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionAllow, Extra: jsontext.Value(`{"turn":7,"epoch":1,"time":"t"}`)}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Result: jsontext.Value(`1`), IsError: new(true)}, 1))
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{{Role: schema.RoleTool, Parts: []schema.Part{response}}}}, 2))
	mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "w", Reason: schema.WaitHumanInput, ToolCallID: "a", Extra: jsontext.Value(`{"turn":7,"input":{}}`)}, 2))
	mustApply(t, r.write(&schema.ContextCompactedData{Summary: "so far", ThroughTurn: 0, Extra: jsontext.Value(`{"at":1,"time":"t"}`)}, 0))
	mustJSON(t, r.state)
	r.state.Compactions = nil
	v := viewed(t, r.state)
	require.Equal(t, int32(1), v.Messages[0].Turn)
	require.Equal(t, `{"mine":1.0}`, string(v.Messages[0].Extra))
	require.True(t, v.Messages[2].Parts[0].IsError)
}

func TestStateView_MessagesOfRandomLogs_AreTheConversation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 50)
		s := schema.NewState("f", "r1")
		for i := range log {
			s.Apply(schema.NoKeys, &log[i])
		}
		var messages []schema.Message
		for _, m := range s.View().Messages {
			messages = append(messages, m.Message)
		}
		require.Equal(t, s.Conversation(), schema.ValidHistory(messages))
	})
}
