package publisher

import (
	"context"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// sharedLedger is a handle's [ledger] for concurrent use. After each change it derives from the ledger what others have
// to know: whether work on the run should end, whether the run is active on this handle, and that waits look again.
type sharedLedger struct {
	run string
	// held is called, under mu, when the run becomes active on this handle and when it stops being active. attended:
	// the log still assigns the run to this process.
	held func(in, attended bool, epoch schema.Epoch)
	// halt ends, with the reason as its cause, when work on the run should end.
	halt     context.Context //nolint:containedctx // the life of the handle itself
	haltWith context.CancelCauseFunc

	mu sync.Mutex
	l  ledger
	// inHand is the last value passed to held.
	inHand bool
	// told is the last message that waits know of.
	told schema.StreamSequence
	// changed is closed when the run changes; nil without waits.
	changed chan struct{}
}

func shared(l ledger) *sharedLedger {
	s := &sharedLedger{run: l.run, l: l, held: func(bool, bool, schema.Epoch) {}}
	s.halt, s.haltWith = context.WithCancelCause(context.Background())
	return s
}

// with calls f with the ledger.
func with[T any](s *sharedLedger, f func(*ledger) T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tell()
	return f(&s.l)
}

// with2 is [with] for two results.
func with2[A, B any](s *sharedLedger, f func(*ledger) (A, B)) (A, B) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tell()
	return f(&s.l)
}

// do is [with] without a result.
func (s *sharedLedger) do(f func(*ledger)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tell()
	f(&s.l)
}

// tell derives the effects of a change. Under mu.
func (s *sharedLedger) tell() {
	l := &s.l
	switch {
	case l.over != nil:
		s.haltWith(l.over)
	case l.fold.head.CancelRequested && s.halt.Err() == nil:
		s.haltWith(l.cancelError())
	}
	if l.active != s.inHand {
		s.inHand = l.active
		s.held(l.active, l.fold.attended(), l.writer.Epoch)
	}
	if s.changed != nil && (l.over != nil || l.last != s.told) {
		close(s.changed)
		s.changed = nil
	}
	s.told = l.last
}

// ended returns the error that ended the handle, or nil.
func (s *sharedLedger) ended() error { return with(s, func(l *ledger) error { return l.over }) }

// err returns the error that ended the handle, or [ErrUnresolved], or nil.
func (s *sharedLedger) err() error { return with(s, (*ledger).err) }

// end is the run's last known message.
func (s *sharedLedger) end() (schema.StreamSequence, string) {
	return with2(s, func(l *ledger) (schema.StreamSequence, string) { return l.last, l.lastID })
}

// openTurn is the number of the open turn; 0 outside turns.
func (s *sharedLedger) openTurn() int32 { return with(s, (*ledger).openTurn) }

// call is what the handle knows of a call.
func (s *sharedLedger) call(key schema.CallKey) callView {
	return with(s, func(l *ledger) callView { return l.call(key) })
}

// stage reports whether a call is open, and what this handle did with it.
func (s *sharedLedger) stage(key schema.CallKey) (open bool, stage callStage) {
	return with2(s, func(l *ledger) (bool, callStage) { return openCall(l.fold.head, key) != nil, l.calls.look(key).stage })
}

// die ends the handle because the run is not its own any more, unless it has ended, and returns the error that ended it.
func (s *sharedLedger) die(err error) error {
	return with(s, func(l *ledger) error { return l.die(err) })
}

// release ends the handle because its own executor released the run, so that this process publishes no event after the
// last one. A tool's late result may still be recorded; see [appender.late].
func (s *sharedLedger) release(err error) {
	s.do(func(l *ledger) { _ = l.end(handleRelease, err) }) // an earlier error stays
}

func (s *sharedLedger) wentAway() bool {
	return with(s, func(l *ledger) bool { return l.stage == handleReleased })
}

// acknowledged is [ledger.acknowledged].
func (s *sharedLedger) acknowledged(it *item, stream schema.StreamSequence, sent time.Time) error {
	return with(s, func(l *ledger) error { return l.acknowledged(it, stream, sent) })
}

// delivered is [ledger.delivered].
func (s *sharedLedger) delivered(items []*item, err error) error {
	return with(s, func(l *ledger) error { return l.delivered(items, err) })
}

// check calls done with the fold. If it is not done, changed is closed on the next change of the run. For an ended
// handle check returns the error.
func (s *sharedLedger) check(done func(*localFold) (bool, error)) (ok bool, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok, err = done(&s.l.fold); !ok && err == nil {
		err = s.l.over
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return ok, s.changed, err
}
