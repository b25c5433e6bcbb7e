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
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

// stuckReaders is the number of runs that are read at the same time, to see why they stand still.
const stuckReaders = 8

// Kinds of reasons for which a run stands still, as JSON has them.
const (
	stuckWaiting     = "waiting"
	stuckHeld        = "held"
	stuckOverdue     = "overdue"
	stuckOrphaned    = "orphaned"
	stuckInterrupted = "interrupted"
	stuckQuarantined = "quarantined"
	stuckParked      = "parked"
	stuckIncomplete  = "incomplete"
)

// reason is one reason for which a run stands still.
type reason struct {
	Run      string        `json:"run"`
	Agent    string        `json:"agent,omitzero"`
	Executor string        `json:"executor,omitzero"`
	Status   schema.Status `json:"status,omitzero"`
	// Kind is waiting, held, overdue, orphaned, interrupted, quarantined, parked or incomplete.
	Kind string `json:"kind"`
	// Why in words.
	Why string `json:"why"`
	// Since when, RFC 3339.
	Since string `json:"since,omitzero"`
	// InterruptID of what is waited for, and the call that it, or what is held or overdue, is about.
	InterruptID string `json:"interrupt_id,omitzero"`
	Turn        int32  `json:"turn,omitzero"`
	ToolCallID  string `json:"tool_call_id,omitzero"`
	Occurrence  int    `json:"occurrence,omitzero"`
	Tool        string `json:"tool,omitzero"`
	// wait and call are what it is about, for those that a person can answer.
	wait *schema.OpenInterrupt
	call *schema.OpenCall
	head *schema.Head
}

func (r *reason) key() schema.CallKey {
	return schema.CallKey{Turn: r.Turn, ToolCallID: r.ToolCallID, Occurrence: r.Occurrence}
}

// standing are reasons, oldest first, and what is not in the list.
type standing struct {
	Reasons []reason `json:"stuck"`
	// Incomplete: the daemon is still indexing the runs.
	Incomplete bool `json:"incomplete,omitzero"`
	// More counts the reasons that the limit left out.
	More int `json:"more,omitzero"`
}

// live are the statuses of runs that have not ended.
var live = []schema.Status{schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned}

// gather reads the runs that stand still, as a list of them and their heads say. want says which runs are looked at. With ended, calls of ended
// runs that a person must settle are found, too.
func gather(ctx context.Context, cl *base.Client, request schema.ListRequest, ended bool) (found standing, err error) {
	var suspects []schema.RunSummary
	seen := make(map[string]bool)
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
				if r := &page.Runs[i]; suspicious(r) && !seen[r.Run] {
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
	details := make([][]reason, len(suspects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(stuckReaders)
	for i := range suspects {
		group.Go(func() (err error) {
			details[i], err = reasonsOf(ctx, cl, &suspects[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return found, err
	}
	found.Reasons = slices.Concat(details...)
	for _, p := range parked {
		if request.Agent == "" && len(request.Labels) == 0 || seen[p.Run] {
			found.Reasons = append(found.Reasons, reason{Run: p.Run, Kind: stuckParked, Why: "parked: " + p.Why, Since: p.Since})
		}
	}
	slices.SortStableFunc(found.Reasons, func(a, b reason) int {
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

// reasonsOf looks at a run. One that went on meanwhile has none, and one that is gone neither.
func reasonsOf(ctx context.Context, cl *base.Client, r *schema.RunSummary) ([]reason, error) {
	reply, err := cl.Get(ctx, r.Run)
	if service, ok := errors.AsType[*schema.ServiceError](err); ok && (service.Code == schema.CodeNotFound || service.Code == schema.CodeErased) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return headReasons(&reply.Head, reply.Quarantined, reply.Overdue), nil
}

// headReasons are why a run stands still; none if it does not.
func headReasons(h *schema.Head, quarantined bool, overdue []schema.Overdue) []reason {
	var list []reason
	add := func(kind, why, since string) *reason {
		list = append(list, reason{Run: h.Run, Agent: h.Agent, Executor: h.Executor, Status: h.Status, Kind: kind, Why: why, Since: since, head: h})
		return &list[len(list)-1]
	}
	about := func(r *reason, key schema.CallKey, tool string) {
		r.Turn, r.ToolCallID, r.Occurrence, r.Tool = key.Turn, key.ToolCallID, key.Occurrence, tool
	}
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		if w.Reason == schema.WaitToolInDoubt || h.Status.Terminal() {
			continue // the call is held
		}
		tool := ""
		if at := h.FindOpen(w.Turn, w.ToolCallID, w.Occurrence); w.ToolCallID != "" && at >= 0 {
			tool = h.OpenCalls[at].Name
		}
		r := add(stuckWaiting, waitWhy(w, tool), w.Since)
		r.InterruptID, r.wait = w.InterruptID, w
		if w.ToolCallID != "" {
			about(r, w.CallKey(), tool)
		}
	}
	calls := h.HeldCalls()
	for i := range calls {
		c := &calls[i]
		r := add(stuckHeld, fmt.Sprintf("held: %s may have run (turn %d, call %s)", c.Name, c.Turn, c.ToolCallID), c.Since)
		about(r, c.CallKey, c.Name)
		r.call = c
	}
	for i := range overdue {
		o := &overdue[i]
		what := "the model has not answered"
		if o.ToolCallID != "" {
			what = "tool " + o.Tool + " has not returned"
		}
		r := add(stuckOverdue, fmt.Sprintf("overdue: %s within %s", what, limitOf(o)), o.Since)
		about(r, schema.CallKey{Turn: o.Turn, ToolCallID: o.ToolCallID, Occurrence: o.Occurrence}, o.Tool)
	}
	switch {
	case h.Status.Terminal():
	case quarantined:
		add(stuckQuarantined, fmt.Sprintf("quarantined: %d claims in a row made no progress", h.Stalled), h.UpdatedAt)
	case !h.Complete():
		add(stuckIncomplete, "incomplete: events of it are missing", h.UpdatedAt)
	case neverBegun(h):
		add(stuckInterrupted, "submitted: no executor has claimed it", h.UpdatedAt)
	case h.Status == schema.StatusInterrupted:
		add(stuckInterrupted, "interrupted: no executor has claimed it", h.UpdatedAt)
	case h.Status == schema.StatusOrphaned:
		add(stuckOrphaned, "orphaned: its executor is gone", h.UpdatedAt)
	}
	return list
}

// waitWhy says what a run waits for.
func waitWhy(w *schema.OpenInterrupt, tool string) string {
	var what string
	switch w.Reason {
	case schema.WaitToolApproval:
		what = "for approval of " + cmp.Or(tool, "call "+w.ToolCallID)
	case schema.WaitHumanInput:
		what = "for an answer"
	case schema.WaitExternalSystem:
		what = "for another system"
	case schema.WaitAuth:
		what = "for a login"
	default:
		what = "for " + w.Reason
	}
	if w.Message != "" {
		what += ": " + w.Message
	}
	return "waits " + what
}

// cut keeps the oldest.
func (s *standing) cut(limit int) {
	if more := len(s.Reasons) - limit; more > 0 {
		s.Reasons, s.More = s.Reasons[:limit], more
	}
}

// stuck is runs ls --stuck.
func (c lsCmd) stuck(ctx context.Context, a *base.App, cl *base.Client, request schema.ListRequest) error {
	found, err := gather(ctx, cl, request, false)
	if err != nil {
		return err
	}
	if !c.All {
		found.cut(c.Limit)
	}
	if a.JSON {
		if found.Reasons == nil {
			found.Reasons = []reason{}
		}
		return output.Document(a.Stdout, found)
	}
	if err := printReasons(a, found.Reasons); err != nil || a.Quiet {
		return err
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
func printReasons(a *base.App, reasons []reason) error {
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
