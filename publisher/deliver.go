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

// appender is the recorder of runs in a fleet: it sends the events, sends them again, and reads in the log what became of a try
// without an answer.
type appender struct {
	cfg    *Config
	nc     *nats.Conn
	js     jetstream.JetStream
	sender *send.Sender
	quotas *quotas
	keys   *keyring.Ring
	// replicas of a log, and events of a run as the daemon has them.
	replicas func(ctx context.Context, names schema.Names) (int, error)
	events   func(ctx context.Context, run string, yield func(schema.Record) error) error

	names   schema.Names
	run     string
	subject string
	ledger  *ledger
	// connections that had been opened when the log was last seen to have the run's last message; see steady.
	connections uint64
	// shorter is since when a replicated stream says that the log is shorter than it was.
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
	fresh := true
	for _, it := range items {
		fresh = fresh && it.stream == 0 && !it.sent
	}
	if fresh && len(items) >= batchFrom && len(items) <= eventlog.MaxBatch {
		if a.deliverBatch(ctx, items) {
			return nil
		}
	}
	for i, it := range items {
		if it.stream != 0 {
			continue // durable before, or found while an earlier one was resolved
		}
		if i > 0 {
			if err := a.ledger.ended(); err != nil {
				return err // the one before is durable, and behind it stands what ended the handle
			}
		}
		if err := a.deliverOne(ctx, items[i:]); err != nil {
			return err
		}
	}
	return nil
}

// deliverBatch sends the events as one atomic batch, once. It reports whether they are durable; if not, each must be
// resolved singly.
func (a *appender) deliverBatch(ctx context.Context, items []*item) bool {
	if ctx.Err() != nil || a.steady(ctx) != nil {
		return false
	}
	msgs := make([]*nats.Msg, len(items))
	for i, it := range items {
		msgs[i] = it.message(a.subject)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.TryTimeout)
	defer cancel()
	sent := time.Now()
	last, _ := a.ledger.end()
	answer := a.sender.AppendBatch(ctx, msgs, last)
	if answer.Outcome != eventlog.Stored {
		// None of them can be stored without the first.
		items[0].sent = answer.Outcome == eventlog.Unanswered || answer.Outcome == eventlog.AnswerDenied
		return false
	}
	first := answer.Stream - schema.StreamSequence(len(items)) + 1
	for i, it := range items {
		a.ledger.durable(it, first+schema.StreamSequence(i), sent)
	}
	return true
}

// deliverOne makes the first of items durable; the others are known to it because an earlier try may have stored
// them, too. It waits while the fleet is full and its daemon makes room.
func (a *appender) deliverOne(ctx context.Context, items []*item) error {
	if ctx.Err() != nil {
		return a.expired(ctx, items[0], nil)
	}
	var room quotaWait
	for {
		err := a.deliverWithin(ctx, items)
		refused, ok := err.(*refusedFull) //nolint:errorlint // it is never wrapped
		if !ok {
			return err
		}
		// Not stored by this try, and in doubt still if an earlier one had no answer.
		if err := a.quotas.await(ctx, &room, a.names.EventStream(), refused.answer); err != nil {
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
func (a *appender) deliverWithin(ctx context.Context, items []*item) error {
	it := items[0]
	caller := ctx
	// The caller's end counts between tries and not within one: it must not leave in doubt what is answered in a
	// moment, for the other users of the handle would have to wait for its resolution.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.PublishTimeout)
	defer cancel()
	wait := a.cfg.pause()
	var lastErr error
	learn := func(err error) {
		// A try that the deadline ended says less than the one before, unless it is a sign of a regressed log.
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
				sent = time.Time{} // of the first try
			}
			return a.ledger.acknowledged(it, answer.Stream, sent)
		case eventlog.Outdated:
			done, err := a.resolve(ctx, answer.Stream, items)
			if done || err != nil && !errors.Is(err, errAgain) {
				return err
			}
			if err == nil {
				// Behind what others wrote. An earlier try can no longer be stored: its place is taken.
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
				// Another server takes less than the one to which an earlier try went.
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
			// Over in the time of one replication; waiting longer only loses the next race, too.
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

// expired is the error of a publish whose deadline is over.
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

// undelivered is the error of an event that is given up: it is not durable, or not known to be.
func (a *appender) undelivered(it *item, why error) error {
	kind := ErrUnavailable
	if it.sent {
		kind = ErrUnresolved
	}
	if (it.sent || errors.Is(why, nats.ErrNoResponders)) && a.nc.IsConnected() {
		// No server tells a publisher that its disk is full, or that too few replicas are there: nobody answers.
		why = fmt.Errorf("%w: stream %s does not acknowledge, and the connection is up: a disk of its servers may be full, or too few of its replicas run; see: waymark doctor",
			why, a.names.EventStream())
	}
	return fmt.Errorf("run %s: publishing %s: %w: %w", a.run, it.event.ID, kind, why)
}

// errElsewhere: the message that a server called a duplicate is not where it says, or is not that one.
var errElsewhere = errors.New("is used by another message")

// confirm checks that the message a server called a duplicate of it is it: message ids are shared by all subjects of
// a stream, and anybody who may publish there could have used this one before.
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
func (a *appender) resolve(ctx context.Context, upTo schema.StreamSequence, items []*item) (done bool, err error) {
	last, lastID := a.ledger.end()
	if upTo < last {
		return false, a.shorterLog(ctx, upTo, last, lastID)
	}
	a.shorter = time.Time{}
	return a.ledger.resolved(items, last, a.catchUp(ctx, upTo, items))
}

// shorterLog judges the answer that the run's last message is one before that which was acknowledged to this handle. A server gives 0 in
// this answer, too, when it cannot read its store: its index of the log tells the two apart.
func (a *appender) shorterLog(ctx context.Context, upTo, last schema.StreamSequence, lastID string) error {
	if upTo == 0 {
		log, err := eventlog.AskLone(ctx, a.js, a.names, a.run)
		if err != nil {
			return errors.Join(errAgain, err)
		}
		if log.Holds && log.Last >= last {
			return fmt.Errorf("%w: the server has run %s in its log up to %d and cannot read it: see that its disk is sound and has room", errAgain, a.run, log.Last)
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

// resolvePurged is resolve for an event that was stored at a place and is not there. What is sealed is purged once others have written behind
// it: with them it is found. When nobody has, or the place is one that this handle knows, its message id is another message's.
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
			// What was acknowledged is not where it was, and not because an older replica answered.
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

// errHole: the read shows later messages but not the one that the handle knows.
var errHole = errors.New("messages are missing from the log")

// meet folds one message behind the last one known, whoever wrote it.
func (a *appender) meet(ctx context.Context, rec *schema.Record, items []*item) error {
	keys, err := a.keys.Keys(ctx)
	if err != nil {
		return fmt.Errorf("run %s: %w", a.run, err)
	}
	return a.ledger.meet(keys, rec, items)
}
