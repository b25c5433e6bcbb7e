package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/schema"
)

// deliver makes sealed events durable in order. On an error that leaves the handle usable, the events are kept as
// pending, so that the same call goes on where it broke off.
func (r *Run) deliver(ctx context.Context, items []*item) error {
	err := r.deliverAll(ctx, items)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending, r.unknown = nil, false
	if err == nil || r.dead != nil {
		return err
	}
	for _, it := range items {
		r.unknown = r.unknown || it.sent && it.stream == 0
	}
	switch {
	case errors.Is(err, ErrUnresolved):
	case errors.Is(err, ErrRejected), errors.Is(err, ErrCancelRequested), errors.Is(err, ErrPayloadTooLarge), errors.Is(err, errOutdated):
		r.unknown = false
		return err // certainly not stored, and not lawful as it is
	}
	r.pending = items
	if r.unknown && !errors.Is(err, ErrUnresolved) {
		err = fmt.Errorf("%w: event %s of run %s: %w", ErrUnresolved, items[0].event.ID, r.id, err)
	}
	return err
}

func (r *Run) deliverAll(ctx context.Context, items []*item) error {
	fresh := true
	for _, it := range items {
		fresh = fresh && it.stream == 0 && !it.sent
	}
	if fresh && len(items) >= batchFrom && len(items) <= eventlog.MaxBatch {
		if r.deliverBatch(ctx, items) {
			return nil
		}
	}
	for i, it := range items {
		if it.stream != 0 {
			continue // durable before, or found while an earlier one was resolved
		}
		if i > 0 {
			r.mu.Lock()
			err := r.dead
			r.mu.Unlock()
			if err != nil {
				return err // the one before is durable, and behind it stands what ended the handle
			}
		}
		if err := r.deliverOne(ctx, items[i:]); err != nil {
			return err
		}
	}
	return nil
}

// deliverBatch sends the events as one atomic batch, once. It reports whether they are durable; if not, each must be
// resolved singly.
func (r *Run) deliverBatch(ctx context.Context, items []*item) bool {
	if ctx.Err() != nil || r.steady(ctx) != nil {
		return false
	}
	msgs := make([]*nats.Msg, len(items))
	for i, it := range items {
		msgs[i] = r.message(it)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.fleet.cfg.TryTimeout)
	defer cancel()
	sent := time.Now()
	a := r.fleet.sender.AppendBatch(ctx, msgs, r.last)
	if a.Outcome != eventlog.Stored {
		// None of them can be stored without the first.
		items[0].sent = a.Outcome == eventlog.Unanswered || a.Outcome == eventlog.AnswerDenied
		return false
	}
	first := a.Stream - schema.StreamSequence(len(items)) + 1
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, it := range items {
		r.durable(it, first+schema.StreamSequence(i))
	}
	r.stood = sent
	return true
}

// deliverOne makes the first of items durable; the others are known to it because an earlier try may have stored
// them, too. It waits while the fleet is full and its daemon makes room.
func (r *Run) deliverOne(ctx context.Context, items []*item) error {
	if ctx.Err() != nil {
		return r.expired(ctx, items[0], nil)
	}
	var room quotaWait
	for {
		err := r.deliverWithin(ctx, items)
		refused, ok := err.(*refusedFull) //nolint:errorlint // it is never wrapped
		if !ok {
			return err
		}
		// Not stored by this try, and in doubt still if an earlier one had no answer.
		if err := r.fleet.quotas.await(ctx, &room, r.names.EventStream(), refused.answer); err != nil {
			return err
		}
	}
}

// refusedFull says that the stream is full. It goes no further than to deliverOne.
type refusedFull struct{ answer error }

func (e *refusedFull) Error() string { return e.answer.Error() }

// deliverWithin is deliverOne until the deadline of one event, or until the stream is full. It makes one try at least: a
// caller that ended while the fleet was full is told so by the wait for room. See the table of answers in
// the package's documentation.
func (r *Run) deliverWithin(ctx context.Context, items []*item) error {
	it := items[0]
	caller := ctx
	// The caller's end counts between tries and not within one: it must not leave in doubt what is answered in a
	// moment, for the other users of the handle would have to wait for its resolution.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.fleet.cfg.PublishTimeout)
	defer cancel()
	wait := r.fleet.cfg.pause()
	var lastErr error
	learn := func(err error) {
		// A try that the deadline ended says less than the one before, unless it is a sign of a regressed log.
		if _, sign := errors.AsType[*regression](err); sign || lastErr == nil || ctx.Err() == nil {
			lastErr = err
		}
	}
	for {
		if err := r.steady(ctx); err != nil {
			if !errors.Is(err, errAgain) {
				return err
			}
			if learn(err); caller.Err() != nil || !wait.Wait(ctx) {
				return r.expired(caller, it, lastErr)
			}
			continue
		}
		sent := time.Now()
		a := r.fleet.sender.Append(ctx, r.message(it), r.last)
		switch a.Outcome {
		case eventlog.Stored:
			if a.Duplicate {
				if r.starting && !it.sent {
					return r.die(fmt.Errorf("start of run %s: %w: resume it, or choose another id", r.id, ErrRunExists))
				}
				err := r.confirm(ctx, it, a.Stream)
				if errors.Is(err, errElsewhere) {
					done, err2 := r.resolvePurged(ctx, a.Stream, items)
					if done || err2 != nil && !errors.Is(err2, errAgain) {
						return err2
					}
					err = errors.Join(err, err2)
				}
				if err != nil {
					it.sent = true
					learn(err)
					break
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			dead := r.dead
			r.durable(it, a.Stream)
			if !a.Duplicate {
				r.stood = sent
			}
			if dead != nil {
				return nil // what ended the handle came later, and the next call is told of it
			}
			return r.dead
		case eventlog.Outdated:
			done, err := r.resolve(ctx, a.Stream, items)
			if done || err != nil && !errors.Is(err, errAgain) {
				return err
			}
			if err == nil {
				// Behind what others wrote. An earlier try can no longer be stored: its place is taken.
				it.sent, lastErr = false, a.Err
				if ctx.Err() == nil && caller.Err() == nil {
					continue
				}
			} else {
				learn(err)
			}
		case eventlog.Full:
			return &refusedFull{a.Err}
		case eventlog.Oversized:
			e := &PayloadTooLargeError{Event: it.event.Name(), Total: it.size, Limit: eventLimit}
			e.Field, e.Size = largestField(it.event.Data)
			if it.sent {
				// Another server takes less than the one to which an earlier try went.
				return r.undelivered(it, errors.Join(e, a.Err))
			}
			return errors.Join(e, a.Err)
		case eventlog.Denied, eventlog.Refused:
			return r.undelivered(it, a.Err)
		case eventlog.AnswerDenied:
			it.sent = true
			return r.undelivered(it, a.Err)
		case eventlog.Unsent:
			lastErr = a.Err
			if r.fleet.nc.IsClosed() {
				return r.undelivered(it, a.Err)
			}
		case eventlog.Unanswered:
			it.sent = true
			learn(a.Err)
		case eventlog.InFlight, eventlog.Contended:
			// Over in the time of one replication; waiting longer only loses the next race, too.
			lastErr = a.Err
			wait.Next = min(wait.Next, conflictBackoff)
		default:
			lastErr = a.Err
		}
		if caller.Err() != nil || !wait.Wait(ctx) {
			return r.expired(caller, it, lastErr)
		}
	}
}

// expired is the error of a publish whose deadline is over.
func (r *Run) expired(caller context.Context, it *item, last error) error {
	if last == nil {
		last = context.DeadlineExceeded
	}
	if cause := context.Cause(caller); cause != nil {
		last = fmt.Errorf("%w (%w)", cause, last)
	}
	if regressed, ok := errors.AsType[*regression](last); ok && time.Since(regressed.since) >= eventlog.ShorterTrust {
		return r.die(regressed.err)
	}
	return r.undelivered(it, last)
}

// undelivered is the error of an event that is given up: it is not durable, or not known to be.
func (r *Run) undelivered(it *item, why error) error {
	kind := ErrUnavailable
	if it.sent {
		kind = ErrUnresolved
	}
	if (it.sent || errors.Is(why, nats.ErrNoResponders)) && r.fleet.nc.IsConnected() {
		// No server tells a publisher that its disk is full, or that too few replicas are there: nobody answers.
		why = fmt.Errorf("%w: stream %s does not acknowledge, and the connection is up: a disk of its servers may be full, or too few of its replicas run; see: waymark doctor",
			why, r.names.EventStream())
	}
	return fmt.Errorf("run %s: publishing %s: %w: %w", r.id, it.event.ID, kind, why)
}

// die ends the handle.
func (r *Run) die(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended(err)
}

// errElsewhere: the message that a server called a duplicate is not where it says, or is not that one.
var errElsewhere = errors.New("is used by another message")

// confirm checks that the message a server called a duplicate of it is it: message ids are shared by all subjects of
// a stream, and anybody who may publish there could have used this one before.
func (r *Run) confirm(ctx context.Context, it *item, at schema.StreamSequence) error {
	rec, found, err := eventlog.Next(ctx, r.fleet.js, r.names, r.id, at)
	if err != nil {
		return err
	}
	if !found || rec.Stream != at || schema.PositionOf(&rec).ID != it.event.ID {
		return fmt.Errorf("message id %s %w at stream sequence %d", it.event.ID, errElsewhere, at)
	}
	return nil
}

// errAgain says that a resolution came to no result yet.
var errAgain = errors.New("not resolved yet")

// conflictBackoff is the longest wait for another publish to the run that is under way.
const conflictBackoff = 10 * time.Millisecond

// regression is a sign of a regressed log that a stale leader can give, too: it counts once it has stayed.
type regression struct {
	err   error
	since time.Time
}

func (e *regression) Error() string   { return e.err.Error() }
func (e *regression) Unwrap() []error { return []error{errAgain, e.err} }

// resolve finds out why the run's last message is the one at upTo. done: the first of items is durable. No error and
// not done: it is not in the log, and its place is behind what was folded meanwhile.
func (r *Run) resolve(ctx context.Context, upTo schema.StreamSequence, items []*item) (done bool, err error) {
	if upTo < r.last {
		return false, r.shorterLog(ctx, upTo)
	}
	r.shorter = time.Time{}
	before := r.last
	err = r.catchUp(ctx, upTo, items)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case items[0].stream != 0:
		// It is durable, whatever was met behind it: that it is fenced by now, the next call is told.
		return true, nil
	case err != nil:
		return false, err
	case r.dead != nil:
		return false, r.dead
	}
	if r.last == before {
		return false, errAgain // the server's answer was about a message that is gone again
	}
	return false, r.recheck(items)
}

// shorterLog judges the answer that the run's last message is one before that which was acknowledged to this handle. A server gives 0 in
// this answer, too, when it cannot read its store: its index of the log tells the two apart.
func (r *Run) shorterLog(ctx context.Context, upTo schema.StreamSequence) error {
	if upTo == 0 {
		log, err := eventlog.AskLone(ctx, r.fleet.js, r.names, r.id)
		if err != nil {
			return errors.Join(errAgain, err)
		}
		if log.Holds && log.Last >= r.last {
			return fmt.Errorf("%w: the server has run %s in its log up to %d and cannot read it: see that its disk is sound and has room", errAgain, r.id, log.Last)
		}
	}
	gone := fmt.Errorf("run %s: %w: %s at stream sequence %d was acknowledged, and the log ends at %d for this run",
		r.id, ErrLogRegressed, r.lastID, r.last, upTo)
	replicas, err := r.fleet.copies(ctx, r.names)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	if replicas > 1 {
		if r.shorter.IsZero() {
			r.shorter = time.Now()
		}
		return &regression{gone, r.shorter}
	}
	return r.die(gone)
}

// resolvePurged is resolve for an event that was stored at a place and is not there. What is sealed is purged once others have written behind
// it: with them it is found. When nobody has, or the place is one that this handle knows, its message id is another message's.
func (r *Run) resolvePurged(ctx context.Context, at schema.StreamSequence, items []*item) (done bool, err error) {
	last, found, err := eventlog.Last(ctx, r.fleet.js, r.names, r.id)
	switch {
	case err != nil:
		return false, errors.Join(errAgain, err)
	case !found, at <= r.last, last.Stream <= at:
		return false, errAgain
	}
	return r.resolve(ctx, last.Stream, items)
}

// recheck asks the fold again about events that are to stand behind what others wrote. Under r.mu.
func (r *Run) recheck(items []*item) error {
	next := r.head.Clone()
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		it.read()
		if it.verdict = it.foretell(&next); it.verdict.Kind == schema.Rejected {
			return fmt.Errorf("run %s: %w", r.id, rejectedError(it))
		}
	}
	return nil
}

// catchUp folds what stands behind the last message known, until the one at upTo was seen.
func (r *Run) catchUp(ctx context.Context, upTo schema.StreamSequence, items []*item) error {
	wait := r.fleet.cfg.pause()
	for {
		seen := false
		from, fromID := r.last, r.lastID
		atFrom := from == 0
		err := eventlog.Read(ctx, r.fleet.js, r.names, r.id, max(from, 1), func(rec schema.Record) error {
			if !atFrom && rec.Stream == from {
				if got := schema.PositionOf(&rec).ID; got != fromID {
					return r.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", r.id, ErrLogRegressed, from, fromID, got))
				}
				atFrom = true
			}
			if !atFrom {
				return errHole
			}
			seen = seen || rec.Stream >= upTo
			return r.meet(ctx, &rec, items)
		})
		switch {
		case errors.Is(err, errHole):
			// What was acknowledged is not where it was, and not because an older replica answered.
			if err := r.rebuild(ctx, items); !errors.Is(err, errAgain) {
				return err
			}
		case err != nil && (errors.Is(err, eventlog.ErrNoAnswer) || errors.Is(err, eventlog.ErrNoStream) || errors.Is(err, keyring.ErrRead)):
		case err != nil:
			return err
		case seen || upTo == 0:
			return nil
		}
		if !wait.Wait(ctx) {
			return fmt.Errorf("%w: message %d of run %s was not shown: %w", errAgain, upTo, r.id, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// errHole: the read shows later messages but not the one that the handle knows.
var errHole = errors.New("messages are missing from the log")

// meet folds one message behind the last one known, whoever wrote it.
func (r *Run) meet(ctx context.Context, rec *schema.Record, items []*item) error {
	keys, err := r.fleet.keys.Keys(ctx)
	if err != nil {
		return fmt.Errorf("run %s: %w", r.id, err)
	}
	var control func()
	err = r.meetLocked(keys, rec, items, &control)
	if control != nil {
		control()
	}
	return err
}

func (r *Run) meetLocked(keys *schema.Keys, rec *schema.Record, items []*item, control *func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.Stream <= r.last {
		return nil
	}
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		e = nil
	}
	if mark, ok := schema.PlacedOf(e); ok {
		if r.starting {
			return fmt.Errorf("start of run %s: %w", r.id, &movedError{mark.Shard})
		}
		r.apply(keys, rec)
		r.last, r.lastID = rec.Stream, schema.RecordID(rec, e)
		return nil
	}
	if schema.ErasedMark(e) {
		if r.starting {
			return r.ended(fmt.Errorf("start of run %s: %w: %w: choose another id", r.id, ErrRunExists, ErrRunErased))
		}
		return r.ended(fmt.Errorf("run %s: %w: stop working on it", r.id, ErrRunErased))
	}
	// The same start, by an executor of the same name at the same time, is another's all the same unless this handle
	// sent it before.
	if r.starting && (e == nil || len(items) == 0 || e.ID != items[0].event.ID || !items[0].sent) {
		return r.ended(fmt.Errorf("start of run %s: %w: resume it, or choose another id", r.id, ErrRunExists))
	}
	if e != nil {
		for _, it := range items {
			if it.stream == 0 && e.ID == it.event.ID && e.Sequence == r.writer.Last+1 {
				r.durable(it, rec.Stream)
				return nil
			}
		}
		switch {
		case e.Epoch > r.writer.Epoch && !r.forged(keys, rec):
			return r.ended(fmt.Errorf("run %s: %w: %s holds epoch %d, this handle has %d: stop working on the run", r.id, ErrFenced, holder(e), e.Epoch, r.writer.Epoch))
		case e.Epoch == r.writer.Epoch && e.Sequence > r.writer.Last:
			return r.ended(fmt.Errorf("run %s: %w: %s at stream sequence %d is not of this handle", r.id, ErrForked, e.ID, rec.Stream))
		}
	}
	v := r.apply(keys, rec)
	r.last, r.lastID = rec.Stream, schema.RecordID(rec, e)
	if v.Kind == schema.Rejected && v.Reason == schema.ReasonForked && e.Epoch == r.writer.Epoch {
		return r.ended(fmt.Errorf("run %s: %w: %s at stream sequence %d: %s", r.id, ErrForked, e.ID, rec.Stream, v.Detail))
	}
	if r.pipe == nil && outdates(v, items) {
		return fmt.Errorf("run %s: %w: the late result of call %s of turn %d came first", r.id, errOutdated, v.Call.ToolCallID, v.Call.Turn)
	}
	if v.Kind != schema.Applied {
		return nil
	}
	r.calls.note(v, true)
	if r.pipe != nil {
		plan := *rec
		plan.Stream = 0 // the plan has no places
		r.pipe.head.Apply(keys, &plan)
	}
	if r.onControl != nil {
		*control = func() { r.onControl(v.Event, v.Data) }
	}
	r.wake()
	// Work that has not begun must not begin behind a request to stop. The next try may: then the executor knows.
	if _, cancel := v.Data.(*schema.RunCancelRequestedData); cancel && r.head.CancelRequested {
		r.haltWith(r.cancelError())
		if r.untold = r.pipe == nil; r.untold && len(items) > 0 && beginsWork(items) {
			r.untold = false
			return fmt.Errorf("%w: %s was not published", r.cancelError(), items[0].event.Name())
		}
	}
	return nil
}

// forged reports whether the fleet's keys tell that nobody took the run over although an event has a later epoch: no daemon signed the
// takeover, or it is an executor's event that no takeover stands before.
func (r *Run) forged(keys *schema.Keys, rec *schema.Record) bool {
	if !keys.Any() {
		return false
	}
	head := r.head.Clone()
	v := head.Apply(keys, rec)
	return v.Reason == schema.ReasonUnsigned || v.Reason == schema.ReasonEpochAhead && !v.Event.IsControl()
}

// holder names the executor of a higher epoch by what it or its takeover says.
func holder(e *schema.Event) string {
	if data, err := schema.ParseData(e); err == nil {
		if resumed, ok := data.(*schema.RunResumedData); ok {
			return resumed.Executor
		}
	}
	if _, executor, ok := schema.ParseSource(e.Source); ok {
		return executor
	}
	return "somebody"
}

// beginsWork reports whether an event that is not in the log yet begins something new.
func beginsWork(items []*item) bool {
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		switch d := it.data.(type) {
		case *schema.TurnAnsweredData, *schema.ToolCalledData, *schema.PhaseStartedData:
			return true
		case *schema.TurnStartedData:
			if d.Purpose != schema.PurposeRecovery {
				return true
			}
		case *schema.ToolSettledData:
			if d.How == schema.SettledRerun {
				return true
			}
		}
	}
	return false
}

// Resolve sends the events of a call that had no answer again, until they are durable or the deadline is over. It
// returns nil at once when nothing is unresolved.
func (r *Run) Resolve(ctx context.Context) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	r.mu.Lock()
	items, unknown, dead := r.pending, r.unknown, r.dead
	r.mu.Unlock()
	if dead != nil || !unknown {
		return dead
	}
	return r.deliver(ctx, items)
}

// Sync folds what others wrote into the run since the handle last published: inputs, cancellation, settlements. It
// may return [ErrFenced]. Between servers it may be a moment late; publishing never is.
func (r *Run) Sync(ctx context.Context) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	r.mu.Lock()
	busy, err := r.pipe != nil && !r.pipe.idle(), r.errLocked()
	r.mu.Unlock()
	if err != nil || busy {
		return err // a pipeline meets them as it sends
	}
	ctx, cancel := context.WithTimeout(ctx, r.fleet.cfg.PublishTimeout)
	defer cancel()
	return r.catchUp(ctx, r.last, nil)
}
