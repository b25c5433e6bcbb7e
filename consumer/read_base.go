package consumer

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/schema"
)

// graft gives a state the content that a fork has of its base, and the base of that one; forks counts how far down. A run that
// is no fork needs none. The sink's budget is for all of them together.
func (rd *reader) graft(ctx context.Context, to *stateSink, run string, base *schema.BaseRef, forks int) error {
	if base == nil {
		return nil
	}
	gone := func(why string) error {
		return fail(schema.CodeDamaged, "Restore run "+base.Run+" from a backup; view head shows where the fork stands.",
			"run %s is a fork of run %s, %s", run, base.Run, why)
	}
	if forks == schema.MaxBases {
		return gone("which stands on too many others")
	}
	r, err := rd.proven(ctx, rd.shards(base.Run), base.Run, mode{content: true})
	if errors.Is(err, ErrNoRun) {
		return gone("which is no longer there")
	}
	if err != nil {
		return err
	}
	m, r, err := rd.locate(ctx, r, schema.Point{Kind: schema.PointEvent, Name: base.Position.ID})
	var told *schema.ServiceError
	switch {
	case errors.As(err, &told):
		return gone("of which " + told.Message)
	case err != nil:
		return err
	case m.head.Digest != base.Digest:
		return gone("which is not what it was there")
	}
	own := to.state
	to.state, to.last = schema.NewState(rd.fleet, base.Run), 0
	defer func() { to.state, to.last = own, 0 }()
	if err := rd.graft(ctx, to, base.Run, m.head.Base, forks+1); err != nil {
		return err
	}
	if err := rd.contentTo(ctx, r, m, to); err != nil {
		return err
	}
	own.Graft(to.state)
	return nil
}
