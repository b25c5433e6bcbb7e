package runs

import (
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/schema"
)

// maxSteps bounds the next steps that are shown for one kind.
const maxSteps = 3

// printSteps prints what a person can do about the run now, with the commands.
func printSteps(a *base.App, h *schema.Head, quarantined bool) error {
	if a.Quiet || a.JSON {
		return nil
	}
	for _, step := range steps(a.Prompt, h, quarantined) {
		if _, err := fmt.Fprintln(a.Stderr, output.Hanging(a.Stdout, "", step)); err != nil {
			return err
		}
	}
	return nil
}

// printDamage names survived damage of a run.
func printDamage(a *base.App, run string, damage []schema.Damage) error {
	if a.JSON {
		return nil
	}
	for _, d := range damage {
		what := fmt.Sprintf("%s %d", d.What, max(uint64(d.Revision), uint64(d.Segment))) //nolint:gosec // one of the two is 0
		if _, err := fmt.Fprintln(a.Stderr, output.Printable(fmt.Sprintf("%s of run %s is damaged, %s was used instead; see: %s", what, run, d.Instead,
			a.Prompt.Command("verify "+run)))); err != nil {
			return err
		}
	}
	return nil
}

func steps(p prompt.Prompt, h *schema.Head, quarantined bool) []string {
	var list []string
	if quarantined {
		list = append(list, "see why it was released: "+p.Command("events "+h.Run+" --all --no-follow")+" and the logs of those executors; make it claimable again: "+p.Command("release "+h.Run))
	}
	shown := 0
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		if w.Reason == schema.WaitToolInDoubt {
			continue // its call is in doubt: settling it answers the wait
		}
		if shown++; shown > maxSteps {
			list = append(list, "see all its questions with: "+p.Command("input "+h.Run))
			break
		}
		list = append(list, answerSteps(p, h, w)...)
	}
	for i, c := range h.HeldCalls() {
		if i == maxSteps {
			break
		}
		list = append(list, settleSteps(p, h, c.CallKey)...)
	}
	// Other calls are settled by their policy, or held by the next executor.
	settleable := 0
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; !c.State.Requested() && h.Settleable(c) {
			settleable++
		}
	}
	switch calls := h.HeldCalls(); {
	case h.Status.Terminal() && len(calls) > maxSteps:
		list = append(list, fmt.Sprintf("and %s more, see all with: %s", output.Plural(len(calls)-maxSteps, "call"), p.Command("plan "+h.Run)))
	case !h.Status.Terminal() && settleable > min(len(calls), maxSteps):
		list = append(list, "see what the next executor does with the calls in doubt, and how to settle them: "+p.Command("plan "+h.Run))
	}
	if n := h.Counts.DeadLetters; n > 0 {
		list = append(list, fmt.Sprintf("see why %s refused with: %s", output.InNumber(n, "an event was", fmt.Sprintf("%d events were", n)), p.Command("verify "+h.Run)))
	}
	for i := range h.Handoffs {
		if o := &h.Handoffs[i]; o.Status == schema.HandoffStatusOffered {
			list = append(list, "see the offer with: "+p.Command("runs get "+h.Run+" --view state"))
			break
		}
	}
	return list
}

// answerSteps say how to answer a wait. Pasting a command makes the decision, so each choice has its own line, and a
// command with a placeholder cannot be sent unchanged.
func answerSteps(p prompt.Prompt, h *schema.Head, w *schema.OpenInterrupt) []string {
	command := func(answer string) string { return inbox.AnswerCommand(p, h.Run, w, answer) }
	child, delegated := w.Child()
	switch {
	case w.Reason == schema.WaitToolApproval:
		return []string{"allow the call with: " + command(" --allow"), "or deny it with: " + command(" --deny")}
	case w.OfVersion():
		return []string{"allow the version with: " + command(" --allow"), "or deny it with: " + command(" --deny")}
	case w.Approval():
		return []string{"allow the phase with: " + command(" --allow"), "or deny it with: " + command(" --deny")}
	case delegated:
		return []string{"see that run with: " + p.Command("runs show "+child)}
	case w.Reason == schema.WaitSignal:
		return []string{"it goes on with the next message: " + p.Command("signal "+h.Run+" NAME --text TEXT")}
	case w.Reason == schema.WaitTimer:
		return []string{"it goes on by itself then, or now with: " + command(" --status cancelled")}
	}
	// The placeholder is not valid JSON, and a shell refuses the parenthesis.
	return []string{"answer with: " + command(" --payload JSON") + " (or --text TEXT)"}
}

// settleSteps say how a person settles a call: one line for each choice, as for answers.
func settleSteps(p prompt.Prompt, h *schema.Head, key schema.CallKey) []string {
	commands := inbox.SettleCommands(p, h, key)
	about := key.Text()
	switch {
	case commands == nil:
		return []string{about + " must be settled by a person once its executor is gone; see how then: " + p.Command("plan "+h.Run)}
	case h.Status.Terminal():
		return []string{
			about + " has no outcome, and the run has ended: find out what happened, then run one of:",
			"  it was done:           " + commands[0],
			"  it was not, or never:  " + commands[1],
		}
	}
	return []string{
		about + " must be settled by a person: find out what happened, then run one of:",
		"  it was done:    " + commands[0],
		"  it was not:     " + commands[1],
		"  skip it:        " + commands[2],
	}
}
