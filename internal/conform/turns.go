package conform

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// turnEvent checks turn.started, turn.answered, turn.ended and message.added.
func (r *run) turnEvent(a *moment) {
	var number int32
	switch d := a.data.(type) {
	case *schema.TurnStartedData:
		number = d.Turn
		r.summed = r.summed || r.limit && d.Purpose == schema.PurposeRecovery
		r.heard(a, "/messages", d.Messages)
	case *schema.TurnAnsweredData:
		number = d.Turn
		r.heard(a, "/message", []schema.Message{d.Message})
		r.answered(a, d)
	case *schema.TurnEndedData:
		number = d.Turn
		if a.verdict.Kind == schema.Applied && !a.verdict.Over {
			break // the turn ended with its answer's last outcome
		}
		if !a.turnOpen || a.turn != d.Turn {
			r.found(ruleTurnStarted, a, "/turn", fmt.Sprintf("turn.started of turn %d before", d.Turn), "turn.ended")
		}
		r.heard(a, "/messages", d.Messages)
		r.turnEnded(a, d)
	case *schema.MessageAddedData:
		if a.e.Turn == r.head.Turn || a.e.Turn == 0 && r.head.TurnOpen {
			r.heard(a, "/message", []schema.Message{d.Message})
		}
	}
	if number != 0 && a.e.Turn != 0 && a.e.Turn != number {
		r.found(ruleTurnSame, a, "ce-turn", fmt.Sprint(number), fmt.Sprint(a.e.Turn))
	}
}

// heard checks messages of the turn.
func (r *run) heard(a *moment, path string, messages []schema.Message) {
	for i := range messages {
		m := &messages[i]
		at := path
		if strings.HasSuffix(path, "s") {
			at = fmt.Sprintf("%s/%d", path, i)
		}
		r.parts(a, at, m)
	}
}

// parts checks the calls in a message. The messages at the start of a turn may contain calls that the run does not
// have.
func (r *run) parts(a *moment, path string, m *schema.Message) {
	for i := range m.Parts {
		p, at := &m.Parts[i], fmt.Sprintf("%s/parts/%d", path, i)
		switch {
		case p.Type == schema.PartToolCall && a.name != schema.TurnStarted:
			if m.Role == schema.RoleAssistant && a.name != schema.TurnAnswered {
				r.found(ruleAnswerWhole, a, at, "turn.answered with the message and the call "+p.ID, "a message of "+a.name)
			}
			if len(p.Arguments) > 0 {
				r.found(ruleStoredOnce, a, at+"/arguments", "no arguments: the call has them", fmt.Sprintf("%d bytes", len(p.Arguments)))
			}
		case p.Type == schema.PartToolCallResponse:
			if len(p.Response) > 0 && r.head.CallsOf(cmp.Or(p.CallTurn, r.head.Turn), p.ID) > 0 {
				r.found(ruleStoredOnce, a, at+"/response", "no response: it is in tool.returned", fmt.Sprintf("%d bytes", len(p.Response)))
			}
		}
	}
}

// answered checks an answer's calls, and the parts of its message that name them.
func (r *run) answered(a *moment, d *schema.TurnAnsweredData) {
	for i := range a.verdict.Calls {
		if d.Calls[i].Error == nil { // a call that cannot be made never runs
			r.policy(a, fmt.Sprintf("/calls/%d/replay", i), d.Calls[i].Replay)
		}
	}
	for i := range d.Message.Parts {
		p := &d.Message.Parts[i]
		if p.Type == schema.PartToolCall && !slices.ContainsFunc(d.Calls, func(c schema.RequestedCall) bool { return c.ToolCallID == p.ID }) {
			r.found(rulePartsKnown, a, fmt.Sprintf("/message/parts/%d", i), "the call "+p.ID+" in calls", "no such call")
		}
	}
}

// turnEnded checks an ended turn.
func (r *run) turnEnded(a *moment, d *schema.TurnEndedData) {
	for i := range r.head.OpenCalls {
		if c := &r.head.OpenCalls[i]; c.Turn == d.Turn {
			r.found(ruleTurnClean, a, "/turn", "an outcome of call "+c.ToolCallID, "the call is open")
		}
	}
}
