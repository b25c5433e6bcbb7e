package runs

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// CancelCmd is waymark cancel.
type CancelCmd struct {
	Run_   string `arg:"" name:"run" help:"Run id."`
	Reason string `placeholder:"TEXT" help:"Why, for the record."`
	By     string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (CancelCmd) Help() string {
	return `A run without an executor, even a waiting one, becomes claimable for that.

Example:
  waymark cancel fix-login --reason "the customer left"`
}

// cancelled is the JSON output of cancel.
type cancelled struct {
	Run string `json:"run"`
	schema.ControlReply
	// Status and Executor of the run, read after the request.
	Status   schema.Status `json:"status"`
	Executor string        `json:"executor,omitzero"`
}

// Run asks the run's executor to stop.
func (c CancelCmd) Run(ctx context.Context, a *base.App) error {
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	answer := cancelled{Run: c.Run_}
	if err := cl.Ask(ctx, schema.VerbCancel, c.Run_, &schema.CancelRequest{By: by, Reason: c.Reason, RequestID: rand.Text()}, &answer.ControlReply); err != nil {
		return err
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return fmt.Errorf("the request is stored, but reading the run afterwards failed: %w", err)
	}
	h := &reply.Head
	answer.Status, answer.Executor = h.Status, h.Executor
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	if err := output.Fields(a.Stdout, output.PastLabel("requested", answer.Already), "that run "+c.Run_+" ends", output.ByLabel(answer.By), answer.By, "status", story.HeadStatus(h, reply.Quarantined, reply.Pauses...),
		"event", answer.EventID, "position", output.Number(answer.Stream)); err != nil || a.Quiet {
		return err
	}
	return printNext(a, reply, "is told if it lives, and ends it as cancelled", "ends it as cancelled")
}

// ReleaseCmd is waymark release.
type ReleaseCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Force bool   `help:"Take it from its executor, which is fenced and loses unrecorded work."`
}

// Help is the text below the flags.
func (ReleaseCmd) Help() string {
	return `Takes the run over and releases it. Calls that have begun are then in doubt. Find the cause first: it will stop the next executor, too.`
}

// released is the JSON output of release.
type released struct {
	Run string `json:"run"`
	// Released is false if there was nothing to do: the run is already claimable.
	Released bool          `json:"released"`
	Was      schema.Status `json:"was"`
	Status   schema.Status `json:"status"`
	Epoch    schema.Epoch  `json:"epoch"`
	// Stalled counts the earlier claims without progress.
	Stalled int `json:"claims_without_progress"`
	// InDoubt counts the calls in doubt afterwards.
	InDoubt int `json:"in_doubt"`
}

// Run takes a run over and releases it, so that the fleet may claim it.
func (c ReleaseCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	h := &reply.Head
	answer := released{Run: h.Run, Was: h.Status, Status: h.Status, Epoch: h.Epoch, Stalled: h.Stalled, InDoubt: len(h.InDoubt())}
	switch there, err := operate.Releasable(a.Prompt, h, c.Force); {
	case err != nil:
		return err
	case there:
		if err = answer.release(ctx, cl, h, schema.TakeoverRequest); err != nil {
			return err
		}
	}
	return answer.print(a, reply, "released")
}

// ReopenCmd is waymark reopen.
type ReopenCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
}

// Help is the text below the flags.
func (ReopenCmd) Help() string {
	return `The run continues behind its end, in the next executor that claims it. To continue from an earlier point: waymark resume.`
}

// Run reopens a run that has ended, and releases it to the fleet.
func (c ReopenCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	h := &reply.Head
	if !h.Status.Terminal() {
		hint := "its executor " + h.Executor + " has it; see its state: " + a.Prompt.Command("runs get "+h.Run)
		switch {
		case reply.Quarantined:
			hint = "to make it claimable: " + a.Prompt.Command("release "+h.Run)
		case h.Status.Claimable():
			hint = "an executor may claim it already"
		case h.Status == schema.StatusWaiting:
			hint = "see what it waits for: " + a.Prompt.Command("plan "+h.Run)
		}
		return failure.New(failure.Conflict, hint, "run %s has not ended: it is %s", h.Run, h.Status)
	}
	answer := released{Run: h.Run, Was: h.Status}
	if err := answer.release(ctx, cl, h, schema.TakeoverReopen); err != nil {
		return err
	}
	return answer.print(a, reply, "reopened")
}

// release takes the run over and releases it. If this process died between the two, the fleet would find the run
// without an executor.
func (r *released) release(ctx context.Context, cl *base.Client, h *schema.Head, reason string) error {
	return cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		now, err := operate.Release(ctx, fleet, h.Run, h.Epoch, reason)
		if err == nil {
			r.Released, r.Status, r.Epoch, r.InDoubt = true, now.Status, now.Epoch, len(now.InDoubt())
		}
		return err
	})
}

func (r *released) print(a *base.App, before *schema.GetReply, label string) error {
	if a.JSON {
		return output.Document(a.Stdout, r)
	}
	what := "the run can be claimed"
	switch {
	case !r.Released && len(before.Pauses) > 0:
		what = "nothing to do: the run is paused, and can be claimed after: " + a.Prompt.Command(before.Pauses[0].EndsWith())
	case r.Status == schema.StatusWaiting && r.Released:
		what = "the run can be claimed once it is answered"
	case r.Status == schema.StatusWaiting:
		what = "nothing to do: the run waits, and can be claimed once it is answered"
	case !r.Released:
		what = "nothing to do: the run can be claimed"
	}
	claims := ""
	if r.Stalled > 0 {
		claims = fmt.Sprintf("%d without progress %s reset", r.Stalled, output.InNumber(r.Stalled, "is", "are"))
	}
	if err := output.Fields(a.Stdout, label, what, "was", story.HeadStatus(&before.Head, before.Quarantined, before.Pauses...), "epoch", output.Number(r.Epoch), "claims", claims,
		"in doubt", output.Number(r.InDoubt)); err != nil || r.InDoubt == 0 || a.Quiet {
		return err
	}
	_, err := fmt.Fprintf(a.Stderr, "see what the next executor does with the calls in doubt: %s\n", a.Prompt.Command("plan "+before.Head.Run))
	return err
}
