package publisher

import (
	"cmp"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// Contract says how a run ends, for every executor that works on it: the SDK publishes no event that breaks it. A run
// has the contract that it was started with ([RunSpec]). A process adds its own with [ExecutorSpec.Contracts] or
// [Loop]; of two limits the lower one applies.
type Contract struct {
	// Complete names the completion tool: only a call of that tool completes the run; see [Run.Complete]. The run can
	// still fail, be cancelled or be handed on. Empty means that the work decides when the run is completed.
	Complete string
	// MaxTurns and MaxTokens limit the turns, and the sum of input and output tokens. They are checked before each
	// turn. At the limit only one more turn may begin, to sum up; see [Run.LimitReached]. 0 means no limit.
	MaxTurns  int32
	MaxTokens int64
}

func (c Contract) validate(field string) error {
	switch {
	case len(c.Complete) > schema.MaxIdentifier:
		return configError(field+".Complete", fmt.Sprintf("%d bytes long", len(c.Complete)), fmt.Sprintf("use the name of a tool, at most %d bytes", schema.MaxIdentifier))
	case c.MaxTurns < 0:
		return configError(field+".MaxTurns", c.MaxTurns, "use 0 or more")
	case c.MaxTokens < 0:
		return configError(field+".MaxTokens", c.MaxTokens, "use 0 or more")
	}
	return nil
}

// reached returns the limit that a run has reached before its next turn; its Kind is empty if there is none.
func (c Contract) reached(head *schema.Head) Limit {
	kind, value, maximum := head.ReachedLimit(c.MaxTurns, c.MaxTokens)
	if kind == "" {
		return Limit{}
	}
	return Limit{Kind: kind, Value: value, Maximum: maximum}
}

// lower is the lower one of two limits, where 0 means no limit.
func lower[T int32 | int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// keep binds the run's handle to a contract of this process, in addition to the run's own. It returns [ErrConfig] for a
// contract that is out of range or names another completion tool than the run's.
func (r *Run) keep(c Contract) error {
	if err := c.validate("Contract"); err != nil {
		return err
	}
	return with(r.ledger, func(l *ledger) error {
		if was := l.bound(l.fold.head).Complete; was != "" && c.Complete != "" && was != c.Complete {
			return fmt.Errorf("run %s: %w", r.id, configError("Contract.Complete", c.Complete, "only a call of "+was+" completes the run: name that tool, or none"))
		}
		l.contract = Contract{
			Complete: cmp.Or(l.contract.Complete, c.Complete), MaxTurns: lower(l.contract.MaxTurns, c.MaxTurns), MaxTokens: lower(l.contract.MaxTokens, c.MaxTokens),
		}
		return nil
	})
}

// contract returns the contract that binds the run: the run's own, and the additions of [Run.keep].
func (r *Run) contract() Contract {
	return with(r.ledger, func(l *ledger) Contract { return l.bound(l.fold.head) })
}

func (s *RunSpec) contract() Contract {
	return Contract{Complete: s.Complete, MaxTurns: s.MaxTurns, MaxTokens: s.MaxTokens}
}

// bound is the contract of a run with this head.
func (l *ledger) bound(head *schema.Head) Contract {
	return Contract{
		Complete: cmp.Or(head.CompletionTool, l.contract.Complete), MaxTurns: lower(head.MaxTurns, l.contract.MaxTurns), MaxTokens: lower(head.MaxTokens, l.contract.MaxTokens),
	}
}

// keepContract refuses drafts that break the contract.
func (l *ledger) keepContract(drafts []draft, head *schema.Head) error {
	c := l.bound(head)
	limit := c.reached(head)
	begun := head.Turn // by earlier drafts
	for i := range drafts {
		d := &drafts[i]
		turn, recovery, again := d.turn, false, false
		switch data := d.data.(type) {
		case *schema.TurnStartedData:
			turn, recovery, again = data.Turn, data.Purpose == schema.PurposeRecovery, data.Turn == begun
		case *schema.TurnAnsweredData:
			turn = data.Turn
		case *schema.TurnEndedData:
			turn = data.Turn
		case *schema.RunEndedData:
			if err := l.completes(c, d.own, data); err != nil {
				return err
			}
			continue
		case *schema.ToolCalledData:
		default:
			continue
		}
		if limit.Kind == "" || turn <= begun && !again {
			continue
		}
		if recovery && head.Limit != "" && (again && head.TurnPurpose == schema.PurposeRecovery || turn == head.LimitTurn+1 && head.Turn == head.LimitTurn) {
			begun = max(begun, turn)
			continue
		}
		return &LimitError{Run: l.run, Limit: limit, SummedUp: head.Limit != "" && head.Turn > head.LimitTurn}
	}
	return nil
}

// completes refuses the end of a run that would be completed against its contract. handed: another run continues the
// work.
func (l *ledger) completes(c Contract, handed bool, end *schema.RunEndedData) error {
	if c.Complete == "" || handed || end.Status != string(schema.StatusCompleted) {
		return nil
	}
	refuse := func(why string) error {
		return fmt.Errorf("run %s: %w: %s: end it with Run.Complete after a call of %s, or as failed", l.run, ErrNotCompleted, why, c.Complete)
	}
	if end.CompletedBy == "" {
		return refuse("no call completes it")
	}
	why := "call " + end.CompletedBy + " was not recorded"
	for i := len(l.fold.state.Calls) - 1; i >= 0; i-- {
		call := &l.fold.state.Calls[i]
		if call.ToolCallID != end.CompletedBy {
			continue
		}
		if why = completedBy(call, c.Complete); why == "" {
			return nil
		}
	}
	return refuse(why)
}

// completedBy returns why a call does not complete a run; empty if it does. tool is the completion tool; empty means
// any tool.
func completedBy(call *schema.Call, tool string) string {
	switch {
	case tool != "" && call.Name != tool:
		return fmt.Sprintf("call %s is one of %.80q", call.ToolCallID, call.Name)
	case call.Outcome == schema.OutcomeOpen:
		return "call " + call.ToolCallID + " has no outcome yet"
	case call.Outcome != schema.OutcomeReturned:
		return "call " + call.ToolCallID + " has " + string(call.Outcome)
	case call.IsError != nil && *call.IsError:
		return "call " + call.ToolCallID + " returned an error"
	}
	return ""
}

// mayStart checks whether a turn may begin, before a model call costs money.
func (l *ledger) mayStart(turn int32) error {
	return l.keepContract([]draft{{data: &schema.TurnStartedData{Turn: turn}, turn: turn}}, l.fold.head)
}

// uncompleted returns [ErrNotCompleted] for a run whose work returned without the completion that its contract
// requires.
func (r *Run) uncompleted() error {
	return with(r.ledger, func(l *ledger) error {
		head := l.fold.head
		if c := l.bound(head); c.Complete != "" && !head.Status.Terminal() && !head.CancelRequested && l.over == nil {
			return fmt.Errorf("run %s: %w: its work returned before a call of %s completed it", r.id, ErrNotCompleted, c.Complete)
		}
		return nil
	})
}
