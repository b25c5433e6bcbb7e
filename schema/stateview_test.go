package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// viewed is the view of a state as a client decodes it.
func viewed(tb testing.TB, s *schema.State) *schema.StateView {
	tb.Helper()
	v := new(schema.StateView)
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
	response := schema.ResponsePart("a")
	response.Extra = jsontext.Value(`{"is_error":"perhaps"}`)
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
		v, said := s.View(), s.Conversation()
		require.Len(t, v.Messages, len(said))
		for i, m := range said {
			require.Equal(t, m.Role, v.Messages[i].Role)
			require.Len(t, v.Messages[i].Parts, len(m.Parts))
			for j, p := range m.Parts {
				got := v.Messages[i].Parts[j]
				require.Equal(t, p.IsError, got.IsError)
				got.Extra = p.Extra
				require.Equal(t, p, got.Part)
			}
		}
	})
}

func TestStateView_PagesOfRandomLogs_AddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 80)
		s := schema.NewState("f", "r1")
		for i := range log {
			s.Apply(schema.NoKeys, &log[i])
		}
		whole := s.View()
		room := rapid.IntRange(300, 6000).Draw(t, "room")
		var got schema.StateView
		before, pages := 0, 0
		for {
			page, err := whole.Page(before, room)
			require.NoError(t, err)
			if pages++; pages > 1 {
				require.Nil(t, page.Started, "the rest is on the first page alone")
			}
			got.Messages = append(page.Messages, got.Messages...)
			got.Turns = append(page.Turns, got.Turns...)
			got.Calls = append(page.Calls, got.Calls...)
			if page.Older == nil {
				break
			}
			if before != 0 {
				require.Less(t, page.Older.Request.Before, before, "each page is older")
			}
			before = page.Older.Request.Before
			require.Equal(t, page.Older.Messages, recorded(whole)-recorded(&got))
			require.Equal(t, page.Older.Calls, len(whole.Calls)-len(got.Calls))
		}
		require.Len(t, got.Messages, len(whole.Messages))
		require.ElementsMatch(t, turnsOf(whole), turnsOf(&got))
		require.ElementsMatch(t, keysOfCalls(whole), keysOfCalls(&got))
		for i := range whole.Messages {
			require.Equal(t, whole.Messages[i].EventID, got.Messages[i].EventID)
		}
	})
}

// recorded counts the messages with an event.
func recorded(v *schema.StateView) (n int) {
	for i := range v.Messages {
		if v.Messages[i].EventID != "" {
			n++
		}
	}
	return n
}

func turnsOf(v *schema.StateView) (out []int32) {
	for i := range v.Turns {
		out = append(out, v.Turns[i].Turn)
	}
	return out
}

func keysOfCalls(v *schema.StateView) (out []schema.CallKey) {
	for i := range v.Calls {
		out = append(out, v.Calls[i].CallKey)
	}
	return out
}

// manyTurns is a run of turns with a call each, whose result has so many bytes.
func manyTurns(t *testing.T, turns int32, bytes int) *schema.State {
	t.Helper()
	r := newTestRun(t)
	r.start()
	for turn := range turns {
		turn++
		mustApply(t, r.write(&schema.TurnStartedData{Turn: turn, Messages: []schema.Message{say(schema.RoleUser, fmt.Sprint("task ", turn))}}, turn))
		mustApply(t, r.write(asks(turn, pure("a")), turn))
		mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Result: mustJSON(t, strings.Repeat("x", bytes))}, turn))
	}
	return r.state
}

func TestStatePage_TurnsThatDoNotFit_AreLeftOutWhole(t *testing.T) {
	t.Parallel()
	whole := manyTurns(t, 10, 1000).View()
	page, err := whole.Page(0, 8000)
	require.NoError(t, err)
	require.Less(t, len(mustJSON(t, page)), 8000+300, "as good as the room")
	require.Greater(t, len(page.Messages), 6)
	first := page.Messages[0].Turn
	require.Equal(t, "task", strings.Fields(*page.Messages[0].Parts[0].Content)[0], "a turn begins the page")
	require.Equal(t, first, page.Turns[0].Turn)
	require.Equal(t, first, page.Calls[0].Turn)
	require.Equal(t, &schema.Older{
		FirstTurn: 1, LastTurn: first - 1, Messages: 2 * int(first-1), Calls: int(first - 1), Request: schema.GetRequest{Before: 5 * int(first-1)},
	}, page.Older)
	require.Empty(t, page.LeftOut)
}

func TestStatePage_ATurnThatDoesNotFit_IsCutBetweenItsMessages(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1}, 1))
	for i := range 9 {
		mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleUser, strings.Repeat(fmt.Sprint(i), 1000))}, 1))
	}
	page, err := r.state.View().Page(0, 6000)
	require.NoError(t, err)
	require.Len(t, page.Messages, 5)
	require.Equal(t, strings.Repeat("8", 1000), *page.Messages[4].Parts[0].Content)
	require.Equal(t, int32(1), page.Older.LastTurn)
	require.Equal(t, 4, page.Older.Messages)
}

func TestStatePage_AMessageThatDoesNotFit_LosesItsLargestFields(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(asks(1, pure("a"), pure("b"), pure("c")), 1))
	for id, size := range map[string]int{"a": 3000, "b": 5000, "c": 1000} {
		mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: id, Result: mustJSON(t, strings.Repeat(id, size))}, 1))
	}
	page, err := r.state.View().Page(0, 6000)
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	require.Equal(t, []schema.LeftOut{{Path: "/messages/0/parts/1/response", Size: 5002}}, page.LeftOut)
	require.Empty(t, page.Messages[0].Parts[1].Response)
	require.Len(t, page.Messages[0].Parts[0].Response, 3002)
	require.Equal(t, 1, page.Older.Messages)
	older, err := r.state.View().Page(page.Older.Request.Before, 6000)
	require.NoError(t, err)
	require.Len(t, older.Calls, 3)
	require.Len(t, older.Messages, 1)
	require.Nil(t, older.Older)
}

// Unknown members are left out by their names, in a message and in its parts: the rest of both is kept.
func TestStatePage_UnknownMembersThatDoNotFit_AreNamedEach(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	large := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	m := say(schema.RoleUser, "task")
	m.Extra = jsontext.Value(`{"a/b~c":` + large(9000) + `,"small":1.50}`)
	m.Parts[0].Extra = jsontext.Value(`{"p":` + large(8000) + `,"q":2}`)
	mustApply(t, r.write(&schema.MessageAddedData{Message: m}, 0))
	before := string(mustJSON(t, r.state))
	page, err := r.state.View().Page(0, 6000)
	require.NoError(t, err)
	require.Equal(t, []schema.LeftOut{{Path: "/messages/0/a~1b~0c", Size: 9002}, {Path: "/messages/0/parts/0/p", Size: 8002}}, page.LeftOut)
	require.Equal(t, "task", *page.Messages[0].Parts[0].Content)
	require.Equal(t, `{"small":1.50}`, string(page.Messages[0].Extra))
	require.Equal(t, `{"q":2}`, string(page.Messages[0].Parts[0].Extra))
	require.Less(t, len(mustJSON(t, page)), 6000)
	require.Equal(t, before, string(mustJSON(t, r.state)), "the state is not changed")
}

func TestStatePage_ThousandsOfUnknownMembers_TheMessageIsLeftOutWhole(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	members := make([]string, 2000)
	for i := range members {
		members[i] = fmt.Sprintf(`"m%d":%d`, i, i)
	}
	m := say(schema.RoleUser, "task")
	m.Extra = jsontext.Value("{" + strings.Join(members, ",") + "}")
	mustApply(t, r.write(&schema.MessageAddedData{Message: m}, 0))
	view := r.state.View()
	page, err := view.Page(0, 4000)
	require.NoError(t, err)
	require.Equal(t, []schema.LeftOut{{Path: "/messages/0", Size: len(mustJSON(t, view.Messages[0]))}}, page.LeftOut)
	require.Equal(t, schema.RoleUser, page.Messages[0].Role)
	require.Less(t, len(mustJSON(t, page)), 4000)
}

func TestStatePage_ThousandsOfParts_AreLeftOutAsOne(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	m := schema.Message{Role: schema.RoleUser}
	for i := range 2000 {
		m.Parts = append(m.Parts, schema.Text(fmt.Sprint(i)))
	}
	mustApply(t, r.write(&schema.MessageAddedData{Message: m}, 0))
	page, err := r.state.View().Page(0, 4000)
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	require.Len(t, page.LeftOut, 1)
	require.Equal(t, "/messages/0/parts", page.LeftOut[0].Path)
	require.Less(t, len(mustJSON(t, page)), 4000)
}

// If the room is too small for each text of an entry and a record of each, the whole entry is left out.
func TestStatePage_CallOrTurnInTinyRoom_IsLeftOutAsOne(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	call := &schema.ToolCalledData{
		ToolCallID: "c", Name: "n", Replay: schema.ReplayVerify, VerifySubject: strings.Repeat("v", 250), SideEffect: strings.Repeat("s", 900),
		IdempotencyKey: strings.Repeat("k", 900), Arguments: mustJSON(t, strings.Repeat("a", 900)),
	}
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1}, 1))
	mustApply(t, r.write(call, 1))
	mustApply(t, r.write(&schema.TurnEndedData{Turn: 1, Error: &schema.Error{Type: strings.Repeat("r", 200)}}, 1))
	view := r.state.View()
	page, err := view.Page(0, 300)
	require.NoError(t, err)
	require.Len(t, page.Calls, 1)
	require.Equal(t, schema.Call{CallKey: view.Calls[0].CallKey, Name: "n", Outcome: schema.OutcomeOpen}, page.Calls[0])
	require.Equal(t, "/calls/0", page.LeftOut[len(page.LeftOut)-1].Path)
	require.NotNil(t, page.Older)
	page, err = view.Page(page.Older.Request.Before, 100)
	require.NoError(t, err)
	require.Equal(t, []schema.StateTurn{{Turn: 1, Attempts: 1}}, page.Turns)
	require.Equal(t, "/turns/0", page.LeftOut[len(page.LeftOut)-1].Path)
	require.Nil(t, page.Older)
}

func TestStatePage_ALargeRest_LosesItsLargestMembers(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.StateSetData{Key: "k", Value: mustJSON(t, strings.Repeat("v", 9000))}, 0))
	mustApply(t, r.write(&schema.PhaseStartedData{Phase: "one"}, 0))
	mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleUser, strings.Repeat("m", 2000))}, 0))
	page, err := r.state.View().Page(0, 6000)
	require.NoError(t, err)
	require.Len(t, page.LeftOut, 1)
	require.Equal(t, "/values", page.LeftOut[0].Path)
	require.Len(t, page.Phases, 1)
	require.Len(t, page.Messages, 1)
	require.Nil(t, page.Older)
	page, err = r.state.View().Page(0, 14_000)
	require.NoError(t, err)
	require.Empty(t, page.LeftOut, "it fits: messages need less than half of the room")
}
