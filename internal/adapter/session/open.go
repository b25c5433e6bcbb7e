package session

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Open starts a run. If it exists, Open takes it over, also after its end.
func Open(ctx context.Context, fleet *publisher.Fleet, spec publisher.RunSpec) (run *publisher.Run, taken bool, err error) {
	run, err = fleet.Start(ctx, spec)
	if !errors.Is(err, publisher.ErrRunExists) {
		return run, false, err
	}
	run, err = fleet.Resume(ctx, spec.ID, publisher.ResumeSpec{Agent: spec.Agent})
	if errors.Is(err, publisher.ErrRunEnded) {
		run, err = fleet.Resume(ctx, spec.ID, publisher.ResumeSpec{Agent: spec.Agent, Reason: schema.TakeoverReopen})
	}
	return run, true, err
}
