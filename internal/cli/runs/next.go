package runs

import (
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// nextText says which executor continues a run that a person has changed: its executor, or the next one that claims it.
func nextText(p prompt.Prompt, reply *schema.GetReply, executor, claimant string) string {
	h := &reply.Head
	switch {
	case h.Status.Terminal():
		return "the run has ended meanwhile"
	case len(reply.Pauses) > 0:
		return "the run is paused; to let it go on: " + p.Command(reply.Pauses[0].EndsWith())
	case reply.Quarantined:
		return "the run is quarantined and cannot be claimed; to make it claimable: " + p.Command("release "+h.Run)
	case len(reply.Full) > 0:
		return "the run " + schema.FullText(reply.Full) + "; see: " + p.Command("limit ls")
	case h.Status.Claimable():
		return "the run has no executor: the next one that claims it " + claimant
	case h.Unattended != "":
		return "the run has no executor, and waits for an answer: " + p.Command("inbox")
	}
	return "its executor " + h.Executor + " " + executor
}

// printNext prints who continues the run, for people, not for programs.
func printNext(a *base.App, reply *schema.GetReply, executor, claimant string) error {
	_, err := fmt.Fprintln(a.Stderr, output.Printable(nextText(a.Prompt, reply, executor, claimant)))
	return err
}
