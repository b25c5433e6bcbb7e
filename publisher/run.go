package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

// Run is the handle of one run in one epoch. It is safe for concurrent use: events are published one after another, in
// the order of their calls.
//
// When a method returns no error, its event is durable.
type Run struct {
	fleet *Fleet
	id    string
	// slot is held while an event is published.
	slot     publishSlot
	ledger   *sharedLedger
	recorder recorder
	follower follower
	// takenIn is the epoch in which it is active; [hand] guards it.
	takenIn schema.Epoch
	// driver drives the run; nil if no executor does.
	driver atomic.Pointer[drive]
}

func newRun(f *Fleet, names schema.Names, id string) *Run {
	r := &Run{
		fleet: f, id: id, slot: publishSlot{run: id, held: make(chan struct{}, 1), stopped: f.isStopped},
		ledger: shared(newLedger(schema.Writer{Fleet: f.cfg.Fleet, Run: id, Executor: f.cfg.Executor}, f.openKnown())),
	}
	r.ledger.l.version = f.versions.of
	r.ledger.l.policy = callPolicy{set: f.cfg.Policy != nil, observes: f.observes()}
	if f.unrecorded() {
		r.recorder = memory{r.ledger}
	} else {
		r.ledger.held = f.holder(r)
		r.recorder = newAppender(f, names, r.ledger)
	}
	r.follower = follower{ended: func() bool { return r.ledger.ended() != nil }, look: r.look}
	return r
}

// ID of the run.
func (r *Run) ID() string { return r.id }

// Epoch that the handle holds.
func (r *Run) Epoch() schema.Epoch {
	return with(r.ledger, func(l *ledger) schema.Epoch { return l.writer.Epoch })
}

// Head returns the run's compact state after the last durable event.
func (r *Run) Head() schema.Head {
	return with(r.ledger, func(l *ledger) schema.Head { return l.fold.head.Clone() })
}

// State returns a snapshot of the run after the last durable event. Large fields are references, see [Reader.Hydrate].
// The cost grows with the run: to look at one value use [Run.View].
func (r *Run) State() *schema.State {
	return with(r.ledger, func(l *ledger) *schema.State { return l.fold.state.Clone() })
}

// View calls look with the run's state. look must not keep or change it, and must not call the run.
func (r *Run) View(look func(*schema.State)) {
	r.ledger.do(func(l *ledger) { look(l.fold.state) })
}

// CancelRequested reports whether this handle has seen a request to cancel the run. It sees the request when the
// daemon's notice arrives, and at the latest when the run publishes or calls [Run.Sync].
func (r *Run) CancelRequested() bool {
	return with(r.ledger, (*ledger).cancelSeen)
}

// Err returns the error that ended the handle, or [ErrUnresolved], or nil.
func (r *Run) Err() error { return r.ledger.err() }

// Publish publishes any event of an executor that has no method of its own; turn is 0 outside turns.
func (r *Run) Publish(ctx context.Context, data schema.Data, turn int32) error {
	_, err := r.publish(ctx, draft{data: data, turn: turn})
	return err
}

// publish makes the drafts durable, in order. It returns the fold's verdict on each.
func (r *Run) publish(ctx context.Context, drafts ...draft) ([]schema.Verdict, error) {
	return r.publishAnd(ctx, nil, drafts...)
}

// publishAnd is publish that then ends the handle with last, unless last is nil, before another event can be published.
func (r *Run) publishAnd(ctx context.Context, last error, drafts ...draft) ([]schema.Verdict, error) {
	if err := r.prepare(ctx, drafts); err != nil {
		return nil, err
	}
	if err := r.slot.enter(ctx); err != nil {
		return nil, err
	}
	defer r.slot.leave()
	items, err := with2(r.ledger, func(l *ledger) ([]*item, error) { return l.seal(drafts) })
	if err == nil {
		for i := range drafts {
			items[len(items)-len(drafts)+i].put = drafts[i].put
		}
		err = r.recorder.deliver(ctx, items)
	}
	if err == nil && last != nil {
		r.ledger.release(last)
	}
	if errors.Is(err, ErrFenced) || r.ledger.wentAway() {
		err = r.recorder.late(ctx, drafts, err)
	}
	if err != nil {
		return nil, err
	}
	return verdicts(items[len(items)-len(drafts):]), nil
}

// prepare redacts, encrypts and moves fields of drafts, unless that is already done.
func (r *Run) prepare(ctx context.Context, drafts []draft) (err error) {
	for i := range drafts {
		d := &drafts[i]
		if d.body != nil {
			continue
		}
		d.at = r.fleet.cfg.Now()
		if err = r.fleet.prepare(ctx, r.id, d); err != nil {
			return fmt.Errorf("run %s: %w", r.id, err)
		}
	}
	return nil
}

// recorder makes the events of one handle durable. It gets the run's position from the ledger, and tells the ledger
// which events are durable. One goroutine uses it at a time: the holder of the publish slot.
type recorder interface {
	// deliver makes sealed events durable in order. After an error that leaves the handle usable, the events stay
	// pending, so that a repeated call continues with them.
	deliver(ctx context.Context, items []*item) error
	// catchUp folds messages after the last known one, until it has folded the one at upTo.
	catchUp(ctx context.Context, upTo schema.StreamSequence, items []*item) error
	// late offers the outcomes among the drafts of an ended handle to the run's new executor, and returns the error
	// that ended the handle.
	late(ctx context.Context, drafts []draft, ended error) error
}

// publishSlot lets one publish of a run pass at a time; waiting ones pass in order.
type publishSlot struct {
	run  string
	held chan struct{}
	// stopped: the fleet is closed.
	stopped func() bool
}

func (s *publishSlot) enter(ctx context.Context) error {
	select {
	case s.held <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("run %s: %w: waiting for earlier events: %w", s.run, ErrUnavailable, context.Cause(ctx))
	}
	if s.stopped() {
		s.leave()
		return fmt.Errorf("run %s: %w", s.run, ErrStopped)
	}
	return nil
}

func (s *publishSlot) leave() { <-s.held }

// Resolve sends the events of a call without an answer again, until they are durable or the deadline is over. It
// returns nil at once if nothing is unresolved.
func (r *Run) Resolve(ctx context.Context) error {
	if err := r.slot.enter(ctx); err != nil {
		return err
	}
	defer r.slot.leave()
	items, err := with2(r.ledger, (*ledger).unresolved)
	if err != nil || items == nil {
		return err
	}
	return r.recorder.deliver(ctx, items)
}

// Sync folds events that others wrote into the run since the handle last published: inputs, cancellation, settlements.
// It may return [ErrFenced]. Sync may miss the latest events if another server has them; publishing never does.
func (r *Run) Sync(ctx context.Context) error {
	if err := r.slot.enter(ctx); err != nil {
		return err
	}
	defer r.slot.leave()
	if err := r.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.fleet.cfg.PublishTimeout)
	defer cancel()
	last, _ := r.ledger.end()
	return r.recorder.catchUp(ctx, last, nil)
}
