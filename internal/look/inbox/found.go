package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// Asker sends requests to the service of a fleet.
type Asker interface {
	Ask(ctx context.Context, verb, run string, request, reply any) error
}

// stuckReaders is the number of runs that are read concurrently, to see why they are stuck.
const stuckReaders = 8

// Found are reasons, oldest first, and what the list lacks.
type Found struct {
	Reasons []standstill.Reason `json:"stuck"`
	// Incomplete: the daemon is still indexing the runs.
	Incomplete bool `json:"incomplete,omitzero"`
	// Paused counts the runs that a pause selects.
	Paused int `json:"paused,omitzero"`
	// More counts the reasons beyond the limit.
	More int `json:"more,omitzero"`
	// Unread are runs that cannot be read, so that their state is unknown.
	Unread []Unread `json:"unread,omitzero"`
}

// Unread is a run that the daemon cannot read, with the daemon's error.
type Unread struct {
	Run string `json:"run"`
	Why string `json:"why"`
	Err error  `json:"-"`
}

// Cut keeps the oldest reasons.
func (s *Found) Cut(limit int) {
	if more := len(s.Reasons) - limit; more > 0 {
		s.Reasons, s.More = s.Reasons[:limit], more
	}
}

// live are the statuses of runs that have not ended.
var live = []schema.Status{schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned, schema.StatusPaused}

// Gather reads the stuck runs, from a list of runs and their heads. want selects the runs whose head is read, by their
// list entry: of the runs that have not ended, and of ended ones with a call that a person must settle, or a hand-off that
// waits for an executor.
func Gather(ctx context.Context, cl Asker, request schema.ListRequest, want func(*schema.RunSummary) bool) (found Found, err error) {
	var suspects []schema.RunSummary
	seen := make(map[string]bool)
	request.Limit, request.Status = schema.MaxList, live
	held := request
	held.Status, held.Held = []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled}, true
	offered := held
	offered.Held, offered.Offered = false, true
	for _, ask := range []schema.ListRequest{request, held, offered} {
		for {
			var page schema.ListReply
			if err := cl.Ask(ctx, schema.VerbList, "", ask, &page); err != nil {
				return found, err
			}
			found.Incomplete = found.Incomplete || page.Incomplete
			for i := range page.Runs {
				r := &page.Runs[i]
				if seen[r.Run] {
					continue
				}
				seen[r.Run] = true
				if r.Status == schema.StatusPaused {
					found.Paused++
				}
				if want(r) {
					suspects = append(suspects, *r)
				}
			}
			if ask.After = page.Next; ask.After == "" {
				break
			}
		}
	}
	details, failed := make([][]standstill.Reason, len(suspects)), make([]*schema.ServiceError, len(suspects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(stuckReaders)
	for i := range suspects {
		group.Go(func() (err error) {
			details[i], err = ReasonsOf(ctx, cl, suspects[i].Run)
			if failed[i] = broken(err); failed[i] != nil {
				err = nil // an unreadable run does not hide the others
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return found, err
	}
	for i, err := range failed {
		if err != nil {
			found.Unread = append(found.Unread, Unread{suspects[i].Run, err.Message, err})
		}
	}
	found.Reasons = slices.Concat(details...)
	slices.SortStableFunc(found.Reasons, func(a, b standstill.Reason) int {
		return cmp.Or(schema.ParseTime(a.Since).Compare(schema.ParseTime(b.Since)), cmp.Compare(a.Run, b.Run))
	})
	return found, nil
}

// Suspicious reports whether a run may be stuck. An ended one waits for nothing but an executor that takes its hand-off.
func Suspicious(r *schema.RunSummary) bool {
	if r.Status.Terminal() {
		return r.Handoffs > 0
	}
	return r.Status.Claimable() || r.Status == schema.StatusWaiting || r.Waits > 0 || r.Handoffs > 0 || r.Held > 0 || r.Overdue > 0 || r.Quarantined || r.Gapped
}

// broken is the error of a run that the daemon cannot read; nil if there is none or the error is not about one run.
func broken(err error) *schema.ServiceError {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || service.Code != schema.CodeDamaged && service.Code != schema.CodeInternal {
		return nil
	}
	return service
}

// MayNeedPerson reports whether a run may need a person. Runs that only wait for an executor, and overdue work, do not.
func MayNeedPerson(r *schema.RunSummary) bool {
	return r.Status == schema.StatusWaiting || r.Waits > 0 || r.Held > 0 || r.Quarantined || r.Gapped
}

// ReasonsOf reads a run. It has no reasons if it has continued since, or no longer exists.
func ReasonsOf(ctx context.Context, cl Asker, run string) ([]standstill.Reason, error) {
	reply := new(schema.GetReply)
	err := cl.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, reply)
	if service, ok := errors.AsType[*schema.ServiceError](err); ok && (service.Code == schema.CodeNotFound || service.Code == schema.CodeErased) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	reasons := standstill.Of(&reply.Head, reply.Quarantined, len(reply.Pauses) > 0, reply.Overdue, reply.Full...)
	for i := range reply.Head.Handoffs {
		o := &reply.Head.Handoffs[i]
		if o.Status != schema.HandoffStatusAccepted {
			continue
		}
		err := cl.Ask(ctx, schema.VerbGet, o.ChildRun, schema.GetRequest{View: schema.ViewHead}, new(schema.GetReply))
		service, ok := errors.AsType[*schema.ServiceError](err)
		switch {
		case ok && service.Code == schema.CodeNotFound:
			reasons = append(reasons, standstill.OfNotBegun(&reply.Head, o))
		case err != nil && broken(err) == nil && (!ok || service.Code != schema.CodeErased):
			return nil, err
		}
	}
	return reasons, nil
}

// Find returns the same reason among the run's current ones; nil if the run no longer has it.
func Find(t *standstill.Reason, now []standstill.Reason) *standstill.Reason {
	i := slices.IndexFunc(now, func(r standstill.Reason) bool {
		return r.Kind == t.Kind && r.InterruptID == t.InterruptID && r.Key() == t.Key()
	})
	if i < 0 {
		return nil
	}
	return &now[i]
}
