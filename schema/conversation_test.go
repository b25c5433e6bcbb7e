package schema_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// spoken writes the messages for a model, a line for each message.
func spoken(s *schema.State) (out []string) {
	for _, m := range s.Conversation() {
		line := m.Role
		for _, p := range m.Parts {
			switch {
			case p.Type == schema.PartToolCall:
				line += " call " + p.ID + string(p.Arguments)
			case p.Type == schema.PartToolCallResponse && p.IsError:
				line += " error " + p.ID + string(p.Response)
			case p.Type == schema.PartToolCallResponse:
				line += " result " + p.ID + string(p.Response)
			default:
				line += " " + *p.Content
			}
		}
		out = append(out, line)
	}
	return out
}

func say(role, text string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}}
}

// asks is an answer whose parts name its calls.
func asks(turn int32, calls ...schema.RequestedCall) *schema.TurnAnsweredData {
	d := answerOf(turn, calls...)
	d.Message.Parts = nil
	for _, c := range calls {
		d.Message.Parts = append(d.Message.Parts, schema.CallPart(c.ToolCallID, c.Name))
	}
	return d
}

func pure(id string) schema.RequestedCall {
	return schema.RequestedCall{ToolCallID: id, Name: "look", Arguments: jsontext.Value(`{"n":"` + id + `"}`), Replay: schema.ReplayPure}
}

func result(id string) *schema.ToolReturnedData {
	return &schema.ToolReturnedData{ToolCallID: id, Result: jsontext.Value(`"` + id + `"`)}
}

// responsePart is the part of a tool message that carries the response to call id.
func responsePart(id string) schema.Part {
	return schema.Part{Type: schema.PartToolCallResponse, ID: id}
}

// The results are recorded in another order than the calls, and a message comes between.
func TestConversation_Results_FollowAskingMessage(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleSystem, "be brief")}, 0))
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{say(schema.RoleUser, "task")}}, 1))
	require.Equal(t, []string{"system be brief", "user task"}, spoken(r.state))
	mustApply(t, r.write(asks(1, pure("a"), pure("b")), 1))
	mustApply(t, r.write(result("b"), 1))
	mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleUser, "hurry")}, 1))
	mustApply(t, r.write(result("a"), 1))
	mustApply(t, r.write(asks(2, pure("a")), 2))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Result: jsontext.Value(`"no such file"`), IsError: new(true)}, 2))
	before := string(mustJSON(t, r.state))
	require.Equal(t, []string{
		"system be brief", "user task", `assistant call a{"n":"a"} call b{"n":"b"}`, `tool result a"a" result b"b"`, "user hurry",
		`assistant call a-2{"n":"a"}`, `tool error a-2"no such file"`,
	}, spoken(r.state))
	require.Equal(t, before, string(mustJSON(t, r.state)), "the state is not changed")
}

func TestConversation_CallsWithoutAResult_HaveAnError(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	refused := schema.RequestedCall{ToolCallID: "c", Name: "fly", Error: &schema.Error{Type: "unknown_tool", Message: "no fly"}}
	hold := schema.RequestedCall{ToolCallID: "d", Name: "mail", Replay: schema.ReplayHold}
	mustApply(t, r.write(asks(1, pure("a"), pure("b"), refused, hold, schema.RequestedCall{ToolCallID: "e", Name: "mail"}), 1))
	mustApply(t, r.write(&schema.ToolFailedData{ToolCallID: "a", Error: schema.Error{Type: "timeout", Retryable: true}}, 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "d", Name: "mail"}, 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "e", Name: "mail"}, 1))
	r.takeover("ex-2")
	mustApply(t, r.operator(&schema.ToolSettledData{ToolCallID: "d", How: schema.SettledAbandoned, By: "ann"}, 1))
	mustApply(t, r.write(&schema.TurnEndedData{Turn: 1}, 1)) // b is abandoned by it, e is in doubt
	require.Equal(t, []string{
		`assistant call a{"n":"a"} call b{"n":"b"} call c{} call d{} call e{}`,
		`tool error a{"error":{"type":"timeout","retryable":true}}` +
			` error b{"error":{"type":"abandoned","message":"the call was not made"}}` +
			` error c{"error":{"type":"unknown_tool","message":"no fly"}}` +
			` error d{"error":{"type":"abandoned","message":"the call was given up; whether it had its effect is not known"}}` +
			` error e{"error":{"type":"open","message":"the call has no result yet"}}`,
	}, spoken(r.state))
}

// Providers match responses by the id, and the other fields of the call's part.
func TestConversation_AResponse_NamesItsCallAsThePartDoes(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	d := asks(1, pure("a"), pure("a"))
	d.Message.Parts[0].Occurrence, d.Message.Parts[1].Occurrence = 2, 1
	mustApply(t, r.write(d, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Occurrence: 2, Result: jsontext.Value(`2`)}, 1))
	got := r.state.Conversation()
	require.Equal(t, schema.RoleTool, got[1].Role)
	require.Equal(t, schema.Part{Type: schema.PartToolCallResponse, ID: "a", Occurrence: 2, Response: jsontext.Value(`2`)}, got[1].Parts[0])
	require.Equal(t, got[0].Parts[1].ID, got[1].Parts[1].ID)
	require.Equal(t, 1, got[1].Parts[1].Occurrence)
}

func TestConversation_AnAbandonedCallWithAResult_HasTheResult(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(asks(1, schema.RequestedCall{ToolCallID: "a", Name: "mail"}), 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "mail"}, 1))
	r.takeover("ex-2")
	mustApply(t, r.operator(&schema.ToolSettledData{ToolCallID: "a", How: schema.SettledAbandoned, Result: jsontext.Value(`"go on"`), By: "ann"}, 1))
	require.Equal(t, []string{"assistant call a{}", `tool result a"go on"`}, spoken(r.state))
}

func TestConversation_RecordedResponses_FollowTheirCalls(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(asks(1, pure("a"), pure("b"), pure("a")), 1))
	mustApply(t, r.write(&schema.ToolFailedData{ToolCallID: "b", Error: schema.Error{Type: "error"}}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Occurrence: 2, Result: jsontext.Value(`2`)}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Occurrence: 1, Result: jsontext.Value(`1`)}, 1))
	mustApply(t, r.write(&schema.TurnEndedData{Turn: 1, Messages: []schema.Message{
		say(schema.RoleUser, "look here"),
		{Role: schema.RoleTool, Parts: []schema.Part{responsePart("a"), responsePart("b"), responsePart("gone")}},
	}}, 1))
	require.Equal(t, []string{
		`assistant call a{"n":"a"} call b{"n":"b"} call a-2{"n":"a"}`, `tool result a1 error b{"error":{"type":"error"}} result a-22`,
		"user look here", `user Response that matches no open call (id "gone"): null`,
	}, spoken(r.state))
}

func TestConversation_ACallThatNoMessageNames_IsLeftOut(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{say(schema.RoleUser, "task")}}, 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "hook", Replay: schema.ReplayPure}, 1))
	mustApply(t, r.write(result("a"), 1))
	require.Equal(t, []string{"user task"}, spoken(r.state))
}

func TestConversation_AnInterruptedTurn_IsNotToldTwice(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	started := &schema.TurnStartedData{Turn: 1, Messages: []schema.Message{say(schema.RoleUser, "task")}}
	mustApply(t, r.write(started, 1))
	r.takeover("ex-2")
	mustApply(t, r.write(started, 1))
	require.Equal(t, []string{"user task"}, spoken(r.state))
}

func TestConversation_OfACompactedRun_BeginsWithTheSummary(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleSystem, "be brief")}, 0))
	for turn := range int32(3) {
		turn++
		mustApply(t, r.write(asks(turn, pure("a")), turn))
		mustApply(t, r.write(result("a"), turn))
		mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleUser, "between")}, 0))
		if turn == 1 {
			mustApply(t, r.write(&schema.ContextCompactedData{Summary: "an earlier one", ThroughTurn: 1}, 0))
		}
	}
	late := responsePart("a")
	late.CallTurn = 1
	mustApply(t, r.write(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{late}}}, 0))
	rest := []string{`assistant call a{"n":"a"}`, `tool result a"a"`, "user between"}
	all := append([]string{"system be brief", "user an earlier one", "user between"}, rest...)
	all = append(all, `assistant call a-2{"n":"a"}`, `tool result a-2"a"`, "user between")
	require.Equal(t, all, spoken(r.state), "the response to a call that is gone is gone, too")

	mustApply(t, r.write(&schema.ContextCompactedData{Summary: "so far", ThroughTurn: 2}, 0))
	require.Equal(t, append([]string{"system be brief", "user so far", "user between"}, rest...), spoken(r.state))
	mustApply(t, r.write(asks(4, pure("a")), 4))
	require.Equal(t, append(append([]string{"system be brief", "user so far", "user between"}, rest...),
		`assistant call a-2{"n":"a"}`, `tool error a-2{"error":{"type":"open","message":"the call has no result yet"}}`), spoken(r.state))

	mustApply(t, r.write(&schema.ContextCompactedData{Summary: "all of it"}, 0))
	require.Equal(t, []string{"system be brief", "user all of it"}, spoken(r.state), "without a turn it stands for all before it")
}

// Another executor's message may have a result of a denied call. A model reads the denial.
func TestConversation_DeniedCallWithAResponseInAMessage_ShowsTheDenial(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(asks(1, pure("c1"), pure("c2"), pure("c3")), 1))
	mustApply(t, r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: schema.DeniedType, Message: "no"}}, 1))
	mustApply(t, r.write(&schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: schema.DeniedType, Message: "no"}}, 1))
	mustApply(t, r.write(result("c3"), 1))
	whole := func(id string) schema.Part {
		return schema.Part{Type: schema.PartToolCallResponse, ID: id, Response: jsontext.Value(`"done all the same"`)}
	}
	stored := schema.Part{Type: schema.PartToolCallResponse, ID: "c2"}
	mustApply(t, r.write(&schema.MessageAddedData{
		Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{whole("c1"), stored, whole("c3")}},
		Refs:    []schema.Ref{{Path: "/message/parts/1/response", DataRef: schema.DataRef("r1", strings.Repeat("a", 64))}},
	}, 1))
	require.Equal(t, []string{
		`assistant call c1{"n":"c1"} call c2{"n":"c2"} call c3{"n":"c3"}`,
		`tool error c1{"error":{"type":"denied","message":"no"}} error c2{"error":{"type":"denied","message":"no"}} result c3"done all the same"`,
	}, spoken(r.state))
	view := r.state.View()
	require.Empty(t, view.Messages[1].Refs)
	require.True(t, view.Messages[1].Parts[0].IsError)
}

// What a request to the model costs depends on its messages, not on those that a compaction replaced.
func TestConversation_Allocations_FollowItsOwnLength(t *testing.T) {
	cost := func(turns int, through int32) float64 {
		s := schema.NewState("default", "run-01hq3v8j5k")
		ordinaryRun(t, turns, func(rec *schema.Record) { s.Apply(schema.NoKeys, rec) })
		if through > 0 {
			s.Compactions = []schema.StateCompaction{{ContextCompactedData: schema.ContextCompactedData{Summary: "so far", ThroughTurn: through}, At: len(s.Messages)}}
		}
		return testing.AllocsPerRun(5, func() { s.Conversation() })
	}
	require.InDelta(t, cost(20, 10), cost(1000, 990), 30)
	require.LessOrEqual(t, cost(1000, 0), 14.0*1000)
}
