package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// PlanCmd is waymark plan.
type PlanCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
}

// Help is the text below the flags.
func (PlanCmd) Help() string {
	return `From the record alone: decisions of an executor's own approval policy are not in it.`
}

// Run shows what the next executor of a run would do.
func (c PlanCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		state, missing, err := base.StateOf(ctx, fleet, c.Run_)
		if err != nil {
			return err
		}
		plan, err := fleet.PlanOf(ctx, state)
		missing = errors.Join(missing, err)
		if a.JSON {
			return errors.Join(output.Document(a.Stdout, plan), missing)
		}
		return errors.Join(c.print(a, state, plan), missing)
	})
}

func (PlanCmd) print(a *base.App, s *schema.State, p *schema.Plan) error {
	h := &s.Head
	turn := fmt.Sprintf("%d %s", p.Turn.Turn, schema.TurnText(p.Turn.Action))
	if p.Turn.Action == schema.TurnRepeat && p.Turn.Messages > 0 {
		turn += fmt.Sprintf("; %s of it %s superseded", output.Plural(p.Turn.Messages, "message"), output.InNumber(p.Turn.Messages, "is", "are"))
	}
	incomplete := ""
	if p.Incomplete {
		incomplete = "events of the run are missing: a takeover needs AllowGaps"
	}
	again := ""
	if p.PhaseRestarted != "" {
		again = p.PhaseRestarted + ", from its beginning"
	}
	at := p.From
	if err := output.Fields(a.Stdout,
		"run", p.Run, "agent", p.Agent, "executor", p.Executor, "status", story.HeadStatus(h, p.Quarantined, p.Pauses...), "paused", story.PausesText(a.Prompt, p.Pauses), "next", p.NextText(), "incomplete", incomplete,
		"continues from", fmt.Sprintf("epoch %d, sequence %d, turn %d, %s", at.Epoch, at.Sequence, at.Turn, output.Ago(at.Time, a.Now())),
		"position", output.Position(at.Position), "new epoch", output.Number(p.Epoch), "turn", turn,
		"phases skipped", strings.Join(p.PhasesSkipped, ", "), "phase again", again,
		"reused", story.ReusedText(p), "not reused", story.NotReusedText(p),
		"signals", signalsText(h),
	); err != nil {
		return err
	}
	for _, v := range p.Versions {
		if _, err := fmt.Fprintf(a.Stdout, "\n%s:\n", output.Printable(v.Text())); err != nil {
			return err
		}
		for _, change := range v.Changes {
			if _, err := fmt.Fprintln(a.Stdout, "  "+output.Printable(change)); err != nil {
				return err
			}
		}
	}
	if p.MoreVersions > 0 {
		if _, err := fmt.Fprintf(a.Stdout, "\n%s other versions, which are left out.\n", output.Plural(p.MoreVersions, "executor")+output.InNumber(p.MoreVersions, " has", " have")); err != nil {
			return err
		}
	}
	if err := printPlanCalls(a, p.Calls); err != nil {
		return err
	}
	return cmp.Or(printWaits(a, p.Waits), printSignals(a, h.Signals), printValues(a, s.Values), printCommands(a, h, p))
}

// printPlanCalls lists the calls that are not simply reused, and below the table the reasons, each once.
func printPlanCalls(a *base.App, calls []schema.PlanCall) error {
	if len(calls) == 0 {
		return nil
	}
	rows := make([][]string, len(calls))
	var why []string
	told := map[string]bool{}
	for i, c := range calls {
		rows[i] = []string{output.Number(c.Turn), c.ToolCallID, output.Number(c.Occurrence), c.Name, string(c.Replay), string(c.Action)}
		if reason := string(c.Action) + " " + c.Why; !told[reason] {
			told[reason] = true
			why = append(why, string(c.Action), c.Why)
		}
	}
	if err := printBelow(a, []output.Column{
		{Title: "turn", Right: true},
		{Title: "call"},
		{Title: "occ.", Right: true},
		{Title: "tool", Shrinks: true},
		{Title: "replay", Drop: 1},
		{Title: "plan"},
	}, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	return output.Fields(a.Stdout, why...)
}

// printCommands prints what a person must do before the run can continue, each command whole on its own line. The
// commands are requested output, so they go to standard output.
func printCommands(a *base.App, h *schema.Head, p *schema.Plan) error {
	var lines []string
	for i := range p.Calls {
		switch c := &p.Calls[i]; {
		case c.Action == schema.CallHold, h.Status.Terminal():
			lines = append(lines, settleSteps(a.Prompt, h, c.CallKey)...)
		case c.Action == schema.CallVerify:
			lines = append(lines, verifySteps(a.Prompt, h, c)...)
		}
	}
	for i := range p.Waits {
		if w := &p.Waits[i]; w.Reason != schema.WaitToolInDoubt {
			lines = append(lines, answerSteps(a.Prompt, h, w)...)
		}
	}
	for i, l := range lines {
		if l = output.Hanging(a.Stdout, "", l); i == 0 {
			l = "\n" + l
		}
		if _, err := fmt.Fprintln(a.Stdout, l); err != nil {
			return err
		}
	}
	return nil
}

// verifySteps say which subject the next executor asks about a call. If the run waits for a person because the tool
// could not tell, cancelling that wait makes the executor ask the tool again.
func verifySteps(p prompt.Prompt, h *schema.Head, c *schema.PlanCall) []string {
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		if w.Reason == schema.WaitToolInDoubt && w.CallKey() == c.CallKey {
			again := inbox.AnswerCommand(p, h.Run, w, " --status "+schema.InputCancelled)
			return append(settleSteps(p, h, c.CallKey), "  ask "+c.VerifySubject+" again:  "+again)
		}
	}
	return []string{"asks " + c.VerifySubject + " about call " + c.ToolCallID + " of turn " + output.Number(c.Turn)}
}
