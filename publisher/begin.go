package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// beginWithin is the maximum age of the proof of an epoch when a guarded tool begins. The age counts from when the
	// executor sent the try that the server acknowledged as new. All executors use this same value, because the next
	// executor relies on it.
	beginWithin = 2 * time.Second
	// beginGrace is what the next executor waits beyond beginWithin. It covers the moment between proof and tool, and
	// clocks that run at different rates.
	beginGrace = 500 * time.Millisecond
	// beginTries bounds the [schema.BeginPolicy] events that are published for one proof.
	beginTries = 5
)

// Begin proves that this handle still owns the run. Call it right before a tool that you run by other means than
// [Turn.Tool]. [Turn.Call] has already given the proof when it returns. For a requested call Begin
// publishes tool.called. For other calls it publishes an event, unless the last new event was acknowledged within two
// seconds. A call that an operator settled as rerun begins 2.5 seconds after the takeover at the earliest; see
// [Turn.Tool].
//
// If a [Policy] is set, Begin asks it first, once for each call, and records the decision. If the policy leaves the
// decision to a person, Begin waits for it.
//
// Do not run the tool after an error. The errors are: [*ToolError] of the type [DeniedType] for a denied call, which is
// then closed; [ErrFenced] after another takeover; [*HeldError] for a call in doubt, and for a call that [Turn.Tool] of
// this handle ran without an outcome; [ErrConflict] for a call with a recorded outcome, and, with a policy, for a call
// that is not recorded.
func (t *Turn) Begin(ctx context.Context, key schema.CallKey) error {
	c := callRunner{run: t.run, key: key}
	for {
		if err := c.run.ledger.ended(); err != nil {
			return err
		}
		c.look()
		switch {
		case c.open == nil && c.call != nil && c.call.Outcome == schema.OutcomeFailed && c.call.Error != nil && c.call.Error.Type == DeniedType:
			return &ToolError{Key: key, Failure: *c.call.Error, Replayed: true}
		case c.open == nil && c.call != nil:
			return fmt.Errorf("beginning call %s in turn %d of run %s: %w: its outcome is recorded; ask the model for a new call to run the tool again",
				key.ToolCallID, key.Turn, c.run.id, ErrConflict)
		case c.unrecorded() && c.run.fleet.cfg.Policy != nil:
			return fmt.Errorf("beginning call %s in turn %d of run %s: %w: the policy decides about recorded calls: record it with Turn.Call or Turn.Answer first",
				key.ToolCallID, key.Turn, c.run.id, ErrConflict)
		case c.unrecorded(): // only the epoch can be proven
		case c.open.State.InDoubt(), c.outcome != nil, (c.stage == callRunning || !c.mine) && !c.open.Replay.Rerunnable():
			if err := c.hold(ctx, ""); err != nil {
				return err
			}
			continue // an outcome or a settlement may have arrived during the wait
		}
		if !c.unrecorded() && c.run.fleet.cfg.Policy != nil {
			if err := c.recall(ctx); err != nil {
				return err
			}
			if may, err := c.decide(ctx); err != nil || !may {
				if err != nil {
					return err
				}
				continue
			}
		}
		again, err := c.mayBegin(ctx, true)
		if err != nil || !again {
			return err
		}
	}
}

// recall takes the call from the record, as input of the policy.
func (c *callRunner) recall(ctx context.Context) error {
	if c.call == nil {
		return nil // decide returns the error: the policy cannot be asked
	}
	arguments, err := c.run.fleet.Field(ctx, c.call.Refs, "/arguments", c.call.Arguments)
	if err != nil {
		return fmt.Errorf("arguments of call %s in turn %d of run %s: %w", c.key.ToolCallID, c.key.Turn, c.run.id, err)
	}
	c.asked = ToolCall{
		ID: c.key.ToolCallID, Name: c.call.Name, Arguments: arguments, Replay: c.open.Replay, IdempotencyKey: c.call.IdempotencyKey,
		VerifySubject: c.call.VerifySubject, SideEffect: c.call.SideEffect, Occurrence: c.key.Occurrence,
	}
	return nil
}

// beginDraft records that a requested call begins now. stricter is the caller's call if its policy is stricter than the
// recorded one, otherwise nil.
func beginDraft(open *schema.OpenCall, stricter *ToolCall) draft {
	data := &schema.ToolCalledData{ToolCallID: open.ToolCallID, Occurrence: open.Occurrence, Name: open.Name}
	if stricter != nil {
		data.Replay, data.VerifySubject = open.Replay, stricter.VerifySubject
	}
	return draft{turn: open.Turn, data: data}
}

// mayBegin prepares a decided call so that its tool may run now. guarded: the tool needs a proof of the epoch. again:
// the call may have changed and must be looked up again.
func (c *callRunner) mayBegin(ctx context.Context, guarded bool) (again bool, err error) {
	if guarded {
		if again, err = c.outwait(ctx); again || err != nil {
			return again, err
		}
	}
	if c.open != nil && c.open.State.Requested() && guarded && !c.later() {
		return true, c.run.begin(ctx, beginDraft(c.open, c.stricter))
	}
	if left, err := c.run.provenFor(); err != nil || left > 0 || !guarded || c.later() {
		return false, err
	}
	if c.proofs == beginTries {
		return false, c.run.notProven(c.key)
	}
	c.proofs++
	return true, c.run.prove(ctx, c.key)
}

// later reports whether the tool says itself when it begins.
func (c *callRunner) later() bool { return c.asked.BeginsLater && !c.open.Replay.Rerunnable() }

// begin records that a requested call begins now. Other executors treat it as not begun until that is durable.
func (r *Run) begin(ctx context.Context, begin draft) error {
	_, err := r.publish(ctx, begin)
	if rejected, ok := errors.AsType[*RejectedError](err); ok && rejected.Reason == schema.ReasonCallOpen {
		return nil // another goroutine of this handle began it first
	}
	return err
}

// provenFor returns how long from now a tool may begin on the latest proof; 0 or less if another proof is needed.
func (r *Run) provenFor() (time.Duration, error) {
	return with2(r.ledger, func(l *ledger) (time.Duration, error) {
		if err := l.paused(); err != nil {
			return 0, err // an event behind the pause proves the epoch, too
		}
		return l.provenFor(r.fleet.proofAge, time.Now()), l.over
	})
}

// prove publishes an event whose acknowledgement proves that the handle still owns the run.
func (r *Run) prove(ctx context.Context, key schema.CallKey) error {
	proof := &schema.ToolDecidedData{
		ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Decision: schema.DecisionAllow, Policy: schema.BeginPolicy, Reason: "the call begins now",
	}
	if err := r.Publish(ctx, proof, key.Turn); err != nil {
		return fmt.Errorf("beginning call %s in turn %d: %w", key.ToolCallID, key.Turn, err)
	}
	return nil
}

func (r *Run) notProven(key schema.CallKey) error {
	return fmt.Errorf("beginning call %s in turn %d of run %s: %w: no acknowledgement of %d events came within %s; see: waymark doctor",
		key.ToolCallID, key.Turn, r.id, ErrUnavailable, beginTries, r.fleet.proofAge)
}

// outwait waits until the previous executor can no longer begin the call on a proof of its own epoch. This time has
// usually passed when a person settles a call after a takeover.
func (c *callRunner) outwait(ctx context.Context) (waited bool, err error) {
	fleet := c.run.fleet
	left := with(c.run.ledger, func(l *ledger) time.Duration { return l.calls.left(c.key, fleet.outwait, time.Now()) })
	if left <= 0 {
		return false, nil
	}
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(fleet.life, func() { cancel(ErrStopped) })() //nolint:contextcheck // closing the fleet handle ends the wait, too
	if pause.For(both, left) == nil {
		return true, nil
	}
	return false, fmt.Errorf("call %s in turn %d of run %s: waiting until the previous executor can no longer begin it: %w",
		c.key.ToolCallID, c.key.Turn, c.run.id, context.Cause(both))
}
