package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/publisher/internal/send"
	"github.com/waymarkio/waymark/schema"
)

// appender records runs of a fleet: it sends events, retries them, and reads in the log what happened to a try without
// an answer.
type appender struct {
	cfg    *Config
	nc     *nats.Conn
	js     jetstream.JetStream
	sender *send.Sender
	quotas *quotas
	keys   *keyring.Ring
	// replicas of a log; events of a run as the daemon keeps them.
	replicas func(ctx context.Context, names schema.Names) (int, error)
	events   func(ctx context.Context, run string, yield func(schema.Record) error) error

	names   schema.Names
	run     string
	subject string
	ledger  *ledger
	// connections counts the connections opened when the log was last seen to hold the run's last message; see steady.
	connections uint64
	// shorter is the time since when a replicated stream has reported a log shorter than before.
	shorter time.Time
}

func newAppender(f *Fleet, names schema.Names, l *ledger) *appender {
	return &appender{
		cfg: &f.cfg, nc: f.nc, js: f.js, sender: &f.sender, quotas: &f.quotas, keys: f.keys, replicas: f.copies, events: f.Events,
		names: names, run: l.run, subject: names.EventSubject(l.run), ledger: l, connections: f.nc.Stats().Reconnects,
	}
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

// deliverOne makes the first of items durable. It also gets the others, because an earlier try may have stored them,
// too. While the fleet is full it waits for the daemon to free space.
func (a *appender) deliverOne(ctx context.Context, items []*item) error {
	if ctx.Err() != nil {
		return a.expired(ctx, items[0], nil)
	}
	var room quotaWait
	for {
		err := a.deliverWithin(ctx, items)
		refused, ok := err.(*refusedFull) //nolint:errorlint // never wrapped
		if !ok {
			return err
		}
		// This try did not store it, but an earlier try without an answer may have.
		if err := a.quotas.await(ctx, &room, a.names.EventStream(), refused.answer); err != nil {
			return err
		}
	}
}

// refusedFull says that the stream is full. Only deliverOne handles it.
type refusedFull struct{ answer error }

func (e *refusedFull) Error() string { return e.answer.Error() }

// deliverWithin is deliverOne until the deadline of one event, or until the stream is full. It makes at least one try:
// if the caller's context ended while the fleet was full, the wait for space reports that. See the table of answers in
// the package's documentation.
func (a *appender) deliverWithin(ctx context.Context, items []*item) error {
	it := items[0]
	caller := ctx
	// The caller's context is checked between tries, not within one. A try is answered in a moment; to break it off
	// would leave the event in doubt and make the other users of the handle wait for its resolution.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.PublishTimeout)
	defer cancel()
	wait := a.cfg.pause()
	var lastErr error
	learn := func(err error) {
		// Keep the error of the previous try if the deadline ended this one, unless it indicates a regressed log.
		if _, sign := errors.AsType[*regression](err); sign || lastErr == nil || ctx.Err() == nil {
			lastErr = err
		}
	}
	for {
		if err := a.steady(ctx); err != nil {
			if !errors.Is(err, errAgain) {
				return err
			}
			if learn(err); caller.Err() != nil || !wait.Wait(ctx) {
				return a.expired(caller, it, lastErr)
			}
			continue
		}
		sent := time.Now()
		last, _ := a.ledger.end()
		answer := a.sender.Append(ctx, it.message(a.subject), last)
		switch answer.Outcome {
		case eventlog.Stored:
			if answer.Duplicate {
				if a.ledger.isStarting() && !it.sent {
					return a.ledger.die(fmt.Errorf("start of run %s: %w: resume it, or choose another id", a.run, ErrRunExists))
				}
				err := a.confirm(ctx, it, answer.Stream)
				if errors.Is(err, errElsewhere) {
					done, err2 := a.resolvePurged(ctx, answer.Stream, items)
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
				sent = time.Time{} // when the first try was sent
			}
			return a.ledger.acknowledged(it, answer.Stream, sent)
		case eventlog.Outdated:
			done, err := a.resolve(ctx, answer.Stream, items)
			if done || err != nil && !errors.Is(err, errAgain) {
				return err
			}
			if err == nil {
				// The event belongs after the foreign events now. An earlier try can no longer be stored: its sequence
				// is taken.
				it.sent, lastErr = false, answer.Err
				if ctx.Err() == nil && caller.Err() == nil {
					continue
				}
			} else {
				learn(err)
			}
		case eventlog.Full:
			return &refusedFull{answer.Err}
		case eventlog.Oversized:
			e := &PayloadTooLargeError{Event: it.event.Name(), Total: it.size, Limit: eventLimit}
			e.Field, e.Size = largestField(it.event.Data)
			if it.sent {
				// Another server has a lower size limit than the one that got an earlier try.
				return a.undelivered(it, errors.Join(e, answer.Err))
			}
			return errors.Join(e, answer.Err)
		case eventlog.Denied, eventlog.Refused:
			return a.undelivered(it, answer.Err)
		case eventlog.AnswerDenied:
			it.sent = true
			return a.undelivered(it, answer.Err)
		case eventlog.Unsent:
			lastErr = answer.Err
			if a.nc.IsClosed() {
				return a.undelivered(it, answer.Err)
			}
		case eventlog.Unanswered:
			it.sent = true
			learn(answer.Err)
		case eventlog.InFlight, eventlog.Contended:
			// The other publish is over within one replication; a longer wait only loses the next race, too.
			lastErr = answer.Err
			wait.Next = min(wait.Next, conflictBackoff)
		default:
			lastErr = answer.Err
		}
		if caller.Err() != nil || !wait.Wait(ctx) {
			return a.expired(caller, it, lastErr)
		}
	}
}

// expired is the error of a publish past its deadline.
func (a *appender) expired(caller context.Context, it *item, last error) error {
	if last == nil {
		last = context.DeadlineExceeded
	}
	if cause := context.Cause(caller); cause != nil {
		last = fmt.Errorf("%w (%w)", cause, last)
	}
	if regressed, ok := errors.AsType[*regression](last); ok && time.Since(regressed.since) >= eventlog.ShorterTrust {
		return a.ledger.die(regressed.err)
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

// errElsewhere: the server called a message a duplicate, but it is not stored where the server says, or is another
// message.
var errElsewhere = errors.New("is used by another message")

// confirm checks that a reported duplicate is the event itself: message ids are shared by all subjects of a stream, so
// another publisher may have used the id before.
func (a *appender) confirm(ctx context.Context, it *item, at schema.StreamSequence) error {
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, at)
	if err != nil {
		return err
	}
	if !found || rec.Stream != at || schema.PositionOf(&rec).ID != it.event.ID {
		return fmt.Errorf("message id %s %w at stream sequence %d", it.event.ID, errElsewhere, at)
	}
	return nil
}

// errAgain says that a resolution has no result yet.
var errAgain = errors.New("not resolved yet")

// conflictBackoff is the longest wait for a concurrent publish to the run.
const conflictBackoff = 10 * time.Millisecond

// regression is a sign of a regressed log. A stale leader can give the same sign, so it counts only if it persists.
type regression struct {
	err   error
	since time.Time
}

func (e *regression) Error() string   { return e.err.Error() }
func (e *regression) Unwrap() []error { return []error{errAgain, e.err} }

// resolve finds out why the run's last message is the one at upTo. done: the first of items is durable. Neither done
// nor an error: it is not in the log, and must be published after the messages folded meanwhile.
func (a *appender) resolve(ctx context.Context, upTo schema.StreamSequence, items []*item) (done bool, err error) {
	last, lastID := a.ledger.end()
	if upTo < last {
		return false, a.shorterLog(ctx, upTo, last, lastID)
	}
	a.shorter = time.Time{}
	return a.ledger.resolved(items, last, a.catchUp(ctx, upTo, items))
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
	replicas, err := a.replicas(ctx, a.names)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	if replicas > 1 {
		if a.shorter.IsZero() {
			a.shorter = time.Now()
		}
		return &regression{gone, a.shorter}
	}
	return a.ledger.die(gone)
}

// resolvePurged is resolve for an event that was stored at a sequence and is no longer there. Sealed events are purged
// once later ones exist, and reading up to those finds the event. If there are none, or this handle knows another
// message at that sequence, the message id belongs to another message.
func (a *appender) resolvePurged(ctx context.Context, at schema.StreamSequence, items []*item) (done bool, err error) {
	known, _ := a.ledger.end()
	last, found, err := eventlog.Last(ctx, a.js, a.names, a.run)
	switch {
	case err != nil:
		return false, errors.Join(errAgain, err)
	case !found, at <= known, last.Stream <= at:
		return false, errAgain
	}
	return a.resolve(ctx, last.Stream, items)
}

func (a *appender) catchUp(ctx context.Context, upTo schema.StreamSequence, items []*item) error {
	wait := a.cfg.pause()
	for {
		seen := false
		from, fromID := a.ledger.end()
		atFrom := from == 0
		err := eventlog.Read(ctx, a.js, a.names, a.run, max(from, 1), func(rec schema.Record) error {
			if !atFrom && rec.Stream == from {
				if got := schema.PositionOf(&rec).ID; got != fromID {
					return a.ledger.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", a.run, ErrLogRegressed, from, fromID, got))
				}
				atFrom = true
			}
			if !atFrom {
				return errHole
			}
			seen = seen || rec.Stream >= upTo
			return a.meet(ctx, &rec, items)
		})
		switch {
		case errors.Is(err, errHole):
			// The acknowledged message is not at its sequence, and not because an older replica answered.
			if err := a.rebuild(ctx, items); !errors.Is(err, errAgain) {
				return err
			}
		case err != nil && (errors.Is(err, eventlog.ErrNoAnswer) || errors.Is(err, eventlog.ErrNoStream) || errors.Is(err, keyring.ErrRead)):
		case err != nil:
			return err
		case seen || upTo == 0:
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
	keys, err := a.keys.Keys(ctx)
	if err != nil {
		return fmt.Errorf("run %s: %w", a.run, err)
	}
	return a.ledger.meet(keys, rec, items)
}
