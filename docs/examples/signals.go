package examples

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: delegate

// Lead is an agent that delegates tasks to helpers, each in a run of its own. Its run needs no executor while they work.
func Lead(model publisher.Model) publisher.Loop {
	delegate := publisher.NewTool("delegate", "Hands a task to a helper, and returns its result.", publisher.Idempotent,
		func(ctx context.Context, in struct {
			Task string `json:"task"`
		},
		) (schema.ChildEnd, error) {
			return publisher.InvocationOf(ctx).Run().Delegate(ctx, publisher.RunSpec{Agent: "helper", Task: in.Task})
		})
	delegate.Concurrent = true // the calls of one answer have their children at the same time
	return publisher.Loop{System: "Delegate the parts, then sum up.", Model: model, Tools: []publisher.Tool{delegate}}
}

// end of delegate

// snippet: signal-plain

// Steer works in steps that messages can change: each message is handled once, between two steps.
func Steer(step func(context.Context, *publisher.Run) (done bool, err error), change func(context.Context, publisher.Signal) error) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for {
			signals, err := run.Signals(ctx)
			if err != nil {
				return err
			}
			for _, s := range signals {
				// If the executor is killed here, the next one gets the signal again: change must have its effect once for each id.
				if err := errors.Join(change(ctx, s), run.ConsumeSignals(ctx, s.ID)); err != nil {
					return err
				}
			}
			if done, err := step(ctx, run); err != nil || !done {
				if err != nil {
					return err
				}
				continue
			}
			if err := run.End(ctx, publisher.RunEnd{NoSignals: true}); !errors.Is(err, publisher.ErrSignalled) {
				return err // nil, or the error
			}
		}
	}
}

// end of signal-plain
