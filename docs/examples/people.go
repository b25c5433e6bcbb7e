package examples

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: approvals

// Careful is a Config.Policy: a person is asked about mail and charges, and deletions are refused.
func Careful(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
	switch call.Name {
	case "mail", "charge":
		return publisher.Decision{
			Decision: schema.DecisionAsk, Policy: "outside", Reason: "It cannot be taken back.", Expires: 24 * time.Hour,
		}, nil
	case "delete":
		return publisher.Decision{Decision: schema.DecisionDeny, Policy: "no-delete", Reason: "Agents delete nothing here."}, nil
	default:
		return publisher.Decision{Decision: schema.DecisionAllow, Policy: "inside"}, nil
	}
}

// end of approvals

// snippet: hook

// Hook runs a tool that another framework calls, under the policy of the process: record and ask, run, record the
// result.
func Hook(ctx context.Context, turn *publisher.Turn, call publisher.ToolCall, run func() (publisher.ToolResult, error)) error {
	keys, err := turn.Call(ctx, call) // asks the policy, and begins the call if it is allowed
	if errors.Is(err, publisher.ErrToolFailed) {
		return nil // denied and recorded: the model sees the reason
	}
	if err != nil {
		return err // the tool must not run
	}
	result, err := run()
	if err != nil {
		return turn.Fail(ctx, keys[0], schema.Error{Type: "error", Message: err.Error()})
	}
	return turn.Return(ctx, keys[0], result)
}

// end of hook

// snippet: ask

// Colour asks a person, once, and returns the answer on any executor.
func Colour(ctx context.Context, run *publisher.Run) (string, error) {
	input, err := run.Ask(ctx, schema.RunWaitingData{
		InterruptID:    "colour", // the same each time that the work reaches this question
		Reason:         schema.WaitHumanInput,
		Message:        "Which colour shall the door have?",
		ResponseSchema: []byte(`{"type":"string","enum":["red","blue"]}`),
		ExpiresAt:      schema.FormatTime(time.Now().Add(24 * time.Hour)),
	})
	switch {
	case errors.Is(err, publisher.ErrInputExpired), errors.Is(err, publisher.ErrInputCancelled):
		return "blue", nil // the default
	case err != nil:
		return "", err // under an executor with WaitDetached this is ErrWaiting: return it
	}
	var colour string
	return colour, json.Unmarshal(input.Payload, &colour)
}

// end of ask

// snippet: phases

// Release does three things, and none of them twice. An interrupted phase runs again from its own start.
func Release(ctx context.Context, run *publisher.Run, build, test, publish func(context.Context) (any, error)) error {
	for _, phase := range []struct {
		name string
		work func(context.Context) (any, error)
	}{{"build", build}, {"test", test}, {"publish", publish}} {
		if _, err := run.Phase(ctx, phase.name, phase.work); err != nil {
			return err
		}
	}
	return nil
}

// end of phases

// snippet: cancel

// WindUp lets the work clean up after a request to cancel the run.
func WindUp(work publisher.Work, tidy func(ctx context.Context) error) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		err := work(ctx, run)
		if errors.Is(context.Cause(ctx), publisher.ErrCancelRequested) {
			// ctx has ended, but the cleanup must still run.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			err = errors.Join(err, tidy(ctx))
		}
		return err // the executor ends the run as cancelled
	}
}

// end of cancel
