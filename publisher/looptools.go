package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// called is the end of a call: its result, or the error for the model.
type called struct {
	ToolResult
	err error
}

// runCalls runs the calls of an answer in order; consecutive calls run concurrently if their tools allow it.
func (l *looping) runCalls(ctx context.Context, turn *Turn, calls []ToolCall) ([]called, error) {
	results := make([]called, len(calls))
	for from := 0; from < len(calls); {
		to := from + 1
		for to < len(calls) && l.concurrent(calls[from].Name) && l.concurrent(calls[to].Name) {
			to++
		}
		var group errgroup.Group
		group.SetLimit(l.Parallel)
		for i := from; i < to; i++ {
			results[i].err = errGoexit // until the call returns
			group.Go(func() error {
				results[i].ToolResult, results[i].err = protect(ctx, func(ctx context.Context, call ToolCall) (ToolResult, error) {
					return l.call(ctx, turn, call)
				}, calls[i])
				return nil
			})
		}
		_ = group.Wait() // each call has its own error
		for i := from; i < to; i++ {
			// The model gets told that a call failed or was abandoned, once that is recorded.
			told := errors.Is(results[i].err, ErrToolFailed) || errors.Is(results[i].err, ErrAbandoned)
			if err := results[i].err; err != nil && !told {
				return nil, fmt.Errorf("call %s of %s: %w", calls[i].ID, turn, err)
			}
		}
		from = to
	}
	return results, nil
}

// concurrent reports whether calls of a tool may run concurrently with others.
func (l *looping) concurrent(name string) bool {
	t := l.tools[name]
	return t != nil && (t.Replay == schema.ReplayPure || t.Concurrent)
}

// call runs one call.
func (l *looping) call(ctx context.Context, turn *Turn, call ToolCall) (ToolResult, error) {
	t := l.tools[call.Name]
	call.Error = l.refusal(turn, t, &call)
	if t == nil {
		return turn.Tool(ctx, call, nil)
	}
	timeout, run := cmp.Or(t.Timeout, l.ToolTimeout), t.Run
	recorded := call.Replay
	call.Replay, call.VerifySubject, call.BeginsLater = t.Replay, t.VerifySubject, t.BeginsLater // the stricter one of this policy and the recorded one applies
	if schema.Stricter(recorded, t.Replay).Rerunnable() {
		return turn.Tool(ctx, call, l.retried(run, timeout))
	}
	return l.once(ctx, turn, call, run, timeout)
}

// refusal is the reason, for the model, why a recorded call cannot run: this version of the agent may lack its tool, or
// have another schema for the arguments. nil if it can run.
func (l *looping) refusal(turn *Turn, t *Tool, call *ToolCall) *schema.Error {
	if t == nil {
		return unknownTool(nil, fmt.Sprintf("the agent had a tool %.80q when it was called, and has it no longer", call.Name))
	}
	if l.run.fleet.redactor != nil && l.given.turn != turn.number && strings.Contains(string(call.Arguments), strings.TrimSuffix(redactedText, "]")) {
		// An earlier executor had the unredacted arguments; the record does not have them.
		return &schema.Error{Type: "redacted_arguments", Message: "the arguments of this call are redacted in the record: make the call again"}
	}
	return t.refusal(call.Arguments)
}

// retried runs a tool that may run again, and retries it after temporary errors.
func (l *looping) retried(run ToolFunc, timeout time.Duration) ToolFunc {
	return func(ctx context.Context, inv Invocation) (ToolResult, error) {
		if err := l.run.awaitRetry(ctx, inv.Key); err != nil {
			return ToolResult{}, err
		}
		wait := &pause.Backoff{Next: toolPause, Most: mostTryPause}
		begun := l.run.fleet.cfg.Now()
		for try := 1; ; try++ {
			given := inv
			given.Arguments = slices.Clone(inv.Arguments) // a tool may change them
			inv.work.again()
			result, err := within(withInvocation(ctx, given), timeout, run, given)
			inv.work.end() // a pause between tries is not overdue
			at := retryTime(err).Sub(l.run.fleet.cfg.Now())
			switch {
			case at > mostUnrecorded:
				if err := l.run.retryLater(ctx, inv.Key, err, begun, retryTime(err), l.Patience); err != nil {
					return result, err
				}
			case err == nil || try >= l.ToolTries || !failureOf(err).Retryable || !wait.Wait(ctx) || pause.For(ctx, at) != nil:
				return result, err
			}
			inv.Attempt++
			*inv.latest = inv.Attempt
		}
	}
}

// once runs a tool that must not run again. After a timeout its effect is unknown: the call is held until a person
// settles it.
func (l *looping) once(ctx context.Context, turn *Turn, call ToolCall, run ToolFunc, timeout time.Duration) (ToolResult, error) {
	if timeout <= 0 {
		return turn.Tool(ctx, call, run)
	}
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	result, err := turn.Tool(bounded, call, func(ctx context.Context, inv Invocation) (ToolResult, error) {
		// Start the timer only now: an approval may take days.
		timer := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
		defer timer.Stop()
		return run(ctx, inv)
	})
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && !errors.Is(err, ErrToolFailed) && !errors.Is(err, ErrAbandoned) {
		return turn.Tool(ctx, call, func(context.Context, Invocation) (ToolResult, error) { // returns that it is held, if it has begun
			return ToolResult{}, fmt.Errorf("it did not begin within %s: %w", timeout, context.DeadlineExceeded)
		})
	}
	return result, err
}
