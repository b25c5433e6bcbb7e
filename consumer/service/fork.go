package service

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// fork marks a run as the base of a fork. The mark is an event of the base, so the compare-and-set of a removal of the
// base sees it: the base is either marked or removed, never both.
func (s *Service) fork(t *task, req *schema.ForkRequest) (c change, err error) {
	if req.Fork == t.run {
		return c, badField("/fork", errors.New("is its own base"))
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	c.decide = func(_ context.Context, r *reader.Snapshot) (decision, error) {
		switch {
		case slices.Contains(r.Head.Forks, req.Fork):
			return decision{there: &schema.ControlReply{}}, nil
		case len(r.Head.Forks) >= schema.MaxForks:
			return decision{}, schema.Fail(schema.CodeConflict, "Fork one of its forks.", "run %s has %d forks, the most that a run can have", r.Run, schema.MaxForks)
		}
		return decision{data: &schema.CheckpointMarkedData{Name: req.Fork, Fork: true, By: c.who.by, Claimed: c.who.claimed}}, nil
	}
	return c, nil
}
