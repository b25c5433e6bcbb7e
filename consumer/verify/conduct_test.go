package verify_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/schema"
)

// mistaken is a run with one mistake of the executor, the check that names it, and a part of what it says.
type mistaken struct {
	check, says string
	make        func(r *tape)
}

var broken = []mistaken{
	{"started", "the first event of a run is run.started", func(r *tape) { r.turn(1) }},
	{"numbering", "has no epoch", func(r *tape) { r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, bare) }},
	{"numbering", "has no sequence, and earlier events", func(r *tape) {
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 1, plain)
	}},
	{"numbering", "has a sequence, and earlier events", func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, plain)
		r.turn(1)
	}},
	{"id", `the id "plain-1" belongs to an earlier event`, func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, plain)
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1, plain)
		e.ID = "plain-1"
		require.Equal(r.t, schema.Duplicate, r.put(e).Kind)
	}},
	{"type", "no type io.waymark.tool.call.v1", func(r *tape) {
		r.start()
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0, func(e *schema.Event) { e.Type = "io.waymark.tool.call.v1" })
	}},
	{"type", "io.waymark.error.raised is meant to be io.waymark.error.raised.v1", func(r *tape) {
		r.start()
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0, func(e *schema.Event) { e.Type = "io.waymark.error.raised" })
	}},
	{"type", "turn.ended is meant to be io.waymark.turn.ended.v1", func(r *tape) {
		r.start()
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0, func(e *schema.Event) { e.Type = "turn.ended" })
	}},
	{"turn", "the attribute turn is 2, the data has turn 1", func(r *tape) {
		r.start()
		r.write(&schema.TurnStartedData{Turn: 1}, 2)
	}},
	{"turn", "has no turn, the run is in turn 1", func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 0)
	}},
	{"turn_started", "turn 1 has no turn.started", func(r *tape) {
		r.start()
		r.endTurn(1)
	}},
	{"turn_started", "turn 2 has no turn.started", func(r *tape) {
		r.start()
		r.call("c1", schema.ReplayPure, 2)
	}},
	{"open_call", `call "c1" of turn 1 is begun and has no outcome`, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.endTurn(1)
	}},
	{"open_call", `the run is completed, and call "c1" of turn 1 is open`, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.end()
	}},
	{"open_call", `the run is completed, and call "c1" of turn 1 was not made`, func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
		r.end()
	}},
	{"open_call", "the run is completed, and turn 1 is open", func(r *tape) {
		r.start()
		r.turn(1)
		r.end()
	}},
	{"begun", `call "c1" has the policy hold and no tool.called`, func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
		r.result("c1", 1)
	}},
	{"begun", "after a crash the tool runs again", func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
		r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: "timeout"}, Attempt: 1, DurationMS: 3000}, 1)
	}},
	{"settled", "gets a result without tool.settled", func(r *tape) {
		*r = *doubt(r.t, schema.ReplayPure)
		r.result("c1", 1)
	}},
	{"settled", "gets a failure without tool.settled", func(r *tape) {
		*r = *doubt(r.t, schema.ReplayPure)
		r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: "timeout"}}, 1)
	}},
	{"settled", "settled by the executor", func(r *tape) {
		*r = *doubt(r.t, schema.ReplayHold)
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
	}},
	{"settled", "a person is asked whether it may begin", func(r *tape) {
		*r = *doubt(r.t, schema.ReplayHold)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAsk}, 1)
	}},
	{"policy", `call "c1" has no replay policy`, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", "", 1)
	}},
	{"policy", `call "c2" has no replay policy`, func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayPure}, schema.RequestedCall{ToolCallID: "c2", Name: "tool"})
	}},
	{"outcome", "the call has an outcome already", func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.result("c1", 1)
		r.result("c1", 1)
	}},
	{"contract", `completed_by names no call of "submit"`, func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", CompletionTool: "submit"}, 0)
		r.write(&schema.RunEndedData{Status: "completed"}, 0)
	}},
	{"contract", "the limit of turns is reached", func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", MaxTurns: 1}, 0)
		r.answers(1)
		r.answers(2)
	}},
	{"contract", "the limit of turns is reached", func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", MaxTurns: 1}, 0)
		r.answers(1)
		r.turn(2)
	}},

	{verify.Refused, "not_cloudevent, ", func(r *tape) {
		r.start()
		r.message(map[string][]string{"x-type": {"turn"}}, []byte(`{"turn":1}`))
	}},
	{verify.Refused, "invalid_attribute, ", func(r *tape) {
		r.start()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Source = "/waymark/g/ex-1" })
	}},
	{verify.Refused, "invalid_attribute, ", func(r *tape) {
		r.start()
		e := r.make(&schema.TurnStartedData{Turn: 1}, 1)
		e.ID = "r-1.1.2.00000000"
		require.Equal(r.t, schema.Rejected, r.put(e).Kind)
	}},
	{verify.Refused, "invalid_data, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.refused(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls", Replay: "pure"}, 1, func(e *schema.Event) { e.Data = []byte(`{"name":"ls"}`) })
	}},
	{verify.Refused, "already_started, ", func(r *tape) {
		r.start()
		r.refused(&schema.RunStartedData{Agent: "coder", Executor: "ex-2"}, 0)
	}},
	{verify.Refused, "gap, ", func(r *tape) {
		r.start()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Sequence = 3 })
	}},
	{verify.Refused, "forked, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.refused(&schema.TurnStartedData{Turn: 2}, 2, func(e *schema.Event) { e.Sequence = 2 })
	}},
	{verify.Refused, "fenced, ", func(r *tape) {
		*r = *doubt(r.t, schema.ReplayPure)
		r.refused(&schema.TurnEndedData{Turn: 1}, 1, func(e *schema.Event) { e.Source, e.Epoch, e.Sequence = schema.Source("f", "ex-1"), 1, 4 })
	}},
	{verify.Refused, "epoch_ahead, ", func(r *tape) {
		r.start()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1, func(e *schema.Event) { e.Epoch, e.Sequence = 2, 1 })
	}},
	{verify.Refused, "not_control, ", func(r *tape) {
		r.start()
		r.refused(&schema.RunCancelRequestedData{By: "me"}, 0)
	}},
	{verify.Refused, "run_ended, ", func(r *tape) {
		r.start()
		r.end()
		r.refused(&schema.TurnStartedData{Turn: 1}, 1)
	}},
	{verify.Refused, "phase_completed, ", func(r *tape) {
		r.start()
		r.write(&schema.PhaseStartedData{Phase: "build"}, 0)
		r.write(&schema.PhaseCompletedData{Phase: "build"}, 0)
		r.refused(&schema.PhaseStartedData{Phase: "build"}, 0)
	}},
	{verify.Refused, "turn_order, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.endTurn(1)
		r.refused(&schema.TurnStartedData{Turn: 1}, 1)
	}},
	{verify.Refused, "unknown_call, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	}},
	{verify.Refused, "call_open, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.refused(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool", Replay: "pure"}, 1)
	}},
	{verify.Refused, "not_in_doubt, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.refused(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
	}},
	{verify.Refused, "not_allowed, ", func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionDeny}, 1)
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	}},
	{verify.Refused, "signal, ", func(r *tape) {
		r.start()
		r.control(&schema.SignalSentData{SignalID: "s1", Name: "note"}, 0)
		r.write(&schema.SignalConsumedData{SignalIDs: []string{"s1"}}, 0)
		r.refused(&schema.TurnStartedData{Turn: 1, Signals: []string{"s1"}}, 1)
	}},
	{verify.Refused, "handoff_taken, ", func(r *tape) {
		r.start()
		r.write(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "error"}, 0)
		r.control(&schema.HandoffAcceptedData{HandoffID: "h1", By: "bob"}, 0)
		r.refused(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "task_complete"}, 0)
	}},
}

func TestConduct_MistakeOfAnExecutor_IsNamed(t *testing.T) {
	t.Parallel()
	for _, b := range broken {
		t.Run(b.check+" "+b.says, func(t *testing.T) {
			r := newTape(t)
			b.make(r)
			found := r.judge()
			require.Len(t, found, 1, "%v", found)
			require.Equal(t, b.check, found[0].Check)
			require.Contains(t, found[0].Problem, b.says)
			require.NotZero(t, found[0].Event.Stream)
			require.Contains(t, found[0].String(), b.check+": event ")
		})
	}
}

// good are runs in which the executor made no mistake.
var good = map[string]func(r *tape){
	"turns": func(r *tape) {
		r.start()
		r.turn(1)
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayPure},
			schema.RequestedCall{ToolCallID: "c2", Name: "tool", Replay: schema.ReplayIdempotent})
		r.result("c2", 1)
		r.result("c1", 1)
		r.turn(2)
		r.answers(2, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayVerify, VerifySubject: "tools.verify"},
			schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold}) // ids come again
		for i := 1; i <= 2; i++ {
			r.write(&schema.ToolCalledData{ToolCallID: "c1", Occurrence: i, Name: "tool"}, 2)
			r.write(&schema.ToolFailedData{ToolCallID: "c1", Occurrence: i, Error: schema.Error{Type: "timeout"}, Attempt: 1}, 2)
		}
		r.end()
	},
	"call that cannot be made": func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "rm", Error: &schema.Error{Type: "unknown_tool"}})
		r.end()
	},
	"call run again": func(r *tape) {
		*r = *doubt(r.t, schema.ReplayPure)
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
		r.result("c1", 1)
		r.endTurn(1)
		r.end()
	},
	"late result": func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayHold, 1)
		old := r.make(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`1`)}, 1) // it waits, and the run is taken over
		r.takeover("ex-2", "claim")
		require.Equal(r.t, schema.Evidence, r.put(old).Kind)
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAdopted}, 1)
		r.endTurn(1)
		r.end()
	},
	"held call settled by a person": func(r *tape) {
		*r = *doubt(r.t, schema.ReplayHold)
		r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"}, 1)
		r.write(&schema.RunInterruptedData{Reason: "waiting"}, 0)
		r.control(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "ann"}, 1)
		r.takeover("ex-3", "input")
		r.call("c1", schema.ReplayHold, 1)
		r.result("c1", 1)
		r.endTurn(1)
		r.end()
	},
	"denial taken back by a person": func(r *tape) {
		r.start()
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool"}, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionDeny}, 1)
		r.takeover("ex-2", "claim")
		r.control(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "ann"}, 1)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool"}, 1)
		r.result("c1", 1)
		r.end()
	},
	"turn left by a crash": func(r *tape) {
		r.start()
		r.turn(1)
		r.takeover("ex-2", "claim")
		r.turn(1)
		r.endTurn(1)
		r.end()
	},
	"approval": func(r *tape) {
		r.start()
		r.turn(1)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold, Requested: true}, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAsk}, 1)
		r.write(&schema.RunWaitingData{InterruptID: "i2", Reason: schema.WaitToolApproval, ToolCallID: "c1"}, 1)
		r.control(&schema.RunInputData{InterruptID: "i2", Payload: []byte(`{"decision":"allow"}`), By: "ann"}, 0)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAllow}, 1)
		r.call("c1", schema.ReplayHold, 1)
		r.result("c1", 1)
		r.call("c2", schema.ReplayHold, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c2", Decision: schema.DecisionDeny}, 1)
		r.write(&schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: "denied"}}, 1)
		r.endTurn(1)
		r.end()
	},
	"no sequences, and a retry": func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, plain)
		r.write(&schema.TurnStartedData{Turn: 1}, 1, plain)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "mail", Replay: schema.ReplayHold}, 1, plain)
		again := r.make(&schema.ToolReturnedData{ToolCallID: "c1"}, 1, plain)
		require.Equal(r.t, schema.Applied, r.put(again).Kind)
		require.Equal(r.t, schema.Duplicate, r.put(again).Kind)
		r.write(&schema.TurnEndedData{Turn: 1}, 1, plain)
		r.write(&schema.RunEndedData{Status: "completed"}, 0, plain)
	},
	"contract": func(r *tape) {
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", CompletionTool: "submit", MaxTurns: 1}, 0)
		r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "submit", Replay: schema.ReplayPure})
		r.result("c1", 1)
		r.write(&schema.LimitReachedData{Limit: "turns"}, 0)
		r.write(&schema.TurnStartedData{Turn: 2, Purpose: schema.PurposeRecovery}, 2)
		r.endTurn(2)
		r.write(&schema.RunEndedData{Status: "completed", CompletedBy: "c1"}, 0)
	},
	"cancelled with an open call": func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.control(&schema.RunCancelRequestedData{By: "ann"}, 0)
		r.write(&schema.RunEndedData{Status: "cancelled"}, 0)
	},
	"type of another producer": func(r *tape) {
		r.start()
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0, func(e *schema.Event) {
			e.Type, e.Data, e.DataContentType = "com.example.progress", []byte("half"), "text/plain"
		})
		r.end()
	},
}

func TestConduct_GoodRun_HasNoMistake(t *testing.T) {
	t.Parallel()
	for name, play := range good {
		t.Run(name, func(t *testing.T) {
			r := newTape(t)
			play(r)
			require.Empty(t, r.judge())
		})
	}
}

func TestConduct_ManyMistakesOfOneCheck_AreCounted(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.start()
	for range 10 {
		r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 0)
	}
	found := r.judge()
	require.Len(t, found, 4)
	require.Equal(t, 6, found[0].More)
	require.Contains(t, found[0].String(), "(and 6 more)")
}

func TestEventsPage_Checks_AreListed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/events.md")
	require.NoError(t, err)
	names := append(verify.CheckNames(), verify.Refused, verify.WrongShard)
	for _, name := range names {
		require.Contains(t, string(page), "\n| `"+name+"` |", "docs/events.md, Mistakes of executors")
		require.True(t, name == verify.WrongShard || slices.ContainsFunc(broken, func(b mistaken) bool { return b.check == name }), "no case of %s", name)
	}
}
