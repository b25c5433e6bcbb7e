package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// appender records runs of a fleet: it sends events, retries them, and reads in the log what happened to a try without
// an answer.
type appender struct {
	*Fleet

	names  schema.Names
	run    string
	ledger *sharedLedger
	// connections counts the connections opened when the log was last seen to hold the run's last message; see steady.
	connections uint64
	// shorter judges reports of a log that is shorter than before.
	shorter eventlog.Shorter
}

func newAppender(f *Fleet, names schema.Names, l *sharedLedger) *appender {
	return &appender{Fleet: f, names: names, run: l.run, ledger: l, connections: f.nc.Stats().Reconnects}
}

func (a *appender) deliver(ctx context.Context, items []*item) error {
	return a.ledger.delivered(items, a.deliverAll(ctx, items))
}

func (a *appender) deliverAll(ctx context.Context, items []*item) error {
	for i, it := range items {
		if it.stream != 0 {
			continue // already durable, or found while an earlier event was resolved
		}
		if i > 0 {
			if err := a.ledger.ended(); err != nil {
				return err // the event before is durable, but an event after it ended the handle
			}
		}
		if err := a.deliverOne(ctx, items[i:]); err != nil {
			return err
		}
	}
	return nil
}

// flight are the events of a failed delivery. A repeated call continues with them.
type flight struct{ items []*item }

// landed is the result of a delivery: the events that a repeated call continues with, what it means for the handle, and
// the error. over: the handle has ended.
func landed(run string, items []*item, err error, over bool) (flight, handleEvent, error) {
	if err == nil || over {
		return flight{}, handleAnswered, err
	}
	unresolved := errors.Is(err, ErrUnresolved)
	if !unresolved && slices.ContainsFunc([]error{ErrRejected, ErrCancelRequested, ErrPaused, ErrPayloadTooLarge, errOutdated, ErrSignalled}, func(kind error) bool { return errors.Is(err, kind) }) {
		return flight{}, handleAnswered, err // certainly not stored, and not valid unchanged
	}
	if !slices.ContainsFunc(items, func(it *item) bool { return it.sent && it.stream == 0 }) {
		return flight{items}, handleAnswered, err
	}
	if !unresolved {
		err = fmt.Errorf("%w: event %s of run %s: %w", ErrUnresolved, items[0].event.ID, run, err)
	}
	return flight{items}, handleUnanswered, err
}

// again returns the events if the drafts are the same, or those of them that are not durable; otherwise nil.
func (f flight) again(drafts []draft) []*item {
	unsure := slices.DeleteFunc(slices.Clone(f.items), func(it *item) bool { return it.stream != 0 })
	if f.items != nil && (sameEvents(f.items, drafts) || sameEvents(unsure, drafts)) {
		return f.items
	}
	return nil
}

// offeredAt is the time stamp of an offer among the events, so that the repeated call is the same event; otherwise at.
func (f flight) offeredAt(handoff, at string) string {
	if len(f.items) != 1 || f.items[0].event.Name() != schema.HandoffOffered {
		return at
	}
	if data, err := schema.ParseData(f.items[0].event); err == nil {
		if d, ok := data.(*schema.HandoffOfferedData); ok && d.HandoffID == handoff {
			return d.CreatedAt
		}
	}
	return at
}

// deliverOne makes the first of items durable. It also gets the others, because an earlier try may have stored them,
// too. While the fleet is full it waits for the daemon to free space, up to Config.FullPatience.
func (a *appender) deliverOne(ctx context.Context, items []*item) error {
	if ctx.Err() != nil {
		return a.expired(ctx, items[0], nil)
	}
	err := a.deliverWithin(ctx, items)
	if refused, ok := err.(*refusedFull); ok { //nolint:errorlint // never wrapped
		// An earlier try without an answer may have stored it.
		return a.awaitSpace(ctx, a.names.EventStream(), refused.answer, func() error { return a.deliverWithin(ctx, items) })
	}
	return err
}

// awaitSpace repeats a try that the server refused because a stream is full, up to Config.FullPatience. When it returns
// a [FullError], the last try stored nothing.
func (f *Fleet) awaitSpace(ctx context.Context, stream string, cause error, try func() error) error {
	full, began := f.fullError(ctx, stream, cause), time.Now()
	wait := pauses()
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.life, func() { cancel(context.Cause(f.life)) })() //nolint:contextcheck // closing the fleet handle ends the wait, too
	for {
		if full.Waited = time.Since(began); full.Waited >= f.cfg.FullPatience {
			return full
		}
		if !wait.Wait(waiting) {
			return fmt.Errorf("%w: %w", full, context.Cause(waiting))
		}
		err := try()
		if _, ok := err.(*refusedFull); !ok { //nolint:errorlint // never wrapped
			return err
		}
	}
}

// fullError reads the quota of a full stream, for the message; the error does not depend on the answer.
func (f *Fleet) fullError(ctx context.Context, stream string, cause error) *FullError {
	full := &FullError{Fleet: f.cfg.Fleet, Stream: stream, Answer: cause.Error()}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	if s, err := f.js.Stream(ctx, stream); err == nil {
		info := s.CachedInfo()
		full.Quota, full.Used = max(info.Config.MaxBytes, 0), int64(info.State.Bytes) //nolint:gosec // a size
	}
	return full
}

// refusedFull says that a stream is full. Only the callers of awaitSpace handle it.
type refusedFull struct{ answer error }

func (e *refusedFull) Error() string { return e.answer.Error() }

// deliverWithin is deliverOne until the deadline of one event, or until the stream is full. It makes at least one try:
// if the caller's context ended while the fleet was full, the wait for space reports that.
func (a *appender) deliverWithin(caller context.Context, items []*item) error {
	// The caller's context is checked between tries, not within one. A try is answered in a moment; to break it off
	// would leave the event in doubt and make the other users of the handle wait for its resolution.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), a.cfg.PublishTimeout)
	defer cancel()
	d := &delivery{appender: a, items: items, caller: caller, wait: pauses()}
	for {
		step, err := d.try(ctx)
		switch {
		case step == stepEnded:
			return err
		case step == stepAtOnce && ctx.Err() == nil && caller.Err() == nil:
		case caller.Err() != nil || !d.wait.Wait(ctx):
			return a.expired(caller, items[0], d.last)
		}
	}
}

// delivery is the delivery of one event: the first of items.
type delivery struct {
	*appender
	items  []*item
	caller context.Context //nolint:containedctx // lives for one delivery
	wait   *pause.Backoff
	// last is the error of the last try.
	last error
}

// step is what follows a try.
type step int

const (
	// stepEnded: the event is durable, or the error says why it is given up.
	stepEnded step = iota
	// stepAtOnce: the event is sent again, behind the events that were folded meanwhile.
	stepAtOnce
	// stepLater: the same is sent again after a pause.
	stepLater
)

// learn keeps the error of a try. If the deadline ended the try, the error of the previous one says more.
func (d *delivery) learn(ctx context.Context, err error) (step, error) {
	if d.last == nil || ctx.Err() == nil {
		d.last = err
	}
	return stepLater, nil
}

// try sends the event once.
func (d *delivery) try(ctx context.Context) (step, error) {
	if err := d.steady(ctx); err != nil {
		if errors.Is(err, errAgain) {
			return d.learn(ctx, err)
		}
		return stepEnded, err
	}
	if it := d.items[0]; !it.put.IsZero() && blob.Late(it.put, time.Now()) {
		return stepEnded, d.undelivered(it, errors.New("its large fields were stored hours ago, and may be collected: repeat the call"))
	}
	sent := time.Now()
	last, _ := d.ledger.end()
	return d.answered(ctx, d.append(ctx, eventlog.Message(d.names, d.items[0].event), last), sent)
}

// answered says what an answer means; see the table of answers in the package's documentation.
func (d *delivery) answered(ctx context.Context, answer eventlog.Appended, sent time.Time) (step, error) {
	it := d.items[0]
	switch answer.Outcome {
	case eventlog.Stored:
		if answer.Duplicate {
			return d.duplicate(ctx, answer.Stream)
		}
		return stepEnded, d.ledger.acknowledged(it, answer.Stream, sent)
	case eventlog.Outdated:
		return d.outdated(ctx, answer)
	case eventlog.Full:
		return stepEnded, &refusedFull{answer.Err}
	case eventlog.Oversized:
		return stepEnded, d.oversized(answer.Err)
	case eventlog.Denied, eventlog.Refused:
		return stepEnded, d.undelivered(it, answer.Err)
	case eventlog.AnswerDenied:
		it.sent = true
		return stepEnded, d.undelivered(it, answer.Err)
	case eventlog.Unanswered:
		it.sent = true
		return d.learn(ctx, answer.Err)
	case eventlog.Unsent:
		if d.nc.IsClosed() {
			return stepEnded, d.undelivered(it, answer.Err)
		}
	case eventlog.InFlight, eventlog.Contended:
		// The other publish is over within one replication; a longer wait only loses the next race, too.
		d.wait.Next = min(d.wait.Next, conflictBackoff)
	default:
	}
	d.last = answer.Err
	return stepLater, nil
}

// duplicate is the answer that the message was stored before, at a stream sequence.
func (d *delivery) duplicate(ctx context.Context, at schema.StreamSequence) (step, error) {
	it := d.items[0]
	if starting := with(d.ledger, func(l *ledger) bool { return l.stage == handleStarting }); starting && !it.sent {
		return stepEnded, d.ledger.die(fmt.Errorf("start of run %s: %w: resume it, or choose another id", d.run, ErrRunExists))
	}
	err := d.confirm(ctx, it, at)
	if errors.Is(err, errElsewhere) {
		done, err2 := d.resolvePurged(ctx, at, d.items)
		if done || err2 != nil && !errors.Is(err2, errAgain) {
			return stepEnded, err2
		}
		err = errors.Join(err, err2)
	}
	if err != nil {
		it.sent = true
		return d.learn(ctx, err)
	}
	return stepEnded, d.ledger.acknowledged(it, at, time.Time{}) // it is not known when the first try was sent
}

// outdated is the answer that the run's last message is another one than expected.
func (d *delivery) outdated(ctx context.Context, answer eventlog.Appended) (step, error) {
	done, err := d.resolve(ctx, answer.Stream, d.items)
	switch {
	case done || err != nil && !errors.Is(err, errAgain):
		return stepEnded, err
	case err != nil:
		return d.learn(ctx, err)
	}
	// The event belongs after the foreign events now. An earlier try can no longer be stored: its sequence is taken.
	d.items[0].sent, d.last = false, answer.Err
	return stepAtOnce, nil
}

// oversized is the error of an event that the server finds too large.
func (d *delivery) oversized(cause error) error {
	it := d.items[0]
	header, body := it.event.Encode()
	whole := schema.Record{Header: header, Body: body}
	err := errors.Join(payloadError(it.event.Name(), whole.Size(), eventLimit, body), cause)
	if it.sent {
		// Another server has a lower size limit than the one that got an earlier try.
		return d.undelivered(it, err)
	}
	return err
}

// expired is the error of a publish past its deadline.
func (a *appender) expired(caller context.Context, it *item, last error) error {
	if last == nil {
		last = context.DeadlineExceeded
	}
	if cause := context.Cause(caller); cause != nil {
		last = fmt.Errorf("%w (%w)", cause, last)
	}
	return a.undelivered(it, last)
}

// undelivered is the error of an event that is given up: it is not durable, or its state is unknown.
func (a *appender) undelivered(it *item, why error) error {
	kind := ErrUnavailable
	if it.sent {
		kind = ErrUnresolved
	}
	if (it.sent || errors.Is(why, nats.ErrNoResponders)) && a.nc.IsConnected() {
		// Servers do not report a full disk or missing replicas to publishers: the answer just does not come.
		why = fmt.Errorf("%w: stream %s does not acknowledge, and the connection is up: a disk of its servers may be full, or too few of its replicas run; see: waymark doctor",
			why, a.names.EventStream())
	}
	return fmt.Errorf("run %s: publishing %s: %w: %w", a.run, it.event.ID, kind, why)
}

// steady checks, once after each lost connection, that the log still has the last message that this handle knows. A
// server restored from an older copy of its store assigns the same stream sequences to other messages. If the run's
// last message then happens to have the number that the handle expects, the server would acknowledge further events,
// and the fold would refuse them. A server cannot be restored without breaking the connection, so no other check is
// needed.
//
// It returns ErrLogRegressed, which ends the handle, and errAgain if no server answered.
func (a *appender) steady(ctx context.Context) error {
	connections := a.nc.Stats().Reconnects
	last, lastID := a.ledger.end()
	if last == 0 || connections == a.connections {
		return nil
	}
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, last)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	// If the message is gone, the server refuses the next event, and the cause is found then.
	if found && rec.Stream == last {
		if got := schema.PositionOf(&rec).ID; got != lastID {
			return a.ledger.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", a.run, ErrLogRegressed, last, lastID, got))
		}
	}
	a.connections = connections
	return nil
}

// errElsewhere: the server called a message a duplicate, but it is not stored where the server says, or is another
// message.
var errElsewhere = errors.New("is used by another message")

// confirm checks that a reported duplicate is the event itself: message ids are shared by all subjects of a stream, so
// another publisher may have used the id before, there or for other content.
func (a *appender) confirm(ctx context.Context, it *item, at schema.StreamSequence) error {
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, at)
	if err != nil {
		return err
	}
	e, _ := schema.Decode(rec.Header, rec.Body) // nil for a message that is no event
	if !found || rec.Stream != at || !it.is(e) {
		return fmt.Errorf("message id %s %w at stream sequence %d", it.event.ID, errElsewhere, at)
	}
	return nil
}

// errAgain says that a resolution has no result yet.
var errAgain = fmt.Errorf("%w: not resolved yet", ErrUnavailable)

// conflictBackoff is the longest wait for a concurrent publish to the run.
const conflictBackoff = 10 * time.Millisecond

// resolve finds out why the run's last message is the one at upTo. done: the first of items is durable. Neither done
// nor an error: it is not in the log, and must be published after the messages folded meanwhile.
func (a *appender) resolve(ctx context.Context, upTo schema.StreamSequence, items []*item) (done bool, err error) {
	last, lastID := a.ledger.end()
	if upTo < last {
		return false, a.shorterLog(ctx, upTo, last, lastID)
	}
	a.shorter.Reaches()
	read := a.catchUp(ctx, upTo, items)
	return with2(a.ledger, func(l *ledger) (bool, error) { return l.resolved(items, last, read) })
}

// shorterLog judges an answer by which the run's last message is older than the last one acknowledged to this handle. A
// server also answers 0 when it cannot read its store: its index of the log distinguishes the two cases.
func (a *appender) shorterLog(ctx context.Context, upTo, last schema.StreamSequence, lastID string) error {
	if upTo == 0 {
		log, err := eventlog.AskLone(ctx, a.js, a.names, a.run)
		if err != nil {
			return errors.Join(errAgain, err)
		}
		if log.Holds && log.Last >= last {
			return fmt.Errorf("%w: the server has run %s in its log up to %d and cannot read it: check that its disk works and has free space", errAgain, a.run, log.Last)
		}
	}
	gone := fmt.Errorf("run %s: %w: %s at stream sequence %d was acknowledged, and the log ends at %d for this run",
		a.run, ErrLogRegressed, lastID, last, upTo)
	replicas, err := a.copies(ctx, a.names)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	if _, believed := a.shorter.Seems(replicas, time.Now()); !believed {
		return errors.Join(errAgain, gone)
	}
	return a.ledger.die(gone)
}

// resolvePurged is resolve for an event that was stored at a sequence and is not there. Sealed events are purged once
// later ones exist, and reading up to those finds the event, or what this run has in its place. If the run ends before, or
// this handle knows another message at that sequence, the message id belongs to another message.
func (a *appender) resolvePurged(ctx context.Context, at schema.StreamSequence, items []*item) (done bool, err error) {
	known, _ := a.ledger.end()
	last, found, err := eventlog.Last(ctx, a.js, a.names, a.run)
	switch {
	case err != nil:
		return false, errors.Join(errAgain, err)
	case !found, at <= known, last.Stream < at:
		return false, errAgain
	}
	return a.resolve(ctx, last.Stream, items)
}

func (a *appender) catchUp(ctx context.Context, upTo schema.StreamSequence, items []*item) error {
	wait := pauses()
	for {
		seen, own := false, error(nil) // own is the error of a message that was read, not of the read
		from, fromID := a.ledger.end()
		atFrom := from == 0
		err := eventlog.Read(ctx, a.js, a.names, a.run, max(from, 1), func(rec schema.Record) error {
			if !atFrom && rec.Stream == from {
				if got := schema.PositionOf(&rec).ID; got != fromID {
					own = a.ledger.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", a.run, ErrLogRegressed, from, fromID, got))
					return own
				}
				atFrom = true
			}
			if !atFrom {
				return errHole
			}
			seen = seen || rec.Stream >= upTo
			own = a.meet(ctx, &rec, items)
			return own
		})
		switch {
		case errors.Is(err, errHole):
			// The acknowledged message is not at its sequence, and not because an older replica answered.
			if err := a.rebuild(ctx, items); !errors.Is(err, errAgain) {
				return err
			}
		case own != nil && !unavailable(own):
			return own
		case err == nil && (seen || upTo == 0):
			return nil
		}
		if !wait.Wait(ctx) {
			return fmt.Errorf("%w: message %d of run %s was not shown: %w", errAgain, upTo, a.run, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// errHole: the read returns later messages but not the one that the handle knows.
var errHole = errors.New("messages are missing from the log")

// meet folds the next message after the last known one, from any writer.
func (a *appender) meet(ctx context.Context, rec *schema.Record, items []*item) error {
	keys, err := a.Keys(ctx)
	if err != nil {
		return fmt.Errorf("run %s: %w", a.run, err)
	}
	return with(a.ledger, func(l *ledger) error { return l.meet(keys, rec, items) })
}
