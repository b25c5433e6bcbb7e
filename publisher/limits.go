package publisher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Limit is a limit that a run has reached.
type Limit struct {
	// Kind is turns, tokens, time, context or budget. Required.
	Kind string
	// Value and Maximum are written as JSON; nil omits them.
	Value, Maximum any
}

// LimitReached ends a run that reached a limit, with a summary of its work. It publishes limit.reached, runs one turn
// with purpose recovery, in which wrapUp lets the model sum up, and then ends the run with that summary.
//
// wrapUp gets the turn and returns the summary. It may end the turn itself, to record its usage; otherwise LimitReached
// ends it. If wrapUp returns no summary, end.Summary is used, or else the turn's last answer. End an open turn of the
// normal work before.
//
// Every step is recorded, and no step is done twice: after a crash or an error, call LimitReached again with the same
// limit. wrapUp then gets the recovery turn that was begun: continue where its recorded messages and calls end.
// Head.Limit says that a limit ended the run; Head.CompletedBy says that a call completed it, see [Run.Complete].
func (r *Run) LimitReached(ctx context.Context, limit Limit, wrapUp func(ctx context.Context, turn *Turn) (summary string, err error), end RunEnd) error {
	if err := r.ledger.ended(); err != nil {
		return err
	}
	if c := r.contract(); c.Complete != "" && end.Error == nil && (end.Status == "" || end.Status == schema.StatusCompleted) {
		return fmt.Errorf("limit of run %s: %w", r.id, configError("Status", cmp.Or(end.Status, schema.StatusCompleted),
			"use StatusFailed: only a call of "+c.Complete+" completes the run; wrapUp may run it and end the run with Run.Complete"))
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
	answer, err := r.lastAnswer(ctx)
	if err != nil {
		return err
	}
	end.Summary = cmp.Or(summary, end.Summary, answer, "limit reached: "+limit.Kind)
	return r.End(ctx, end)
}

// lastAnswer is the text of the model's last answer in the latest turn; empty if it is unknown.
func (r *Run) lastAnswer(ctx context.Context) (string, error) {
	said := new(schema.State)
	r.View(func(s *schema.State) {
		for i := range s.Messages {
			if m := &s.Messages[i]; m.Turn == s.Head.Turn && m.Role == schema.RoleAssistant {
				said.Messages = append(said.Messages, *m)
			}
		}
	})
	if err := r.fleet.load(ctx, said); err != nil {
		return "", fmt.Errorf("last answer of run %s: %w", r.id, err)
	}
	for i := range slices.Backward(said.Messages) {
		if text := textOf(&said.Messages[i].Message); text != "" {
			return text, nil
		}
	}
	return "", nil
}

// textOf is the text of a message, with each part on lines of its own.
func textOf(m *schema.Message) string {
	var parts []string
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Type == schema.PartText && p.Content != nil {
			parts = append(parts, *p.Content)
		}
	}
	return strings.Join(parts, "\n")
}

// Complete ends a run according to its completion contract: by a tool call that the agent must make when it is done,
// such as submit. Head.CompletedBy names the call; it is empty for a run that ended in another way. The call must have
// returned without an error. If end.Output is empty, the call's result is used.
//
// It returns [ErrConflict] for a call that is open, failed or unknown, and publishes nothing then.
func (r *Run) Complete(ctx context.Context, call schema.CallKey, end RunEnd) error {
	if end.Status != "" && end.Status != schema.StatusCompleted || end.Error != nil {
		return fmt.Errorf("completion of run %s: %w", r.id, configError("Status", end.Status, "leave it empty: Complete always ends the run as completed; for another status use End"))
	}
	if err := r.ledger.ended(); err != nil {
		return err
	}
	v := r.ledger.call(call)
	wrong := "call " + call.ToolCallID + " was not recorded"
	if v.call != nil {
		wrong = completedBy(v.call, r.contract().Complete)
	}
	if wrong != "" {
		return fmt.Errorf("completion of run %s: %w: turn %d: %s", r.id, ErrConflict, call.Turn, wrong)
	}
	if len(end.Output) == 0 {
		var err error
		if end.Output, err = r.fleet.Field(ctx, v.call.Refs, "/result", v.call.Result); err != nil {
			return err
		}
	}
	end.CompletedBy = call.ToolCallID
	return r.End(ctx, end)
}

// ContextTokens returns the size of the model's context: the input and output tokens of the latest turn with a usage, or
// the tokens left by a later compaction. It is 0 for a run without a usage. From about 80 % of the model's window on,
// compact the context; from 95 % on, hand the work off ([Run.Continue]), or end the run with the limit context
// ([Run.LimitReached]).
//
// Input tokens include cached ones, as in the OpenTelemetry conventions. If a provider reports fewer input tokens than
// cached ones, its input tokens exclude them, and the cached ones are added.
func (r *Run) ContextTokens() (tokens int64) {
	r.View(func(s *schema.State) { tokens = contextTokens(s) })
	return tokens
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
