package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/schema"
)

// stuckReaders is the number of runs that are read at the same time, to see why they stand still.
const stuckReaders = 8

// standing are reasons, oldest first, and what is not in the list.
type standing struct {
	Reasons []standstill.Reason `json:"stuck"`
	// Incomplete: the daemon is still indexing the runs.
	Incomplete bool `json:"incomplete,omitzero"`
	// More counts the reasons that the limit left out.
	More int `json:"more,omitzero"`
	// Unread are runs that cannot be read, so that why they stand still is not known.
	Unread []unread `json:"unread,omitzero"`
}

// unread is a run that the daemon cannot read, and what it says of that.
type unread struct {
	Run string `json:"run"`
	Why string `json:"why"`
	err error
}

// unreadError fails a command that could not read all runs; nil if it could.
func (s *standing) unreadError(a *base.App) error {
	if len(s.Unread) == 0 {
		return nil
	}
	first := s.Unread[0]
	return &failure.Error{
		Code: failure.Damaged, Err: first.err, Hint: "see what is wrong with it: " + a.Prompt.Command("verify "+first.Run),
		What: fmt.Sprintf("%s cannot be read, and what they need is not in the list; the first is %s: %s", output.Plural(len(s.Unread), "run"), first.Run, first.Why),
	}
}

// live are the statuses of runs that have not ended.
var live = []schema.Status{schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned}

// gather reads the runs that stand still, as a list of them and their heads say. want says by a run's entry in the list whether its head is
// read. With ended, calls of ended runs that a person must settle are found, too.
func gather(ctx context.Context, cl *base.Client, request schema.ListRequest, want func(*schema.RunSummary) bool, ended bool) (found standing, err error) {
	var suspects []schema.RunSummary
	listed, seen := make(map[string]bool), make(map[string]bool)
	parked := make(map[string]schema.ParkedRun)
	lists := []schema.ListRequest{request}
	lists[0].Status = live
	if ended {
		held := request
		held.Status, held.Held = []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled}, true
		lists = append(lists, held)
	}
	for _, ask := range lists {
		for {
			ask.Limit = schema.MaxList
			var page schema.ListReply
			if err := cl.Ask(ctx, schema.VerbList, "", ask, &page); err != nil {
				return found, err
			}
			found.Incomplete = found.Incomplete || page.Incomplete
			for _, p := range page.Parked {
				parked[p.Run] = p
			}
			for i := range page.Runs {
				r := &page.Runs[i]
				listed[r.Run] = true
				if want(r) && !seen[r.Run] {
					seen[r.Run] = true
					suspects = append(suspects, *r)
				}
			}
			if page.Next == "" {
				break
			}
			ask.After = page.Next
		}
	}
	details, failed := make([][]standstill.Reason, len(suspects)), make([]*schema.ServiceError, len(suspects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(stuckReaders)
	for i := range suspects {
		group.Go(func() (err error) {
			details[i], err = reasonsOf(ctx, cl, suspects[i].Run)
			if failed[i] = brokenRun(err); failed[i] != nil {
				err = nil // it does not hide the others
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return found, err
	}
	for i, err := range failed {
		if err != nil {
			found.Unread = append(found.Unread, unread{suspects[i].Run, err.Message, err})
		}
	}
	found.Reasons = slices.Concat(details...)
	for _, p := range parked {
		if request.Agent == "" && len(request.Labels) == 0 || listed[p.Run] {
			found.Reasons = append(found.Reasons, standstill.OfParked(cl.Fleet, &p))
		}
	}
	slices.SortStableFunc(found.Reasons, func(a, b standstill.Reason) int {
		return cmp.Or(instant(a.Since).Compare(instant(b.Since)), cmp.Compare(a.Run, b.Run))
	})
	return found, nil
}

// instant is a time of an event; text that is none counts as the oldest.
func instant(at string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return time.Time{}
	}
	return t
}

// suspicious reports whether a run may stand still.
func suspicious(r *schema.RunSummary) bool {
	return r.Status.Claimable() || r.Status == schema.StatusWaiting || r.Waits > 0 || r.Held > 0 || r.Overdue > 0 || r.Quarantined || r.Gapped
}

// brokenRun is the error of a run that the daemon cannot read; nil for none, and for an error that is not of one run.
func brokenRun(err error) *schema.ServiceError {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || service.Code != schema.CodeDamaged && service.Code != schema.CodeInternal {
		return nil
	}
	return service
}

// mayNeedPerson reports whether a run may need a person: what only waits for an executor, and work that is overdue, do not.
func mayNeedPerson(r *schema.RunSummary) bool {
	return r.Status == schema.StatusWaiting || r.Waits > 0 || r.Held > 0 || r.Quarantined || r.Gapped
}

// reasonsOf looks at a run. One that went on meanwhile has none, and one that is gone neither.
func reasonsOf(ctx context.Context, cl *base.Client, run string) ([]standstill.Reason, error) {
	reply, err := cl.Get(ctx, run)
	if service, ok := errors.AsType[*schema.ServiceError](err); ok && (service.Code == schema.CodeNotFound || service.Code == schema.CodeErased) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return standstill.Of(&reply.Head, reply.Quarantined, reply.Overdue), nil
}

// cut keeps the oldest.
func (s *standing) cut(limit int) {
	if more := len(s.Reasons) - limit; more > 0 {
		s.Reasons, s.More = s.Reasons[:limit], more
	}
}

// stuck is runs ls --stuck.
func (c lsCmd) stuck(ctx context.Context, a *base.App, cl *base.Client, request schema.ListRequest) error {
	found, err := gather(ctx, cl, request, suspicious, false)
	if err != nil {
		return err
	}
	if !c.All {
		found.cut(c.Limit)
	}
	if a.JSON {
		if found.Reasons == nil {
			found.Reasons = []standstill.Reason{}
		}
		return errors.Join(output.Document(a.Stdout, found), found.unreadError(a))
	}
	if err := printReasons(a, found.Reasons); err != nil || a.Quiet || len(found.Unread) > 0 {
		return errors.Join(err, found.unreadError(a))
	}
	if found.Incomplete {
		if err := a.Say(a.Stderr, "the daemon is still indexing the runs of this fleet: some may be missing"); err != nil {
			return err
		}
	}
	switch {
	case len(found.Reasons) == 0:
		return a.Say(a.Stderr, "no run stands still")
	case found.More > 0:
		return a.Say(a.Stderr, "there are %d more: list them with --all, or with a --limit above %d", found.More, c.Limit)
	}
	return a.Say(a.Stderr, "see one with: %s; what needs a person: %s", a.Prompt.Command("runs show RUN"), a.Prompt.Command("inbox"))
}

// printReasons shows them, oldest first.
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
