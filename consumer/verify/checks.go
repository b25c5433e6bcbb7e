package verify

import (
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// check is a rule for executors that the fold does not enforce, because refusing the event would lose more.
type check struct {
	// name as in docs/events.md.
	name string
	// broken returns the problem of an executor's event, "" for none.
	broken func(c *conduct, s *step) string
}

var checks = []check{
	{"started", notStarted},
	{"numbering", numbering},
	{"id", idTwice},
	{"type", unknownType},
	{"turn", otherTurn},
	{"turn_started", turnNotStarted},
	{"open_call", openCall},
	{"begun", notBegun},
	{"settled", notSettled},
	{"policy", noPolicy},
	{"outcome", secondOutcome},
	{"contract", contract},
}

func notStarted(_ *conduct, s *step) string {
	if s.events == 0 && s.name != schema.RunStarted {
		return "the first event of a run is run.started"
	}
	return ""
}

func numbering(c *conduct, s *step) string {
	switch {
	case s.verdict.Kind != schema.Applied:
	case s.e.Epoch == 0:
		return "has no epoch: behind a takeover it would be refused"
	case s.e.Sequence == 0 && c.numbered && !c.unnumbered:
		return "has no sequence, and earlier events of the epoch have one: missing events are not detected"
	case s.e.Sequence != 0 && c.unnumbered && !c.numbered:
		return "has a sequence, and earlier events of the epoch have none: missing events are not detected"
	}
	return ""
}

func idTwice(c *conduct, s *step) string {
	if s.verdict.Kind != schema.Duplicate || s.e.Sequence != 0 {
		return ""
	}
	if was, ok := c.ids[idKey(s.e)]; ok && was != s.e.ContentHash() {
		return fmt.Sprintf("the id %.80q belongs to an earlier event with other content: this event was dropped", s.e.ID)
	}
	return ""
}

// unknownType finds types that have our prefix and are not in the vocabulary, and types that lack prefix or version.
func unknownType(_ *conduct, s *step) string {
	if s.name != "" && schema.NewData(s.name) != nil {
		return ""
	}
	name := strings.TrimPrefix(strings.TrimSuffix(s.e.Type, schema.TypeSuffix), schema.TypePrefix)
	switch {
	case schema.NewData(name) != nil:
		return fmt.Sprintf("the type %s is meant to be %s: the event was stored without effect", s.e.Type, schema.TypeOf(name))
	case strings.HasPrefix(s.e.Type, schema.TypePrefix):
		return fmt.Sprintf("the vocabulary has no type %.80s: the event was stored without effect", s.e.Type)
	}
	return ""
}

func otherTurn(_ *conduct, s *step) string {
	if _, _, ok := schema.CallOf(s.verdict.Data); ok && s.e.Turn == 0 {
		return fmt.Sprintf("the event of a call has no turn, the run is in turn %d: models reuse ids of calls", s.head.Turn)
	}
	number := int32(0)
	switch d := s.verdict.Data.(type) {
	case *schema.TurnStartedData:
		number = d.Turn
	case *schema.TurnAnsweredData:
		number = d.Turn
	case *schema.TurnEndedData:
		number = d.Turn
	}
	if number != 0 && s.e.Turn != 0 && s.e.Turn != number {
		return fmt.Sprintf("the attribute turn is %d, the data has turn %d", s.e.Turn, number)
	}
	return ""
}

func turnNotStarted(_ *conduct, s *step) string {
	switch d := s.verdict.Data.(type) {
	case *schema.ToolCalledData:
		if s.verdict.Opened {
			return fmt.Sprintf("turn %d has no turn.started and no turn.answered", s.head.Turn)
		}
	case *schema.TurnEndedData:
		// A turn whose answer's last outcome ended it may be ended again.
		if s.verdict.Over && (!s.turnOpen || s.turn != d.Turn) {
			return fmt.Sprintf("turn %d has no turn.started and no turn.answered", d.Turn)
		}
	}
	return ""
}

func openCall(c *conduct, s *step) string {
	switch d := s.verdict.Data.(type) {
	case *schema.TurnEndedData:
		for i := range s.head.OpenCalls {
			if open := &s.head.OpenCalls[i]; s.verdict.Over && open.Turn == d.Turn {
				return fmt.Sprintf("call %.80q of turn %d is begun and has no outcome", open.ToolCallID, open.Turn)
			}
		}
	case *schema.RunEndedData:
		switch {
		case d.Status != string(schema.StatusCompleted):
		case len(s.head.OpenCalls) > 0:
			return fmt.Sprintf("the run is completed, and call %.80q of turn %d is open", s.head.OpenCalls[0].ToolCallID, s.head.OpenCalls[0].Turn)
		case len(s.verdict.Abandoned) > 0:
			return fmt.Sprintf("the run is completed, and call %.80q of turn %d was not made", s.verdict.Abandoned[0].ToolCallID, s.verdict.Abandoned[0].Turn)
		case s.head.TurnOpen && len(s.head.TurnCalls) == 0 && c.said != s.head.Turn: // otherwise the loop is another program's
			return fmt.Sprintf("the run is completed, and turn %d is open", s.head.Turn)
		}
	}
	return ""
}

// ranTool reports whether the event is an outcome of a tool that ran.
func ranTool(data schema.Data) bool {
	switch d := data.(type) {
	case *schema.ToolReturnedData:
		return true
	case *schema.ToolFailedData:
		return d.Attempt > 0 || d.DurationMS > 0
	}
	return false
}

func notBegun(_ *conduct, s *step) string {
	if s.call != nil && s.call.State.Requested() && !s.call.Replay.Rerunnable() && ranTool(s.verdict.Data) {
		return fmt.Sprintf("call %.80q has the policy %s and no tool.called before its tool ran: after a crash the tool runs again", s.call.ToolCallID, s.call.Replay)
	}
	return ""
}

func notSettled(_ *conduct, s *step) string {
	if s.call == nil || !s.call.State.InDoubt() || s.verdict.Kind != schema.Applied {
		return ""
	}
	switch d := s.verdict.Data.(type) {
	case *schema.ToolReturnedData:
		return fmt.Sprintf("call %.80q is in doubt and gets a result without tool.settled", d.ToolCallID)
	case *schema.ToolFailedData:
		if s.call.Decision != schema.DecisionDeny { // a denied call never runs
			return fmt.Sprintf("call %.80q is in doubt and gets a failure without tool.settled", d.ToolCallID)
		}
	case *schema.ToolSettledData:
		if s.call.Replay == schema.ReplayHold && d.How != schema.SettledAdopted {
			return fmt.Sprintf("call %.80q with the policy hold is settled by the executor: only a person knows whether it had its effect", d.ToolCallID)
		}
	case *schema.ToolDecidedData:
		if d.Decision == schema.DecisionAsk && !s.call.Replay.Rerunnable() {
			return fmt.Sprintf("call %.80q is in doubt, and a person is asked whether it may begin: it may have had its effect", d.ToolCallID)
		}
	}
	return ""
}

func noPolicy(_ *conduct, s *step) string {
	switch d := s.verdict.Data.(type) {
	case *schema.ToolCalledData:
		if d.Replay == "" && !s.verdict.Begun {
			return fmt.Sprintf("call %.80q has no replay policy, which counts as hold", d.ToolCallID)
		}
	case *schema.TurnAnsweredData:
		for i := range s.verdict.Calls {
			if c := &d.Calls[i]; c.Replay == "" && c.Error == nil { // a call with an error is never made
				return fmt.Sprintf("call %.80q has no replay policy, which counts as hold", c.ToolCallID)
			}
		}
	}
	return ""
}

func secondOutcome(_ *conduct, s *step) string {
	if s.verdict.Kind == schema.Evidence && !s.verdict.Boundary {
		return "the call has an outcome already: this one has no effect"
	}
	return ""
}

// contract checks the completion tool and the limits that run.started names.
func contract(c *conduct, s *step) string {
	switch d := s.verdict.Data.(type) {
	case *schema.RunEndedData:
		tool := s.head.CompletionTool
		if d.Status == string(schema.StatusCompleted) && tool != "" && !c.handed && c.returned[d.CompletedBy] != tool {
			return fmt.Sprintf("completed_by names no call of %.80q that returned", tool)
		}
	case *schema.TurnStartedData:
		if s.limit != "" && s.head.Turn > s.turn && d.Purpose != schema.PurposeRecovery {
			return fmt.Sprintf("the limit of %s is reached: only a turn with the purpose recovery may begin", s.limit)
		}
	case *schema.TurnAnsweredData:
		if s.limit != "" && s.head.Turn > s.turn {
			return fmt.Sprintf("the limit of %s is reached: only a turn with the purpose recovery may begin", s.limit)
		}
	}
	return ""
}
