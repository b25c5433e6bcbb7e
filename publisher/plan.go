package publisher

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// Plan says what the next executor would do with the run, before anything is done: which calls are reused, run again,
// verified or held, and what that saves. It takes nothing over and contains every event acknowledged before the call.
// For a run that misses events it returns the plan of what there is and an [*IncompleteError].
func (r *Reader) Plan(ctx context.Context, run string) (*schema.Plan, error) {
	s, err := r.Get(ctx, run)
	if s == nil {
		return nil, err
	}
	plan := schema.PlanOf(s)
	return &plan, err
}
