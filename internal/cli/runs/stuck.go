package runs

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// unreadError is the error of a command that could not read all runs; nil if it could.
func unreadError(a *base.App, list []inbox.Unread) error {
	if len(list) == 0 {
		return nil
	}
	first := list[0]
	return &failure.Error{
		Code: failure.Damaged, Err: first.Err, Hint: "find the damage with: " + a.Prompt.Command("verify "+first.Run),
		What: fmt.Sprintf("%s cannot be read, so the list is incomplete; the first is %s: %s", output.Plural(len(list), "run"), first.Run, first.Why),
	}
}

// stuck is runs ls --stuck.
func (c lsCmd) stuck(ctx context.Context, a *base.App, cl *base.Client, request schema.ListRequest) error {
	found, err := inbox.Gather(ctx, cl, request, inbox.Suspicious)
	if err != nil {
		return err
	}
	if !c.All {
		found.Cut(c.Limit)
	}
	if a.JSON {
		if found.Reasons == nil {
			found.Reasons = []standstill.Reason{}
		}
		return errors.Join(output.Document(a.Stdout, found), unreadError(a, found.Unread))
	}
	if err := printReasons(a, found.Reasons); err != nil || a.Quiet || len(found.Unread) > 0 {
		return errors.Join(err, unreadError(a, found.Unread))
	}
	if err := sayIncomplete(a, found.Incomplete); err != nil {
		return err
	}
	if found.Paused > 0 {
		if err := a.Say(a.Stderr, "%s; see why: %s", output.Plural(found.Paused, "run is paused", "runs are paused"), a.Prompt.Command("pause ls")); err != nil {
			return err
		}
	}
	switch {
	case len(found.Reasons) == 0 && found.Incomplete:
		return nil
	case len(found.Reasons) == 0:
		return a.Say(a.Stderr, "no run is stuck")
	case found.More > 0:
		return a.Say(a.Stderr, "there are %d more: list them with --all, or with a --limit above %d", found.More, c.Limit)
	}
	return a.Say(a.Stderr, "see a run with: %s; runs that need a person: %s", a.Prompt.Command("runs show RUN"), a.Prompt.Command("inbox"))
}

// printReasons shows the reasons, oldest first.
func printReasons(a *base.App, reasons []standstill.Reason) error {
	rows := make([][]string, len(reasons))
	for i := range reasons {
		r := &reasons[i]
		rows[i] = []string{r.Run, r.Why, output.Ago(r.Since, a.Now()), r.Agent, r.Executor}
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "run"},
		{Title: "why", Shrinks: true, Wraps: true},
		{Title: "since"},
		{Title: "agent"},
		{Title: "executor", Drop: 1},
	}, rows)
}
