package conform

import (
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// callEvent checks an event about a call.
func (r *run) callEvent(a *moment) {
	id, _, ok := schema.CallOf(a.data)
	if !ok {
		return
	}
	if r.head.Turn != 0 && a.e.Turn == 0 && !a.control {
		r.found(ruleTurnGiven, a, "ce-turn", fmt.Sprint(r.head.Turn), "no turn")
	}
	switch d := a.data.(type) {
	case *schema.ToolCalledData:
		r.called(a, d)
	case *schema.ToolDecidedData:
		if a.open == nil {
			return // decided before it is recorded, or long closed
		}
		if d.Decision == schema.DecisionAsk && !a.open.Requested && !a.open.Replay.Rerunnable() {
			r.found(ruleAsked, a, "/decision", "a call that is requested, and not begun", "it was begun, and is in doubt after a takeover")
		}
	case *schema.ToolSettledData:
		r.settled(a, d)
	case *schema.ToolReturnedData, *schema.ToolFailedData:
		r.outcome(a, id)
	}
}

func (r *run) called(a *moment, d *schema.ToolCalledData) {
	if a.verdict.Begun {
		return
	}
	if a.verdict.Opened {
		r.found(ruleTurnStarted, a, "ce-turn", fmt.Sprintf("turn.started of turn %d before", a.e.Turn), "tool.called")
	}
	r.policy(a, "/replay", d.Replay)
}

func (r *run) policy(a *moment, field string, said schema.Replay) {
	if said == "" {
		r.found(rulePolicy, a, field, "pure, idempotent, verify or hold", "none, which counts as hold")
	}
}

func (r *run) settled(a *moment, d *schema.ToolSettledData) {
	if a.open == nil {
		return
	}
	if !a.control && a.open.Replay == schema.ReplayHold && d.How != schema.SettledAdopted {
		r.found(ruleHold, a, "/how", "adopted, or a person's settlement", string(d.How)+", by the executor")
	}
}

// ran reports whether a failure shows that the tool ran: it has an attempt or took time.
func ran(data schema.Data) bool {
	d, ok := data.(*schema.ToolFailedData)
	return ok && (d.Attempt > 0 || d.DurationMS > 0)
}

func (r *run) outcome(a *moment, id string) {
	if a.open == nil {
		return
	}
	returned := a.name == schema.ToolReturned
	switch {
	case a.open.InDoubt && !returned && a.open.Decision == schema.DecisionDeny: // it never ran, and never will
	case a.open.InDoubt:
		r.found(ruleSettleFirst, a, "/tool_call_id", "tool.settled of call "+id+" before", a.name)
	case a.open.Requested && !a.open.Replay.Rerunnable() && (returned || ran(a.data)):
		r.found(ruleBegun, a, "/tool_call_id", "tool.called of call "+id+" before", "an outcome of a call that was not begun")
	}
}
