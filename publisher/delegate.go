package publisher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

const (
	// MaxDelegateDepth bounds a chain of delegations: children of children.
	MaxDelegateDepth = 8
	// MaxDelegateRequests bounds the children of a run: one that has taken as many requests with an id, the ends of its
	// children among them, delegates no more. So its head has room for the ends of those that are under way.
	MaxDelegateRequests = 1000
)

// Delegate starts a child of the run, and waits for its end. In a tool the child belongs to the call: its id is derived
// from it, so each run of the call, on any executor, finds the same child. A tool that starts several children, and work
// of your own, set RunSpec.ID to an id that is the same each time.
//
// A child has the labels and the model tier of the run unless the spec says others, so that what selects a tenant's runs
// selects its children.
//
// The daemon tells the run of the child's end, also if the child was killed for good, so an [Executor] releases the run
// during the wait, with or without WaitDetached: Delegate returns [ErrWaiting], which the work, or its pure or idempotent
// tool, should return. Once the child has ended, the same call returns how: a child that failed, or that was quarantined or
// removed, is no error. If the child hands its work over, Delegate waits for the run that continues it.
//
// A request to cancel the run ends the wait with [ErrCancelRequested]; its children go on. Delegate returns
// [ErrDelegation] if the run may have no further child, and the errors of [Fleet.Submit] and [Run.Ask].
func (r *Run) Delegate(ctx context.Context, spec RunSpec) (schema.ChildEnd, error) {
	head, inv := r.Head(), InvocationOf(ctx)
	parent := &schema.Parent{Run: r.id, Depth: 1}
	if head.Parent != nil {
		parent.Depth = head.Parent.Depth + 1
	}
	if inv.run == r {
		spec.ID = cmp.Or(spec.ID, "child-"+digestOf(r.id + "\x00" + inv.IdempotencyKey)[:32])
		parent.Turn, parent.ToolCallID, parent.Occurrence = inv.Key.Turn, inv.Key.ToolCallID, inv.Key.Occurrence
	}
	spec.Parent, spec.ModelTier, spec.Priority = parent, cmp.Or(spec.ModelTier, head.ModelTier), cmp.Or(spec.Priority, head.Priority)
	if spec.Labels == nil {
		spec.Labels = head.Labels
	}
	end, err := r.childEnd(ctx, spec.ID, func() (bool, error) {
		switch {
		case r.fleet.unrecorded():
			return false, ErrUnrecorded
		case parent.Depth > MaxDelegateDepth:
			return false, fmt.Errorf("%w: it is at depth %d of delegations, the limit", ErrDelegation, MaxDelegateDepth)
		case head.Requests.Len() >= MaxDelegateRequests:
			return false, fmt.Errorf("%w: it has taken %d requests with an id, such as the ends of children; go on in a new run by a hand-off", ErrDelegation, head.Requests.Len())
		}
		if err := with(r.ledger, (*ledger).paused); err != nil {
			return false, err
		}
		return r.fleet.Submit(ctx, spec)
	})
	for err == nil && end.ContinuedBy != "" {
		end, err = r.childEnd(ctx, end.ContinuedBy, func() (bool, error) { return false, nil })
	}
	if err != nil {
		return end, fmt.Errorf("delegation of run %s to run %s: %w", r.id, spec.ID, err)
	}
	return end, nil
}

// childEnd waits for the end of a child, which it starts unless the run was told of its end.
func (r *Run) childEnd(ctx context.Context, child string, start func() (fresh bool, err error)) (end schema.ChildEnd, err error) {
	wait, told := schema.ChildWait(child), false
	heard := func(s *schema.State) bool { return len(endsOf(s, wait)) > 0 }
	if r.View(func(s *schema.State) { told = heard(s) }); !told {
		fresh, err := start()
		ended := false
		if err == nil && !fresh {
			var head schema.Head
			head, err = r.fleet.Head(ctx, child)
			ended = head.Status.Terminal()
		}
		switch {
		case errors.Is(err, ErrRunErased):
			return schema.ChildEnd{Run: child, Status: schema.StatusErased}, nil
		case err != nil:
			return end, err
		case ended:
			// A run that was rewound behind the signal, or had ended itself when it was due, is not told again.
			short, cancel := context.WithTimeout(ctx, r.fleet.waitPoll)
			err = r.await(short, "the end of run "+child, false, func(fold *localFold) (bool, error) { told = heard(fold.state); return told, nil })
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				err = nil
			}
		default:
			until := r.toolEnds(ctx, true)
			if told, err = r.awaitHeard(ctx, wait, "the end of run "+child, until, true, heard); err == nil && !told {
				err = fmt.Errorf("it has not ended in time: %w: %w", context.DeadlineExceeded, ErrInputExpired)
			}
		}
		if err != nil {
			return end, err
		}
	}
	end = schema.ChildEnd{Run: child, Partial: true}
	if told {
		if end, err = r.consumeEnd(ctx, wait); err != nil {
			return end, err
		}
	}
	return r.fleet.wholeEnd(ctx, end)
}

// endsOf are the signals of a child's ends, consumed or not, in order.
func endsOf(s *schema.State, wait string) (ends []schema.StateSignal) {
	for i := range s.Signals {
		if schema.Hears(wait, s.Signals[i].SignalID) {
			ends = append(ends, s.Signals[i])
		}
	}
	return ends
}

// consumeEnd returns the last end of a child that the run was told of, and consumes its signals: the caller has it from
// the record after a takeover, too.
func (r *Run) consumeEnd(ctx context.Context, wait string) (end schema.ChildEnd, err error) {
	var ends []schema.StateSignal
	var open []string
	r.View(func(s *schema.State) {
		ends = endsOf(s, wait)
		for _, o := range s.Head.Signals {
			if o.Turn == 0 && schema.Hears(wait, o.SignalID) {
				open = append(open, o.SignalID)
			}
		}
	})
	if len(open) > 0 {
		if err := r.ConsumeSignals(ctx, open...); err != nil {
			return end, err
		}
	}
	if err := json.Unmarshal(ends[len(ends)-1].Payload, &end); err != nil {
		return end, fmt.Errorf("signal %s: %w", ends[len(ends)-1].SignalID, err)
	}
	return end, nil
}

// wholeEnd adds the content of a child's end from the child's own log, if the signal has it not.
func (f *Fleet) wholeEnd(ctx context.Context, end schema.ChildEnd) (schema.ChildEnd, error) {
	if !end.Partial || end.Status == schema.StatusQuarantined {
		return end, nil
	}
	state, err := f.Get(ctx, end.Run)
	if errors.Is(err, ErrRunErased) {
		end.Status = cmp.Or(end.Status, schema.StatusErased)
		return end, nil
	}
	if err == nil {
		err = f.load(ctx, state)
	}
	if err != nil || !state.Head.Status.Terminal() { // else it was reopened
		return end, err
	}
	end.Status, end.Epoch = state.Head.Status, state.Head.Epoch
	if ended := state.Ended; ended != nil {
		end.Partial, end.Summary, end.Output, end.Error = false, ended.Summary, ended.Output, ended.Error
	}
	return end, nil
}
