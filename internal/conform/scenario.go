package conform

import (
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// Scenario is a test that an author runs with an executor.
type Scenario struct {
	ID string `json:"id"`
	// Text says how to run it.
	Text  string `json:"text"`
	steps []step
}

// step is one thing that must be seen, in order.
type step struct {
	text string
	seen func(a *moment) bool
}

// Outcome reports whether a scenario was seen.
type Outcome struct {
	Scenario string `json:"scenario"`
	Passed   bool   `json:"passed"`
	// Run that showed it, or that got furthest.
	Run string `json:"run,omitzero"`
	// Missing is the first step that was not seen, or another problem.
	Missing string `json:"missing,omitzero"`
}

// Steps of the scenario, in words.
func (s *Scenario) Steps() []string {
	out := make([]string, len(s.steps))
	for i, step := range s.steps {
		out[i] = step.text
	}
	return out
}

// Scenarios returns the known scenarios.
func Scenarios() []Scenario { return slices.Clone(scenarios) }

func event(name string) step {
	return step{name, func(a *moment) bool { return a.name == name }}
}

func when[T any](text string, is func(a *moment, d T) bool) step {
	return step{text, func(a *moment) bool {
		d, ok := a.data.(T)
		return ok && is(a, d)
	}}
}

var completed = when("run.ended (completed)", func(_ *moment, d *schema.RunEndedData) bool {
	return d.Status == string(schema.StatusCompleted)
})

func called(replay schema.Replay) step {
	return step{"a call with replay " + string(replay), func(a *moment) bool {
		switch d := a.data.(type) {
		case *schema.TurnAnsweredData:
			return slices.ContainsFunc(d.Calls, func(c schema.RequestedCall) bool { return c.Replay == replay })
		case *schema.ToolCalledData:
			return d.Replay == replay
		}
		return false
	}}
}

func closed(replay schema.Replay) step {
	return step{"its outcome", func(a *moment) bool {
		return a.open != nil && a.open.Replay == replay && (a.name == schema.ToolReturned || a.name == schema.ToolFailed)
	}}
}

func takenOver(replay schema.Replay) step {
	return step{"run.resumed while a call with replay " + string(replay) + " is open", func(a *moment) bool { return slices.Contains(a.taken, replay) }}
}

func settledAs(replay schema.Replay, control bool, text string) step {
	return when(text, func(a *moment, _ *schema.ToolSettledData) bool {
		return a.open != nil && a.open.Replay == replay && a.control == control
	})
}

func tool(replay schema.Replay, text string) Scenario {
	return Scenario{"tool-" + string(replay), text, []step{called(replay), closed(replay)}}
}

// rerun is the scenario of a call that runs again without a person's decision.
func rerun(replay schema.Replay, text string) Scenario {
	return Scenario{"resume-" + string(replay), text, []step{called(replay), takenOver(replay), closed(replay), completed}}
}

var scenarios = []Scenario{
	{"start", "Start a run and let it end.", []step{event(schema.RunStarted), completed}},
	{"turns", "Let a run have two turns, each with a message of the model.", []step{
		message(1), message(2), completed,
	}},
	tool(schema.ReplayPure, "Call a tool without effects."),
	tool(schema.ReplayIdempotent, "Call a tool that takes an idempotency key."),
	tool(schema.ReplayVerify, "Call a tool that can verify its calls."),
	tool(schema.ReplayHold, "Call a tool that must not be repeated."),
	rerun(schema.ReplayPure, "Kill the executor (kill -9) in a pure tool, and let another executor take the run over."),
	rerun(schema.ReplayIdempotent, "Kill the executor in an idempotent tool, and let another executor take the run over."),
	{"resume-verify", "Kill the executor in a tool with replay verify, and let another executor take the run over.", []step{
		called(schema.ReplayVerify), takenOver(schema.ReplayVerify), settledAs(schema.ReplayVerify, false, "tool.settled by the executor"), completed,
	}},
	{"resume-hold", "Kill the executor in a tool with replay hold, let another executor take the run over, and settle the call with waymark settle.", []step{
		called(schema.ReplayHold), takenOver(schema.ReplayHold),
		when("run.waiting with the reason tool_in_doubt", func(_ *moment, d *schema.RunWaitingData) bool { return d.Reason == schema.WaitToolInDoubt }),
		settledAs(schema.ReplayHold, true, "tool.settled by an operator"), completed,
	}},
	{"resume-turn", "Kill the executor while the model answers, and let another executor take the run over.", []step{
		event(schema.TurnStarted), event(schema.RunResumed),
		{"turn.started of the same turn", func(a *moment) bool { return a.verdict.Superseded }},
		completed,
	}},
	{"shutdown", "Stop the executor (kill -TERM) while it works, and let another executor continue.", []step{
		when("run.interrupted (shutdown)", func(_ *moment, d *schema.RunInterruptedData) bool { return d.Reason == schema.InterruptedShutdown }),
		event(schema.RunResumed), completed,
	}},
	{"input", "Let a run ask a person, and answer with waymark input.", []step{
		when("run.waiting with the reason human_input", func(_ *moment, d *schema.RunWaitingData) bool { return d.Reason == schema.WaitHumanInput }),
		event(schema.RunInput), completed,
	}},
	{"approval", "Let the executor ask a person about a call, and allow it with waymark input.", []step{
		decided(schema.DecisionAsk),
		when("run.waiting with the reason tool_approval", func(_ *moment, d *schema.RunWaitingData) bool { return d.Reason == schema.WaitToolApproval }),
		event(schema.RunInput), decided(schema.DecisionAllow), event(schema.ToolReturned), completed,
	}},
	{"denial", "Let a call be denied.", []step{decided(schema.DecisionDeny), event(schema.ToolFailed)}},
	{"cancel", "Cancel a run with waymark cancel.", []step{
		event(schema.RunCancelRequested),
		when("run.ended (cancelled)", func(_ *moment, d *schema.RunEndedData) bool { return d.Status == string(schema.StatusCancelled) }),
	}},
	{"phases", "Kill the executor in the second phase of a run, and let another executor take the run over.", []step{
		event(schema.PhaseStarted), event(schema.PhaseCompleted), event(schema.PhaseStarted), event(schema.RunResumed), event(schema.PhaseStarted),
		event(schema.PhaseCompleted), completed,
	}},
	{"limit", "Let a run hit its limit of turns.", []step{
		event(schema.LimitReached),
		when("turn.started with the purpose recovery", func(_ *moment, d *schema.TurnStartedData) bool { return d.Purpose == schema.PurposeRecovery }),
		when("run.ended with a summary", func(_ *moment, d *schema.RunEndedData) bool { return d.Summary != "" }),
	}},
	{"hand-off", "Offer a run's work, and accept it with waymark handoff accept.", []step{
		event(schema.HandoffOffered), event(schema.HandoffAccepted),
	}},
	{"hand-off-child", "Carry out an accepted hand-off in a new run.", []step{
		when("run.started that names the hand-off", func(_ *moment, d *schema.RunStartedData) bool { return d.Handoff != nil }), completed,
	}},
}

func message(turn int32) step {
	return step{fmt.Sprintf("a message of the assistant in turn %d", turn), func(a *moment) bool {
		if a.e.Turn != turn {
			return false
		}
		switch d := a.data.(type) {
		case *schema.TurnAnsweredData:
			return true
		case *schema.MessageAddedData:
			return d.Message.Role == schema.RoleAssistant
		case *schema.TurnEndedData:
			return slices.ContainsFunc(d.Messages, func(m schema.Message) bool { return m.Role == schema.RoleAssistant })
		}
		return false
	}}
}

func decided(decision string) step {
	return when("tool.decided ("+decision+")", func(_ *moment, d *schema.ToolDecidedData) bool { return d.Decision == decision })
}

// outcomes reports how far the expected scenarios got.
func (c *Checker) outcomes() []Outcome {
	out := make([]Outcome, 0, len(c.scenarios))
	for i := range c.scenarios {
		s := &c.scenarios[i]
		o := Outcome{Scenario: s.ID, Missing: s.steps[0].text}
		best := 0
		for _, name := range c.order {
			r := c.runs[name]
			switch n := r.steps[i]; {
			case n == len(s.steps) && !r.bad:
				o = Outcome{Scenario: s.ID, Passed: true, Run: name}
			case o.Passed || n < best || n == 0:
			case n == len(s.steps):
				best = n
				o.Run, o.Missing = name, "the run breaks a rule"
			default:
				best = n
				o.Run, o.Missing = name, s.steps[n].text
			}
		}
		out = append(out, o)
	}
	return out
}
