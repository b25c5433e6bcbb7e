package examples

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: signal-parent

// Lead is an agent that delegates tasks to helpers, each in a run of its own, and waits for their messages.
func Lead(model publisher.Model, fleet *publisher.Fleet) publisher.Loop {
	delegate := publisher.NewTool("delegate", "Hands a task to a helper. Its result comes as a message.", publisher.Idempotent,
		func(ctx context.Context, in struct {
			Task string `json:"task"`
		},
		) (string, error) {
			call := publisher.InvocationOf(ctx)
			// A repeated call creates the same run, on any executor.
			child := fmt.Sprintf("helper-%.16x", sha256.Sum256([]byte(call.IdempotencyKey)))
			_, err := fleet.Submit(ctx, publisher.RunSpec{
				ID: child, Agent: "helper", Task: in.Task,
				Parent: &schema.Parent{Run: call.Run().ID(), Turn: call.Key.Turn, ToolCallID: call.Key.ToolCallID, Occurrence: call.Key.Occurrence},
			})
			return child + " works on it.", err
		})
	wait := publisher.NewTool("wait", "Waits for the next message.", publisher.Pure,
		func(ctx context.Context, _ struct{}) (string, error) {
			_, err := publisher.InvocationOf(ctx).Run().AwaitSignal(ctx)
			return "A message has come.", err
		})
	wait.Timeout = time.Hour // a failed helper sends nothing: then the model sees that the tool timed out
	return publisher.Loop{System: "Delegate, then wait for the results.", Model: model, Tools: []publisher.Tool{delegate, wait}}
}

// end of signal-parent

// snippet: signal-child

// Report is a helper's result.
type Report struct {
	Text string `json:"text"`
}

// Helper is an agent that sends its result to the run that requested it. The message is in that run's log before this
// run ends, and is one message however often the call runs.
func Helper(model publisher.Model, fleet *publisher.Fleet) publisher.Loop {
	report := publisher.NewTool("report", "Ends the work with its result.", publisher.Idempotent,
		func(ctx context.Context, report Report) (Report, error) {
			call := publisher.InvocationOf(ctx)
			parent := call.Run().Head().Parent
			payload, err := json.Marshal(report)
			if err != nil || parent == nil {
				return report, err
			}
			err = fleet.Signal(ctx, parent.Run, publisher.SignalSpec{ID: call.IdempotencyKey, Name: "result", Payload: payload})
			if errors.Is(err, publisher.ErrRunEnded) {
				err = nil // it no longer needs the message
			}
			return report, err
		})
	return publisher.Loop{Model: model, Tools: []publisher.Tool{report}, Complete: "report"}
}

// end of signal-child

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
