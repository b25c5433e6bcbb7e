package publisher

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// ledger is what a handle knows of its run: the fold of the durable events, the run's position in the log, what this
// handle did with each call, and what may still be published. It is a plain value, without lock, clock, I/O or
// callbacks: [sharedLedger] guards it, and tells others of its changes. ledgerstates.go has its tables.
type ledger struct {
	run   string
	calls callBook
	// policy decides which calls may begin and have a result.
	policy callPolicy
	// contract is this process's addition to the run's own.
	contract Contract
	fold     localFold
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
	// version returns the version of an agent in this program; nil if it is unknown.
	version func(agent string) *schema.Version
	// active: the handle's own events say that it drives the run.
	active bool
}

func newLedger(writer schema.Writer, open func(*schema.Event, schema.Data)) ledger {
	return ledger{
		run: writer.Run, calls: callBook{calls: make(map[schema.CallKey]*knownCall)}, fold: newFold(writer.Fleet, writer.Run, open),
		writer: writer, stage: handleUsable, version: func(string) *schema.Version { return nil },
	}
}

// newVersion returns the version of the run's agent if it is another one than the recorded one; nil if not.
func (l *ledger) newVersion() *schema.Version {
	recorded, _ := l.fold.state.Version()
	if is := l.version(l.fold.head.Agent); is != nil && !is.Equal(recorded) {
		return is
	}
	return nil
}

// start sets the ledger to the state before the first event of a run. base is the state of the run that it is forked
// from, or nil.
func (l *ledger) start(base *schema.State) {
	l.stage, l.writer.Epoch = handleStarting, 1
	if base != nil {
		l.fold.state.Graft(base.Clone())
	}
}

// takeUp sets the ledger to the result of a takeover, of which this handle learns now.
func (l *ledger) takeUp(state *schema.State, reply *schema.RecoverReply, now time.Time) error {
	if reply.Epoch == 0 || reply.NextSequence == 0 || reply.LastStream == 0 {
		return fmt.Errorf("resume of run %s: %w: epoch %d, next sequence %d, last stream sequence %d", l.run, ErrBadAnswer,
			reply.Epoch, reply.NextSequence, reply.LastStream)
	}
	head := &state.Head
	if head.Epoch != reply.Epoch || head.Sequence != reply.NextSequence-1 || head.Position.Stream != reply.LastStream {
		return fmt.Errorf("resume of run %s: %w: the answer has epoch %d, next sequence %d, last stream sequence %d; the events have %d, %d, %d", l.run,
			ErrBadAnswer, reply.Epoch, reply.NextSequence, reply.LastStream, head.Epoch, head.Sequence+1, head.Position.Stream)
	}
	state.Open(l.fold.open)
	l.fold.state, l.fold.head = state, head
	l.writer.Epoch, l.writer.Last = reply.Epoch, reply.NextSequence-1
	l.last, l.lastID = reply.LastStream, head.Position.ID
	l.calls.takeOver(state, now)
	l.cancelUnseen, l.active = head.CancelRequested, l.fold.attended()
	return nil
}

// err returns the error that ended the handle, or [ErrUnresolved], or nil.
func (l *ledger) err() error {
	if l.stage == handleUnresolved {
		return fmt.Errorf("%w: event %s of run %s; repeat the call, call Resolve, or resume the run", ErrUnresolved, l.flight.items[0].event.ID, l.run)
	}
	return l.over
}

// cancelError is the error after an operator's request to cancel the run.
func (l *ledger) cancelError() error { return fmt.Errorf("run %s: %w", l.run, ErrCancelRequested) }

// paused returns [ErrPaused] while a pause is in the log of this epoch.
func (l *ledger) paused() error {
	if !l.fold.head.Paused {
		return nil
	}
	return fmt.Errorf("run %s: %w: nothing begins before its next takeover; see: waymark pause ls", l.run, ErrPaused)
}

// checkLive returns the error that ended the handle, [ErrPaused], and once a request to cancel.
func (l *ledger) checkLive() error {
	if err := l.err(); err != nil {
		return err
	}
	if l.cancelUnseen && l.fold.head.CancelRequested {
		l.cancelUnseen = false
		return l.cancelError()
	}
	return l.paused()
}

// cancelSeen reports whether the run is to be cancelled: the caller knows it from now on.
func (l *ledger) cancelSeen() bool {
	l.cancelUnseen = l.cancelUnseen && !l.fold.head.CancelRequested
	return l.fold.head.CancelRequested
}

// provenFor returns for how long the epoch counts as this handle's own: it was at most age ago; 0 or less if that is over.
// A duplicate acknowledgement, or an event found in the log, only proves that the event is stored: another executor may
// have taken the run over since.
func (l *ledger) provenFor(age time.Duration, now time.Time) time.Duration {
	if l.provenAt.IsZero() {
		return 0
	}
	// Only the wall clock shows that the machine was suspended.
	return age - max(now.Sub(l.provenAt), now.Round(0).Sub(l.provenAt.Round(0)))
}

// openTurn is the number of the open turn; 0 outside turns.
func (l *ledger) openTurn() int32 {
	if head := l.fold.head; head.TurnOpen {
		return head.Turn
	}
	return 0
}

// seal returns the pending events if the drafts are the same, otherwise newly sealed ones.
func (l *ledger) seal(drafts []draft) ([]*item, error) {
	if l.over != nil {
		return nil, l.over
	}
	drafts, err := l.opened(drafts)
	if err != nil {
		return nil, err
	}
	if again := l.flight.again(drafts); again != nil {
		return again, nil
	}
	if err := l.err(); err != nil {
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
	return items, l.held(items)
}

// durable folds an event that is in the log at stream. sent is when the try was sent that the server acknowledged as
// new. It is zero for an event found in the log, which does not prove the epoch.
func (l *ledger) durable(it *item, stream schema.StreamSequence, sent time.Time) {
	it.stream, l.provenAt = stream, sent
	it.verdict = l.fold.take(it, stream)
	if err := l.writer.Commit(it.event); err != nil {
		// Items are sealed after the writer and committed in order: this cannot happen.
		_ = l.die(fmt.Errorf("run %s: %w: %w", l.run, ErrForked, err))
	}
	l.last, l.lastID = max(l.last, stream), it.event.ID
	l.stage, l.active = l.stage.after(handleStored), l.over == nil && l.fold.attended()
	l.calls.note(it.verdict, false)
}

// acknowledged is durable for a delivered event. It returns the error if this event ended the handle. An error from
// before belongs to a later event of the log, and the next call returns it.
func (l *ledger) acknowledged(it *item, stream schema.StreamSequence, sent time.Time) error {
	usable := l.over == nil
	if l.durable(it, stream, sent); usable {
		return l.over
	}
	return nil
}

// delivered records the result of a delivery, and returns its error. After an error that leaves the handle usable, a
// repeated call continues with the same events.
func (l *ledger) delivered(items []*item, err error) error {
	var on handleEvent
	l.flight, on, err = landed(l.run, items, err, l.over != nil)
	l.stage = l.stage.after(on)
	return err
}

// unresolved are the events of a call without an answer; nil if there are none.
func (l *ledger) unresolved() ([]*item, error) {
	if l.stage != handleUnresolved {
		return nil, l.over
	}
	return l.flight.items, nil
}

// resolved decides, after a read of the log from before on, whether the first of items can be sent again. done: the log
// has it.
func (l *ledger) resolved(items []*item, before schema.StreamSequence, read error) (done bool, err error) {
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

// die ends the handle because the run is not its own any more, unless it has ended, and returns the error that ended it.
func (l *ledger) die(err error) error { return l.end(handleGone, err) }

// end ends the handle, unless it has ended.
func (l *ledger) end(on handleEvent, err error) error {
	if l.stage = l.stage.after(on); l.over == nil {
		l.over, l.active = err, false
	}
	return l.over
}

// call is what the handle knows of a call. A decision that does not apply in this process is left out.
func (l *ledger) call(key schema.CallKey) callView {
	v := l.calls.view(l.fold.state, key)
	if v.decision != nil && !l.policy.counts(v.decision) {
		v.decision = nil
	}
	return v
}

// meet folds the next message after the last known one, from any writer. items are the events that this handle is
// delivering.
func (l *ledger) meet(keys *schema.Keys, rec *schema.Record, items []*item) error {
	if rec.Stream <= l.last {
		return nil
	}
	var e *schema.Event // nil for a message that is no event
	if decoded, err := schema.Decode(rec.Header, rec.Body); err == nil {
		e = decoded
	}
	if err := l.fencedAt(keys, rec, e, items); err != nil {
		return err
	}
	for _, it := range items {
		if it.stream == 0 && it.is(e) && e.Sequence == l.writer.Last+1 {
			l.durable(it, rec.Stream, time.Time{})
			return nil
		}
	}
	if err := l.fencedBy(keys, rec, e); err != nil {
		return err
	}
	v := l.fold.state.Apply(keys, rec)
	l.last, l.lastID = rec.Stream, schema.RecordID(rec, e)
	if v.Kind == schema.Rejected && v.Reason == schema.ReasonForked && e.Epoch == l.writer.Epoch {
		return l.die(fmt.Errorf("run %s: %w: %s at stream sequence %d: %s", l.run, ErrForked, e.ID, rec.Stream, v.Detail))
	}
	if outdates(v, items) {
		return fmt.Errorf("run %s: %w: a late result of call %s of turn %d was recorded first", l.run, errOutdated, v.Call.ToolCallID, v.Call.Turn)
	}
	if v.Kind != schema.Applied {
		return nil
	}
	l.calls.note(v, true)
	switch v.Data.(type) {
	case *schema.RunCancelRequestedData:
		l.cancelUnseen = l.fold.head.CancelRequested
	case *schema.SignalSentData:
		l.signalUnseen = true
	case *schema.RunPausedData:
	default:
		return nil
	}
	return l.held(items)
}

// fencedAt returns the error of a message that ends a handle wherever it stands: the run's tombstone, and any message in
// place of the first event of a start.
func (l *ledger) fencedAt(keys *schema.Keys, rec *schema.Record, e *schema.Event, items []*item) error {
	starting := l.stage == handleStarting
	switch erased := schema.ErasedMark(e) && schema.Removes(keys, rec) != nil; {
	case erased && starting:
		return l.die(fmt.Errorf("start of run %s: %w: %w: choose another id", l.run, ErrRunExists, ErrRunErased))
	case erased:
		return l.die(fmt.Errorf("run %s: %w: stop working on it", l.run, ErrRunErased))
	// An identical start, by an executor of the same name at the same time, is another process's unless this handle
	// sent it before.
	case starting && (e == nil || len(items) == 0 || e.ID != items[0].event.ID || !items[0].sent):
		return l.die(fmt.Errorf("start of run %s: %w: resume it, or choose another id", l.run, ErrRunExists))
	}
	return nil
}

// fencedBy returns the error of an event of another writer that shows that the run is not this handle's any more.
func (l *ledger) fencedBy(keys *schema.Keys, rec *schema.Record, e *schema.Event) error {
	switch {
	case e == nil:
	case e.Epoch > l.writer.Epoch && !l.fold.forged(keys, rec):
		return l.die(fmt.Errorf("run %s: %w: %s holds epoch %d, this handle has %d: stop working on the run", l.run, ErrFenced, holder(e), e.Epoch, l.writer.Epoch))
	case e.Epoch == l.writer.Epoch && e.Sequence > l.writer.Last:
		return l.die(fmt.Errorf("run %s: %w: %s at stream sequence %d is not from this handle", l.run, ErrForked, e.ID, rec.Stream))
	}
	return nil
}

// held returns an error if the run's cancellation, a pause or a signal prevents the publication of items. New work must not begin
// after a request to cancel that the executor does not know of: this error tells it, once, so its next try may.
func (l *ledger) held(items []*item) error {
	switch {
	case l.cancelUnseen && l.fold.head.CancelRequested && len(items) > 0 && beginsWork(items):
		l.cancelUnseen = false
		return fmt.Errorf("%w: %s was not published", l.cancelError(), items[0].event.Name())
	case l.fold.head.Paused && beginsEffect(items):
		return fmt.Errorf("%w: %s was not published", l.paused(), items[0].event.Name())
	case l.guarded(items):
		return fmt.Errorf("run %s: %w", l.run, ErrSignalled)
	}
	return nil
}

// guarded reports whether a signal prevents publication of the first of items.
func (l *ledger) guarded(items []*item) bool {
	if len(items) == 0 || items[0].stream != 0 {
		return false
	}
	switch items[0].unless {
	case unlessOpen:
		return len(l.fold.head.Signals) > 0
	case unlessUnseen:
		return l.signalUnseen
	}
	return false
}
