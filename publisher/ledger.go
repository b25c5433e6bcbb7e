package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// ledger is a handle's record of its run: the fold of the durable events, the run's position in the log, what this
// handle did with each call (callstages.go), and what may still be published (handlestages.go). It does no I/O: the
// appender passes it the log's events. It is safe for concurrent use.
type ledger struct {
	run   string
	calls *callBook
	// onControl is [RunSpec].OnControl.
	onControl func(*schema.Event, schema.Data)
	// policy decides which calls may begin and have a result.
	policy callPolicy
	// contract is this process's addition to the run's own; under mu.
	contract Contract
	// held is called, under mu, when the run becomes active on this handle and when it stops being active. attended:
	// the log still assigns the run to this process.
	held func(in, attended bool, epoch schema.Epoch)
	// halt ends, with the reason as its cause, when work on the run should end.
	halt     context.Context //nolint:containedctx // the life of the handle itself
	haltWith context.CancelCauseFunc

	mu   sync.Mutex
	fold localFold
	// writer is the position after the last durable event; last and lastID are the run's last message, of any writer.
	writer schema.Writer
	last   schema.StreamSequence
	lastID string
	// provenAt is when the try was sent that the server acknowledged as new for the latest event: at that time the epoch
	// was this handle's. Zero if that is unknown for the latest event.
	provenAt time.Time
	// stage says what may be published, and over why nothing may; nil before.
	stage handleStage
	over  error
	// flight are the events of a failed delivery.
	flight flight
	// cancelUnseen: a request to cancel was folded, and no call has returned it yet.
	cancelUnseen bool
	// signalUnseen: a signal was folded, and the work has not looked for signals since.
	signalUnseen bool
	// inHand is the last value passed to held.
	inHand bool
	// changed is closed when the run changes; nil without waiters.
	changed chan struct{}
}

func newLedger(writer schema.Writer, open func(*schema.Event, schema.Data)) *ledger {
	l := &ledger{
		run: writer.Run, calls: newCallBook(), fold: newFold(writer.Fleet, writer.Run, open), writer: writer,
		held: func(bool, bool, schema.Epoch) {},
	}
	l.stage = handleUsable
	l.halt, l.haltWith = context.WithCancelCause(context.Background())
	return l
}

// start sets the ledger to the state before the first event of a run. base is the state of the run that it is forked
// from, or nil.
func (l *ledger) start(base *schema.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stage, l.writer.Epoch = handleStarting, 1
	if base != nil {
		l.fold.state.Graft(base.Clone())
	}
}

// takeUp sets the ledger to the result of a takeover.
func (l *ledger) takeUp(state *schema.State, reply *schema.RecoverReply) error {
	if reply.Epoch == 0 || reply.NextSequence == 0 || reply.LastStream == 0 {
		return fmt.Errorf("resume of run %s: %w: epoch %d, next sequence %d, last stream sequence %d", l.run, ErrBadAnswer,
			reply.Epoch, reply.NextSequence, reply.LastStream)
	}
	head := &state.Head
	if head.Epoch != reply.Epoch || head.Sequence != reply.NextSequence-1 || head.Position.Stream != reply.LastStream {
		return fmt.Errorf("resume of run %s: %w: the answer has epoch %d, next sequence %d, last stream sequence %d; the events have %d, %d, %d", l.run,
			ErrBadAnswer, reply.Epoch, reply.NextSequence, reply.LastStream, head.Epoch, head.Sequence+1, head.Position.Stream)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	state.Open(l.fold.open)
	l.fold.state, l.fold.head = state, head
	l.writer.Epoch, l.writer.Last = reply.Epoch, reply.NextSequence-1
	l.last, l.lastID = reply.LastStream, head.Position.ID
	l.calls.takeOver(state)
	l.keep()
	if head.CancelRequested {
		l.haltWith(l.cancelError())
		l.cancelUnseen = true
	}
	return nil
}

func (l *ledger) end() (schema.StreamSequence, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.lastID
}

// standing is the run's position, for an event that is not published through the ledger.
func (l *ledger) standing() (schema.Head, schema.StreamSequence, schema.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fold.head.Clone(), l.last, l.writer
}

// foreseen is a copy of the state as it will be once the outcomes of calls are durable.
func (l *ledger) foreseen(outcomes []*outcomeAhead) (*schema.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, writer := l.fold.state.Clone(), l.writer
	fold := localFold{run: l.run, state: state, head: &state.Head}
	for _, o := range outcomes {
		if openCall(fold.head, o.key) == nil {
			continue // already durable
		}
		it := o.draft.seal(&writer, writer.Last+1)
		if it.verdict = fold.applyItem(it, 0); it.verdict.Kind == schema.Rejected {
			return nil, fmt.Errorf("run %s: %w", l.run, rejectedError(it))
		}
		if err := writer.Commit(it.event); err != nil {
			return nil, fmt.Errorf("run %s: %w", l.run, err)
		}
	}
	return state, nil
}

func (l *ledger) isStarting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage == handleStarting
}

// ended returns the error that ended the handle, or nil.
func (l *ledger) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// err returns the error that ended the handle, or [ErrUnresolved], or nil.
func (l *ledger) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errLocked()
}

func (l *ledger) errLocked() error {
	if l.stage == handleUnresolved {
		return l.unresolved()
	}
	return l.over
}

func (l *ledger) unresolved() error {
	return fmt.Errorf("%w: event %s of run %s; repeat the call, call Resolve, or resume the run", ErrUnresolved, l.flight.items[0].event.ID, l.run)
}

// cancelError is the error after an operator's request to cancel the run.
func (l *ledger) cancelError() error { return fmt.Errorf("run %s: %w", l.run, ErrCancelRequested) }

// checkLive returns the error that ended the handle, and once a request to cancel.
func (l *ledger) checkLive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.errLocked(); err != nil {
		return err
	}
	if l.cancelUnseen && l.fold.head.CancelRequested {
		l.cancelUnseen = false
		return l.cancelError()
	}
	return nil
}

// proven reports whether the epoch was this handle's own at most age ago. A duplicate acknowledgement, or an event
// found in the log, only proves that the event is stored: another executor may have taken the run over since.
func (l *ledger) proven(age time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return false, l.over
	}
	// Only the wall clock shows that the machine was suspended.
	return !l.provenAt.IsZero() && time.Since(l.provenAt) < age && time.Now().Round(0).Sub(l.provenAt.Round(0)) < age, nil
}

// callRoom is the number of calls that fit into the turn.
func (l *ledger) callRoom(turn int32, calls []schema.RequestedCall) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fold.head.CallRoom(turn, calls)
}

// openTurn is the number of the open turn; 0 outside turns.
func (l *ledger) openTurn() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if head := l.fold.head; head.TurnOpen {
		return head.Turn
	}
	return 0
}

// resumeOrSeal returns the pending events if the drafts are the same, otherwise newly sealed ones.
func (l *ledger) resumeOrSeal(drafts []draft) ([]*item, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return nil, l.over
	}
	drafts, err := opened(drafts, l.fold.head)
	if err != nil {
		return nil, err
	}
	if again := l.flight.again(drafts); again != nil {
		return again, nil
	}
	if err := l.errLocked(); err != nil {
		return nil, err
	}
	l.flight = flight{}
	if err := l.gate(drafts, l.fold.head); err != nil {
		return nil, err
	}
	items, _, err := l.fold.seal(drafts, l.fold.head, &l.writer)
	if err != nil {
		return nil, err
	}
	if err := l.cancelled(items); err != nil {
		return nil, err
	}
	if l.guarded(items) {
		return nil, l.signalledError()
	}
	return items, nil
}

// durableLocked folds an event that is in the log at stream. sent is when the try was sent that the server acknowledged
// as new. It is zero for an event found in the log, which does not prove the epoch.
func (l *ledger) durableLocked(it *item, stream schema.StreamSequence, sent time.Time) {
	it.stream, l.provenAt = stream, sent
	it.verdict = l.fold.take(it, stream)
	if err := l.writer.Commit(it.event); err != nil {
		// Items are sealed after the writer and committed in order: this cannot happen.
		_ = l.dieLocked(fmt.Errorf("run %s: %w: %w", l.run, ErrForked, err))
	}
	l.last, l.lastID = max(l.last, stream), it.event.ID
	l.stage = l.stage.after(handleStored)
	l.calls.note(it.verdict, false)
	l.keep()
	l.wake()
}

// acknowledged is durable for a delivered event. It returns the error if this event ended the handle. An error from
// before belongs to a later event of the log, and the next call returns it.
func (l *ledger) acknowledged(it *item, stream schema.StreamSequence, sent time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.over
	l.durableLocked(it, stream, sent)
	if before != nil {
		return nil
	}
	return l.over
}

// delivered records the result of a delivery, and returns its error. After an error that leaves the handle usable, a
// repeated call continues with the same events.
func (l *ledger) delivered(items []*item, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var on handleEvent
	l.flight, on, err = landed(l.run, items, err, l.over != nil)
	l.stage = l.stage.after(on)
	return err
}

// unresolvedItems are the events of a call without an answer; nil if there are none.
func (l *ledger) unresolvedItems() ([]*item, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != handleUnresolved {
		return nil, l.over
	}
	return l.flight.items, nil
}

// offeredAt is the time stamp of an offer. It is the one of an earlier try without an answer, so that the repeated call
// is the same event, otherwise at.
func (l *ledger) offeredAt(handoff, at string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != handleUnresolved {
		return at
	}
	return l.flight.offeredAt(handoff, at)
}

// resolved decides, after a read of the log from before on, whether the first of items can be sent again. done: the log
// has it.
func (l *ledger) resolved(items []*item, before schema.StreamSequence, read error) (done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case items[0].stream != 0:
		// The event is durable, whatever follows it in the log. If the handle is fenced by now, the next call returns
		// that.
		return true, nil
	case read != nil:
		return false, read
	case l.over != nil:
		return false, l.over
	}
	if l.last == before {
		return false, errAgain // the message that the server reported is gone again
	}
	return false, l.fold.recheck(items)
}

// keep calls held when the handle's own events make the run active or end that. Under mu.
func (l *ledger) keep() {
	attended := l.fold.attended()
	if held := l.over == nil && attended; held != l.inHand {
		l.inHand = held
		l.held(held, attended, l.writer.Epoch)
	}
}

// die ends the handle, unless it has ended, and returns the error that ended it.
func (l *ledger) die(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dieLocked(err)
}

func (l *ledger) dieLocked(err error) error { return l.endLocked(handleGone, err) }

// endLocked ends the handle, unless it has ended.
func (l *ledger) endLocked(on handleEvent, err error) error {
	if l.stage = l.stage.after(on); l.over == nil {
		l.over = err
		l.haltWith(err)
		l.keep()
		l.wake()
	}
	return l.over
}

// release ends the handle because its own executor released the run, so that this process publishes no event after the
// last one. A tool's late result may still be recorded; see late.
func (l *ledger) release(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.endLocked(handleRelease, err) // an earlier error stays
}

func (l *ledger) wentAway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stage == handleReleased
}

// wake wakes all goroutines that wait for a change of the run. Under mu.
func (l *ledger) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// check calls done with the fold. If it is not done, changed is closed on the next change of the run. For an ended
// handle check returns the error.
func (l *ledger) check(done func(*localFold) (bool, error)) (ok bool, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok, err = done(&l.fold); !ok && err == nil {
		err = l.over
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return ok, l.changed, err
}

func (l *ledger) call(key schema.CallKey) callView {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls.view(l.fold.state, key)
}
