package conform_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// broken are recordings that break one rule each and no other, by the rule's id.
var broken = map[string]func(t *testing.T) *tape{
	"WM-E-001": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.wire = true
		r.start()
		r.message("waymark.events.f.0.r-1", map[string][]string{"x-type": {"turn"}}, []byte(`{"turn":1}`))
		return r
	},
	"WM-E-002": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.wire = true
		r.start()
		r.message("waymark.events.f.0.r-1", map[string][]string{
			"ce-specversion": {"1.0"}, "ce-id": {"2"}, "ce-source": {"/waymark/f/ex-1"}, "ce-type": {"io.waymark.turn.started.v1"},
			"ce-subject": {"r-1"}, "ce-epoch": {"first"},
		}, []byte(`{"turn":1}`))
		return r
	},
	"WM-E-003": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.wire = true
		r.start()
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Subject = "r-2" })
		require.Equal(t, schema.Rejected, r.put(e).Kind)
		header, body := r.make(&schema.TurnStartedData{Turn: 1}, 1).Encode()
		r.message("waymark.events.f.1.r-1", header, body)
		return r
	},
	"WM-E-004": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Source = "/waymark/g/ex-1" })
		return r
	},
	"WM-E-005": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Source = "urn:my-agent" })
		r.write(&schema.TurnEndedData{Turn: 1}, 1, func(e *schema.Event) { e.Source = schema.Source("f", "ex-2") })
		return r
	},
	"WM-E-006": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.wire = true
		r.start()
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Extensions = map[string]string{"progress": "100%"} })
		header, body := e.Encode()
		header["ce-progress"] = []string{"100%"}
		r.message("waymark.events.f.0.r-1", header, body)
		return r
	},
	"WM-E-007": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Time = "" })
		r.write(&schema.TurnEndedData{Turn: 1}, 1, func(e *schema.Event) { e.Time = "2026-01-31T14:00:00+02:00" })
		return r
	},
	"WM-E-008": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.refused(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls", Replay: "pure"}, 1, func(e *schema.Event) { e.Data = []byte(`{"name":"ls"}`) })
		return r
	},
	"WM-E-009": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 1, func(e *schema.Event) { e.Type = "io.waymark.tool.call.v1" })
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 1, func(e *schema.Event) { e.Type = "io.waymark.error.raised" })
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 1, func(e *schema.Event) { e.Type = "turn.ended" })
		return r
	},
	"WM-E-010": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.DataContentType = "" })
		return r
	},
	"WM-E-011": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.write(&schema.ToolReturnedData{ToolCallID: "c1"}, 1, func(e *schema.Event) { e.Data = []byte(`{"tool_call_id":"c1","durationMs":12}`) })
		r.write(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleAssistant}}, 1, func(e *schema.Event) {
			e.Data = []byte(`{"message":{"role":"assistant","parts":[{"type":"text","text":"hi"}]}}`)
		})
		return r
	},
	"WM-E-012": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.write(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`"` + strings.Repeat("x", 512<<10) + `"`)}, 1)
		return r
	},
	"WM-E-013": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, plain)
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1, plain)
		e.ID = "plain-1"
		require.Equal(t, schema.Duplicate, r.put(e).Kind)
		return r
	},
	"WM-E-014": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1)
		e.ID = "r-1.1.2.00000000"
		require.Equal(t, schema.Rejected, r.put(e).Kind)
		return r
	},
	"WM-E-015": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1)
		e.ID = "another-form-2"
		require.Equal(t, schema.Applied, r.put(e).Kind)
		return r
	},
	"WM-E-020": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.turn(1)
		return r
	},
	"WM-E-021": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.refused(&schema.RunStartedData{Agent: "coder", Executor: "ex-2"}, 0)
		return r
	},
	"WM-E-022": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		for n := range int32(3) { // the first is told, the others follow from it
			r.refused(&schema.TurnStartedData{Turn: n + 1}, n+1, func(e *schema.Event) { e.Sequence = schema.Sequence(3 + n) }) //nolint:gosec // small
		}
		return r
	},
	"WM-E-023": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		e := r.make(&schema.TurnStartedData{Turn: 2}, 2, func(e *schema.Event) { e.Sequence = 2 })
		require.Equal(t, schema.Rejected, r.put(e).Kind)
		return r
	},
	"WM-E-026": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, bare)
		return r
	},
	"WM-E-027": func(t *testing.T) *tape {
		t.Helper()
		r := doubt(t, schema.ReplayPure)
		old := r.make(&schema.TurnEndedData{Turn: 1}, 1, func(e *schema.Event) { e.Source, e.Epoch, e.Sequence = schema.Source("f", "ex-1"), 1, 4 })
		require.Equal(t, schema.Rejected, r.put(old).Kind)
		return r
	},
	"WM-E-028": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Epoch, e.Sequence = 2, 1 })
		return r
	},
	"WM-E-029": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1, plain)
		r.write(&schema.TurnEndedData{Turn: 1}, 1, plain)
		return r
	},
	"WM-E-030": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.refused(&schema.RunCancelRequestedData{By: "me"}, 0)
		return r
	},
	"WM-E-031": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		v := r.control(&schema.RunResumedData{
			Executor: "ex-2", Reason: "claim", RequestID: "q1", From: schema.From{Epoch: 1, Sequence: 7, Digest: r.head.Digest},
		}, 0, func(e *schema.Event) {
			e.Epoch = 2
			e.ID = schema.ControlID("r-1", 2, "t")
		})
		require.Equal(t, schema.Rejected, v.Kind)
		return r
	},
	"WM-E-040": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.end()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1)
		return r
	},
	"WM-E-041": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.call("c1", schema.ReplayPure, 0)
		r.end()
		return r
	},
	"WM-E-042": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.end()
		return r
	},
	"WM-E-043": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.LimitReachedData{Limit: "turns"}, 0)
		r.write(&schema.RunEndedData{Status: "failed", Summary: "ran out"}, 0)
		return r
	},
	"WM-E-044": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.PhaseCompletedData{Phase: "build"}, 0)
		return r
	},
	"WM-E-045": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.PhaseStartedData{Phase: "build"}, 0)
		r.write(&schema.PhaseCompletedData{Phase: "build"}, 0)
		r.refused(&schema.PhaseStartedData{Phase: "build"}, 0)
		return r
	},
	"WM-E-046": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", CompletionTool: "submit"}, 0)
		r.write(&schema.RunEndedData{Status: "completed"}, 0)
		return r
	},
	"WM-E-047": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", MaxTurns: 1}, 0)
		r.answers(1)
		r.answers(2)
		return r
	},
	"WM-E-050": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.endTurn(1)
		r.refused(&schema.TurnStartedData{Turn: 1}, 1)
		r.refused(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayPure}, 1)
		return r
	},
	"WM-E-051": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.endTurn(1)
		r.call("c1", schema.ReplayPure, 2)
		return r
	},
	"WM-E-052": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 2)
		return r
	},
	"WM-E-053": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 0)
		return r
	},
	"WM-E-054": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.endTurn(1)
		return r
	},
	"WM-E-055": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.says(1, schema.Text("I look."), schema.CallPart("c1", "tool"))
		r.call("c1", schema.ReplayPure, 1)
		r.result("c1", 1)
		r.endTurn(1)
		return r
	},
	"WM-E-056": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		part := schema.CallPart("c1", "tool")
		part.Arguments = []byte(`{"path":"a"}`)
		r.write(&schema.TurnAnsweredData{
			Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{part}},
			Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayPure}},
		}, 1)
		r.result("c1", 1)
		answer := schema.ResponsePart("c1")
		answer.Response = []byte(`"done"`)
		r.write(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{answer}}}, 1)
		return r
	},
	"WM-E-058": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.write(&schema.TurnAnsweredData{
			Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "tool")}},
		}, 1)
		return r
	},
	"WM-E-060": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
		return r
	},
	"WM-E-061": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.refused(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool", Replay: "pure"}, 1)
		return r
	},
	"WM-E-062": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.result("c1", 1)
		r.result("c1", 1)
		return r
	},
	"WM-E-063": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", "", 1)
		return r
	},
	"WM-E-064": func(t *testing.T) *tape {
		t.Helper()
		r := doubt(t, schema.ReplayPure)
		r.result("c1", 1)
		return r
	},
	"WM-E-065": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.refused(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
		return r
	},
	"WM-E-066": func(t *testing.T) *tape {
		t.Helper()
		r := doubt(t, schema.ReplayHold)
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
		return r
	},
	"WM-E-067": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionDeny}, 1)
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
		return r
	},
	"WM-E-068": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayPure, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAsk}, 1)
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
		return r
	},
	"WM-E-070": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		for i := range schema.MaxMarks {
			r.write(&schema.CheckpointMarkedData{Name: fmt.Sprintf("m%d", i)}, 0)
		}
		r.refused(&schema.CheckpointMarkedData{Name: "one too many"}, 0)
		return r
	},
	"WM-E-071": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
		r.result("c1", 1)
		return r
	},
	"WM-E-080": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		require.Equal(t, schema.Rejected, r.control(&schema.RunInputData{InterruptID: "i1", By: "ann"}, 0).Kind)
		return r
	},
	"WM-E-081": func(t *testing.T) *tape {
		t.Helper()
		r := worked(t)
		r.call("c1", schema.ReplayHold, 1)
		r.refused(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"}, 1)
		return r
	},
	"WM-E-082": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput, ExpiresAt: schema.FormatTime(r.clock.Add(-time.Hour))}, 0)
		return r
	},
	"WM-E-083": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		require.Equal(t, schema.Applied, r.control(&schema.SignalSentData{SignalID: "s1", Name: "note"}, 0).Kind)
		r.write(&schema.SignalConsumedData{SignalIDs: []string{"s1"}}, 0)
		r.refused(&schema.TurnStartedData{Turn: 1, Signals: []string{"s1"}}, 1)
		return r
	},
	"WM-E-084": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		require.Equal(t, schema.Applied, r.control(&schema.SignalSentData{SignalID: "s1", Name: "note"}, 0).Kind)
		require.Equal(t, schema.Rejected, r.control(&schema.SignalSentData{SignalID: "s1", Name: "note"}, 0).Kind)
		return r
	},
	"WM-E-090": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		require.Equal(t, schema.Rejected, r.control(&schema.HandoffAcceptedData{HandoffID: "h1", By: "ann"}, 0).Kind)
		return r
	},
	"WM-E-091": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "error"}, 0)
		require.Equal(t, schema.Applied, r.control(&schema.HandoffAcceptedData{HandoffID: "h1", By: "ann"}, 0).Kind)
		r.refused(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "task_complete"}, 0)
		return r
	},
	"WM-E-092": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "error", SizeChars: 4001}, 0)
		return r
	},
	"WM-E-093": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.write(&schema.HandoffOfferedData{Reason: "error"}, 0)
		return r
	},
	"WM-E-100": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		r.message("waymark.heartbeats.f.ex-1", nil, []byte(`{"executor":"ex-2"}`), true)
		return r
	},
	"WM-E-101": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", Instance: "s1"}, 0)
		r.message("waymark.heartbeats.f.ex-1", nil, []byte(`{"executor":"ex-1","instance":"s2"}`), true)
		r.turn(1)
		return r
	},
	"WM-E-102": func(t *testing.T) *tape {
		t.Helper()
		r := newTape(t)
		r.start()
		require.Equal(t, schema.Applied, r.control(&schema.RunOrphanedData{Executor: "ex-1"}, 0).Kind)
		r.turn(1)
		return r
	},
	"WM-E-110": func(t *testing.T) *tape {
		t.Helper()
		return published(t, map[string][]string{"Nats-Msg-Id": {"2"}, "Nats-Expected-Last-Subject-Sequence": {"0"}})
	},
	"WM-E-111": func(t *testing.T) *tape {
		t.Helper()
		return published(t, map[string][]string{})
	},
}

// published is a run whose first event was seen with the headers that it was published with; an id that is not given is right.
func published(t *testing.T, with map[string][]string) *tape {
	t.Helper()
	r := newTape(t)
	r.wire = true
	e := r.make(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
	header, body := e.Encode()
	if with["Nats-Msg-Id"] == nil {
		with["Nats-Msg-Id"] = []string{e.ID}
	}
	maps.Copy(header, with)
	r.message("waymark.events.f.0.r-1", header, body, true)
	r.put(e)
	return r
}
