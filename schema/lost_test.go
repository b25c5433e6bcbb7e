package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func recordOf(t *testing.T, stream schema.StreamSequence, seq schema.Sequence, turn int32, data schema.Data) *schema.Record {
	t.Helper()
	body, err := schema.MarshalData(data)
	require.NoError(t, err)
	e := &schema.Event{
		Source: schema.Source("default", "x"), Type: schema.TypeOf(data.EventName()), Subject: "run-1", Time: "2026-01-01T00:00:00Z",
		Epoch: 1, Sequence: seq, Turn: turn, DataContentType: schema.ContentTypeJSON, Data: body,
	}
	e.Seal()
	h, b := e.Encode()
	rec := schema.NewRecord(stream, h, b)
	return &rec
}

// A handle that continues although content is missing has the daemon's head.
func TestState_OpenTurnWithoutContent_AnswerDoesNotPanic(t *testing.T) {
	full := schema.NewState("default", "run-1")
	full.Apply(schema.ExecutorsOnly, recordOf(t, 1, 1, 0, &schema.RunStartedData{Agent: "a", Executor: "x"}))
	part := schema.NewState("default", "run-1")
	part.Apply(schema.ExecutorsOnly, recordOf(t, 1, 1, 0, &schema.RunStartedData{Agent: "a", Executor: "x"}))
	full.Apply(schema.ExecutorsOnly, recordOf(t, 2, 2, 1, &schema.TurnStartedData{Turn: 1}))
	part.Head = full.Head.Clone() // turn.started is lost, the daemon had folded it
	require.NotPanics(t, func() {
		v := part.Apply(schema.ExecutorsOnly, recordOf(t, 3, 3, 1, &schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}}))
		require.Equal(t, schema.Applied, v.Kind)
	})
}

func TestState_ReturnedSourceRef_IsNotTheCallsSource(t *testing.T) {
	s := schema.NewState("default", "run-1")
	s.Apply(schema.ExecutorsOnly, recordOf(t, 1, 1, 0, &schema.RunStartedData{Agent: "a", Executor: "x"}))
	s.Apply(schema.ExecutorsOnly, recordOf(t, 2, 2, 1, &schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant},
		Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Replay: schema.ReplayPure, Source: []byte(`{"plain":1}`)}},
	}))
	v := s.Apply(schema.ExecutorsOnly, recordOf(t, 3, 3, 1, &schema.ToolReturnedData{
		ToolCallID: "c", Source: []byte(`"cipher"`),
		Refs: []schema.Ref{{Path: "/source", KeyID: "k", Codec: "c"}},
	}))
	require.Equal(t, schema.Applied, v.Kind)
	require.JSONEq(t, `{"plain":1}`, string(s.Calls[0].Source))
	require.NotEqual(t, "/source", s.Calls[0].Refs[0].Path, "the call's own source is not encrypted, and its refs say that it is; result_source is")
}

func TestState_DecisionWithoutOccurrence_IsOfTheSameCallInHeadAndState(t *testing.T) {
	s := schema.NewState("default", "run-1")
	call := schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayHold}
	for i, data := range []schema.Data{
		&schema.RunStartedData{Agent: "a", Executor: "x"},
		&schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}, Calls: []schema.RequestedCall{call, call}},
		&schema.ToolCalledData{ToolCallID: "a", Occurrence: 2, Name: "n"},
		&schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionDeny},
	} {
		v := s.Apply(schema.ExecutorsOnly, recordOf(t, schema.StreamSequence(i+1), schema.Sequence(i+1), min(int32(i), 1), data))
		require.Equal(t, schema.Applied, v.Kind, v.Detail)
	}
	var denied schema.CallKey
	for _, c := range s.Head.OpenCalls {
		if c.Decision == schema.DecisionDeny {
			denied = c.CallKey
		}
	}
	require.Equal(t, denied, s.Decisions[0].CallKey(), "the head and the state name different calls as denied")
}

func TestDecidedBy_SignalSent_HasItsSender(t *testing.T) {
	by, _ := schema.DecidedBy(&schema.SignalSentData{SignalID: "s", Name: "n", By: "operator:UBOL"})
	require.Equal(t, "operator:UBOL", by)
}

func TestPlan_AnsweredOpenTurn_IsContinued(t *testing.T) {
	s := schema.NewState("default", "run-1")
	s.Apply(schema.ExecutorsOnly, recordOf(t, 1, 1, 0, &schema.RunStartedData{Agent: "a", Executor: "x"}))
	s.Apply(schema.ExecutorsOnly, recordOf(t, 2, 2, 1, &schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}, DurationMS: 900,
		Usage: &schema.Usage{InputTokens: 10}, Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Replay: schema.ReplayPure}},
	}))
	p := schema.PlanOf(s)
	require.Equal(t, schema.TurnContinue, p.Turn.Action, "the model is not asked again")
}
