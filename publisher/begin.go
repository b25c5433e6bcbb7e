package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// beginWithin is how old the proof of an epoch may be when a tool begins that must not run twice, counted from the sending of
	// the try that the server acknowledged as new. It is the same for all executors: the next one counts on it.
	beginWithin = 2 * time.Second
	// beginGrace is what the next executor waits beyond that: for the moment between the proof and the tool, and for
	// clocks that do not run at the same rate.
	beginGrace = 500 * time.Millisecond
	// beginTries bounds the events of [beginPolicy] that are published for one proof.
	beginTries = 5
	// beginPolicy names the decision that only says that a call begins. No policy made it.
	beginPolicy = "waymark.begin"
)

// Begin proves that the run is still this handle's, for a tool that is run by other means than [Turn.Tool]: call it right before
// the tool. [Turn.Call] has done so when it returned in synchronous mode. Begin publishes tool.called of a requested call. Of another it
// publishes an event, unless the last new event was acknowledged within two seconds. A call that an operator settled as rerun begins no
// earlier than 2.5 seconds after the takeover; see [Turn.Tool].
//
// The tool must not run after an error: [ErrFenced] after another takeover, [*HeldError] for a call in doubt, and for one that
// [Turn.Tool] of this handle ran without an outcome, [ErrConflict] for a call with a recorded outcome.
func (t *Turn) Begin(ctx context.Context, key schema.CallKey) error {
	r := t.run
	events := 0
	for {
		if err := r.settled(ctx); err != nil {
			return err
		}
		v := r.viewCall(key)
		switch {
		case v.known && v.open == nil:
			return fmt.Errorf("beginning call %s in turn %d of run %s: %w: its outcome is recorded; ask the model for a new call to run the tool again",
				key.ToolCallID, key.Turn, r.id, ErrConflict)
		case v.open == nil: // not recorded yet: the proof of the epoch is all there is
		case v.open.InDoubt, v.outcome != nil, (v.stage == running || v.stage == 0) && !v.open.Replay.Rerunnable():
			if err := r.hold(ctx, key, v.open, ""); err != nil {
				return err
			}
			continue // an outcome or a settlement may have arrived during the wait
		}
		again, err := r.mayBegin(ctx, key, &v, true, &events)
		if err != nil || !again {
			return err
		}
	}
}

// beginDraft says that a requested call begins now; stricter is the caller's if its policy is stricter than the recorded one, else nil.
func beginDraft(open *schema.OpenCall, stricter *ToolCall) draft {
	data := &schema.ToolCalledData{ToolCallID: open.ToolCallID, Occurrence: open.Occurrence, Name: open.Name}
	if stricter != nil {
		data.Replay, data.VerifySubject = open.Replay, stricter.VerifySubject
	}
	return draft{turn: open.Turn, data: data}
}

// proofDraft says that a call begins now, for a proof of the epoch.
func proofDraft(key schema.CallKey) draft {
	return draft{turn: key.Turn, data: &schema.ToolDecidedData{
		ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Decision: schema.DecisionAllow,
		Policy: beginPolicy, Reason: "the call begins now",
	}}
}

func (r *Run) tooSlow(key schema.CallKey) error {
	return fmt.Errorf("beginning call %s in turn %d of run %s: %w: no acknowledgement of %d events came within %s; see: waymark doctor",
		key.ToolCallID, key.Turn, r.id, ErrUnavailable, beginTries, r.fleet.proofAge)
}

// proven reports whether the epoch was the run's own a moment ago. A duplicate acknowledgement, and an event that was found in
// the log, prove that the event is stored, and not that no other executor has taken the run over since.
func (r *Run) proven() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead != nil {
		return false, r.dead
	}
	// A machine that was asleep shows it on the clock of the wall only.
	return !r.stood.IsZero() && time.Since(r.stood) < r.fleet.proofAge && time.Now().Round(0).Sub(r.stood.Round(0)) < r.fleet.proofAge, nil
}

// mayBegin brings a decided call to where its tool may run now. guarded: the tool needs
// a proof of the epoch; events counts those published for it. again: the call may have changed, and is to be looked up once more.
func (r *Run) mayBegin(ctx context.Context, key schema.CallKey, v *callView, guarded bool, events *int) (again bool, err error) {
	if guarded {
		if again, err = r.outwait(ctx, key); again || err != nil {
			return again, err
		}
	}
	if v.open != nil && v.open.Requested && guarded {
		// To others it counts as not begun until then.
		err := r.publishNow(ctx, beginDraft(v.open, v.stricter))
		if rejected, ok := errors.AsType[*RejectedError](err); ok && rejected.Reason == schema.ReasonCallOpen {
			err = nil // another goroutine of this handle was faster
		}
		return true, err
	}
	proven, err := r.proven()
	if err != nil || proven || !guarded {
		return false, err
	}
	if *events == beginTries {
		return false, r.tooSlow(key)
	}
	*events++
	if err := r.publishNow(ctx, proofDraft(key)); err != nil {
		return false, fmt.Errorf("beginning call %s in turn %d: %w", key.ToolCallID, key.Turn, err)
	}
	return true, nil
}

// outwait waits until the executor from whom this handle took the run over can no longer begin the call by a proof of its own
// epoch. Between a takeover and a person's word that is mostly over.
func (r *Run) outwait(ctx context.Context, key schema.CallKey) (waited bool, err error) {
	r.mu.Lock()
	old, left := r.calls.old[key], time.Until(r.taken.Add(r.fleet.outwait))
	r.mu.Unlock()
	if !old || left <= 0 {
		return false, nil
	}
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.fleet.life, func() { cancel(ErrStopped) })() //nolint:contextcheck // the life of the fleet ends the wait, too
	if pause.For(both, left) == nil {
		return true, nil
	}
	return false, fmt.Errorf("call %s in turn %d of run %s: waiting until the executor before can no longer begin it: %w",
		key.ToolCallID, key.Turn, r.id, context.Cause(both))
}
