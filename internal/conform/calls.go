package conform

import (
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// call is what is known of an open call beyond the head.
type call struct {
	// decision is the latest one.
	decision string
}

// known returns a call's entry, nil for one that was recorded where nobody looked: in the base of a fork.
func (r *run) known(c *schema.OpenCall) *call {
	if c == nil {
		return nil
	}
	return r.calls[c.CallKey]
}

// callEvent judges what is about a call.
func (r *run) callEvent(a *moment) {
	id, _, ok := callOf(a.data)
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
			r.found(ruleAsked, a, "/decision", "a call that is requested, and not begun", "it was begun, and is in doubt behind a takeover")
		}
		if c := r.known(a.open); c != nil {
			c.decision = d.Decision
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
	r.calls[a.verdict.Call] = &call{}
}

func (r *run) policy(a *moment, field string, said schema.Replay) {
	if said == "" {
		r.found(rulePolicy, a, field, "pure, idempotent, verify or hold", "none, which is taken as hold")
	}
}

func (r *run) settled(a *moment, d *schema.ToolSettledData) {
	c := r.known(a.open)
	if a.open == nil || c == nil {
		return
	}
	if !a.control && a.open.Replay == schema.ReplayHold && d.How != schema.SettledAdopted {
		r.found(ruleHold, a, "/how", "adopted, or a person's settlement", string(d.How)+", by the executor")
	}
	if d.How != schema.SettledRerun {
		delete(r.calls, a.open.CallKey)
	}
}

func (r *run) outcome(a *moment, id string) {
	if a.open == nil {
		return
	}
	c := r.known(a.open)
	returned := a.name == schema.ToolReturned
	switch {
	case a.open.InDoubt && !returned && c != nil && c.decision == schema.DecisionDeny: // it never ran, and never will
	case a.open.InDoubt:
		r.found(ruleSettleFirst, a, "/tool_call_id", "tool.settled of call "+id+" before", a.name)
	case returned && c != nil && c.decision == schema.DecisionDeny:
		r.found(ruleDenied, a, "/tool_call_id", "tool.failed of type denied", "a result")
	case returned && c != nil && c.decision == schema.DecisionAsk:
		r.found(ruleAsked, a, "/tool_call_id", "tool.decided with allow before", "a result")
	case returned && a.open.Requested && !a.open.Replay.Rerunnable():
		r.found(ruleBegun, a, "/tool_call_id", "tool.called of call "+id+" before", "a result of a call that was not begun")
	}
	delete(r.calls, a.open.CallKey)
}
