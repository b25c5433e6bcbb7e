package publisher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Limit is a budget of a run that ran out.
type Limit struct {
	// Kind is turns, tokens, time, context or budget. Required.
	Kind string
	// Value and Maximum are written as JSON; nil leaves them out.
	Value, Maximum any
}

// LimitReached ends a run that reached a limit, and leaves what it learned: it publishes limit.reached, then runs one turn
// with purpose recovery, in which wrapUp lets the model sum up, and then ends the run with that summary.
//
// wrapUp is handed the turn and returns the summary. It may end the turn itself, to record its usage; else it is ended
// here. Where it returns no summary, end.Summary counts, then the turn's last answer. A turn of work that is still open
// is best ended before.
//
// Every step is recorded, and none is done twice: after a crash or an error, call it again with the same limit. A
// recovery turn that was begun is handed to wrapUp as it is: go on where its recorded messages and calls end. Head.Limit
// says that the run ended by a limit, Head.CompletedBy that it did not; see [Run.Complete].
func (r *Run) LimitReached(ctx context.Context, limit Limit, wrapUp func(ctx context.Context, turn *Turn) (summary string, err error), end RunEnd) error {
	if err := r.settled(ctx); err != nil {
		return err
	}
	if c := r.Contract(); c.Complete != "" && end.Error == nil && (end.Status == "" || end.Status == schema.StatusCompleted) {
		return fmt.Errorf("limit of run %s: %w", r.id, configError("Status", cmp.Or(end.Status, schema.StatusCompleted),
			"use StatusFailed: the run is completed by a call of "+c.Complete+" alone, which wrapUp may run, and end with Run.Complete"))
	}
	head := r.Head()
	recorded := head.Limit != "" && head.Limit == limit.Kind
	if recorded && head.Status.Terminal() {
		return nil
	}
	if !recorded {
		if err := r.Limit(ctx, limit.Kind, limit.Value, limit.Maximum); err != nil {
			return err
		}
	}
	summary := ""
	if recovering := head.TurnPurpose == schema.PurposeRecovery; !recorded || !recovering || head.TurnOpen {
		var turn *Turn
		if recovering && head.TurnOpen {
			turn = r.OpenTurn()
		} else {
			var err error
			if turn, err = r.StartTurn(ctx, TurnSpec{Purpose: schema.PurposeRecovery}); err != nil {
				return err
			}
		}
		var err error
		if summary, err = wrapUp(ctx, turn); err != nil {
			return fmt.Errorf("recovery in %s: %w", turn, err)
		}
		if r.Head().Status.Terminal() {
			return nil // wrapUp has completed it
		}
		if open := r.OpenTurn(); open != nil && open.number == turn.number {
			if err := turn.End(ctx, TurnEnd{}); err != nil {
				return err
			}
		}
	}
	if err := r.Flush(ctx); err != nil {
		return err
	}
	answer, err := r.lastAnswer(ctx)
	if err != nil {
		return err
	}
	end.Summary = cmp.Or(summary, end.Summary, answer, "limit reached: "+limit.Kind)
	return r.End(ctx, end)
}

// lastAnswer is the text that the model gave last in the latest turn; empty when it is not known.
func (r *Run) lastAnswer(ctx context.Context) (string, error) {
	if r.ledger.headOnly() {
		return "", nil
	}
	s, err := r.loaded(ctx)
	if err != nil {
		return "", fmt.Errorf("last answer of run %s: %w", r.id, err)
	}
	for i := range slices.Backward(s.Messages) {
		m := &s.Messages[i]
		if m.Turn != s.Head.Turn || m.Role != schema.RoleAssistant {
			continue
		}
		if text := textOf(&m.Message); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// textOf is the text of a message, its parts on lines of their own.
func textOf(m *schema.Message) string {
	var parts []string
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Type == schema.PartText && p.Content != nil {
			parts = append(parts, *p.Content)
		}
	}
	return strings.Join(parts, "\n")
}

// Complete ends the run as its completion contract says: by a tool call that the agent must make to be done, such as
// submit. Head.CompletedBy names the call, and is empty for a run that ended otherwise. The call must have returned, and
// not as an error. end.Output is the call's result where it is empty.
//
// It returns [ErrConflict] for a call that is open, failed or unknown: nothing is published then.
func (r *Run) Complete(ctx context.Context, call schema.CallKey, end RunEnd) error {
	if end.Status != "" && end.Status != schema.StatusCompleted || end.Error != nil {
		return fmt.Errorf("completion of run %s: %w", r.id, configError("Status", end.Status, "a run that keeps its contract is completed; end it otherwise with End"))
	}
	if err := r.settled(ctx); err != nil {
		return err
	}
	v := r.ledger.call(call)
	wrong := ""
	switch {
	case v.call == nil && r.ledger.headOnly():
		return fmt.Errorf("completion of run %s: %w: the call's outcome is not known", r.id, ErrNoContent)
	case v.call == nil:
		wrong = "call " + call.ToolCallID + " was not recorded"
	default:
		wrong = completedBy(v.call, r.Contract().Complete)
	}
	if wrong != "" {
		return fmt.Errorf("completion of run %s: %w: turn %d: %s", r.id, ErrConflict, call.Turn, wrong)
	}
	if len(end.Output) == 0 {
		var err error
		if end.Output, err = r.fleet.field(ctx, v.call.Refs, "/result", v.call.Result); err != nil {
			return err
		}
	}
	end.CompletedBy = call.ToolCallID
	return r.End(ctx, end)
}

// Shares of the context window at which a [Budget] warns, and at which it says to hand the work off.
const (
	defaultBudgetWarn    = 0.8
	defaultBudgetHandoff = 0.95
)

// Budget watches how full the model's context is.
type Budget struct {
	// Window is the size of the model's context, in tokens. Required.
	Window int64
	// Warn and Handoff are shares of the window; 0 means 0.8 and 0.95.
	Warn, Handoff float64
}

// BudgetLevel says how full the context is.
type BudgetLevel string

// Levels.
const (
	// BudgetOK: there is room.
	BudgetOK BudgetLevel = "ok"
	// BudgetWarn: wind up, or compact.
	BudgetWarn BudgetLevel = "warn"
	// BudgetHandoff: the next turn may not fit. Hand the work off, see [Run.Continue], or end with the limit context, see
	// [Run.LimitReached].
	BudgetHandoff BudgetLevel = "handoff"
)

// Of returns the level of a context of so many tokens. It returns [ErrConfig] for a budget out of range.
func (b Budget) Of(tokens int64) (BudgetLevel, error) {
	b.Warn, b.Handoff = cmp.Or(b.Warn, defaultBudgetWarn), cmp.Or(b.Handoff, defaultBudgetHandoff)
	switch {
	case b.Window <= 0:
		return "", configError("Window", b.Window, "give the size of the model's context in tokens")
	case !(b.Warn > 0 && b.Warn <= b.Handoff && b.Handoff <= 1):
		return "", configError("Warn", fmt.Sprintf("%v, Handoff %v", b.Warn, b.Handoff), "use shares above 0, at most 1, in this order")
	}
	switch share := float64(tokens) / float64(b.Window); {
	case share >= b.Handoff:
		return BudgetHandoff, nil
	case share >= b.Warn:
		return BudgetWarn, nil
	default:
		return BudgetOK, nil
	}
}

// Check returns the level of the run's context, and its tokens: what the latest turn with a usage took and gave, or
// what the compaction behind it left. A run without any is at 0. It returns [ErrNoContent] on a handle that keeps only the
// head.
//
// Input tokens count cached ones, as the OpenTelemetry conventions say. Where they are fewer than the cached ones they
// cannot, and the cached ones are added.
func (b Budget) Check(r *Run) (BudgetLevel, int64, error) {
	if r.ledger.headOnly() {
		return "", 0, fmt.Errorf("context budget of run %s: %w", r.id, ErrNoContent)
	}
	var tokens int64
	r.View(func(s *schema.State) { tokens = contextTokens(s) })
	level, err := b.Of(tokens)
	return level, tokens, err
}

func contextTokens(s *schema.State) int64 {
	for i := range slices.Backward(s.Turns) {
		t := &s.Turns[i]
		u := t.Usage()
		if u == nil {
			continue
		}
		if n := len(s.Compactions); n > 0 && s.Compactions[n-1].ThroughTurn >= t.Turn {
			return s.Compactions[n-1].TokensAfter
		}
		input := u.InputTokens
		if cached := u.CacheReadInputTokens + u.CacheCreationInputTokens; input < cached {
			input += cached
		}
		return input + u.OutputTokens
	}
	return 0
}
