package publisher

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// Plan predicts what the next executor would do with the run: which calls are reused, run again, verified or held, and
// what that saves. It does not take the run over, and includes every event acknowledged before the call. For a run with
// missing events it returns the plan for the existing ones and an [*IncompleteError].
func (r *Reader) Plan(ctx context.Context, run string) (*schema.Plan, error) {
	s, err := r.Get(ctx, run)
	if s == nil {
		return nil, err
	}
	plan := schema.PlanOf(s)
	return &plan, err
}
