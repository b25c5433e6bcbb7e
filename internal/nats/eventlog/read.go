package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// batchMessages and batchBytes bound one request of a read, and so the memory for a slow reader.
	batchMessages = 512
	batchBytes    = 1 << 20
	// patience is how long a server may take between two messages of an answer.
	patience = 5 * time.Second
)

// Read calls yield for the run's records with a stream sequence of at least from, in order, to the end of the log as
// one server shows it. The answer may be stale: compare it with a barrier. Records that this server has lost, before
// its first record or between two, are read from the leader if the next record reveals them (see [schema.Record]); if
// the log's beginning is purged, that costs one needless request. An error of yield ends the read and is returned
// unchanged. A run without records is no error.
func Read(ctx context.Context, js jetstream.JetStream, names schema.Names, run string, from schema.StreamSequence,
	yield func(schema.Record) error,
) error {
	d, err := dial(js, names, 2*batchMessages)
	if err != nil {
		return readError(names, run, err)
	}
	defer d.Close()
	next := max(uint64(from), 1)
	err = d.scan(ctx, names, run, &jsapi.GetRequest{Seq: next}, func(a Arrived) error {
		for uint64(a.Record.Behind) >= next {
			missed, err := d.nextOfLeader(ctx, names, run, next)
			if err != nil {
				return readError(names, run, err)
			}
			if missed.Stream >= a.Record.Stream {
				break // the leader has lost it, too
			}
			next = uint64(missed.Stream) + 1
			if err := yield(missed); err != nil {
				return err
			}
		}
		next = uint64(a.Record.Stream) + 1
		return yield(a.Record)
	})
	if stopped, ok := errors.AsType[*yieldError](err); ok {
		return stopped.err
	}
	if err != nil {
		return readError(names, run, err)
	}
	return nil
}

// scan calls yield for the messages of a run, or of all runs ("*"), from a request's beginning to the end of the log as
// one server shows it, batch by batch. The request then begins after the last of them. Errors of yield are a
// *yieldError.
func (d *direct) scan(ctx context.Context, names schema.Names, run string, request *jsapi.GetRequest, yield func(Arrived) error) error {
	request.NextFor, request.Batch, request.MaxBytes = names.EventSubject(run), batchMessages, batchBytes
	for more := true; more; {
		more = false
		err := d.ask(ctx, *request, func(m *nats.Msg, status string) (bool, error) {
			switch {
			case status == jsapi.StatusNotFound:
				return true, nil
			case status == jsapi.StatusEnd:
				pending := jsapi.Last(m.Header, jsapi.HeaderPending)
				more = pending != "0"
				if _, err := strconv.ParseUint(pending, 10, 64); err != nil {
					return true, fmt.Errorf("end of batch with pending %.20q: %w", pending, ErrAnswer)
				}
				return true, nil
			case status != "":
				return true, fmt.Errorf("status %.80s: %w", status, ErrAnswer)
			}
			subject := jsapi.Last(m.Header, jsapi.HeaderSubject)
			rec, first, err := record(m)
			if errors.Is(err, errNoPlace) {
				// The message's own headers are malformed, so its position is lost: the leader's answer has it
				// separately. Its run does not matter then, because it is no event.
				rec, err = d.nextOfLeader(ctx, names, run, max(request.Seq, 1))
			}
			if err != nil {
				return true, err
			}
			if uint64(rec.Stream) < request.Seq {
				return true, fmt.Errorf("record %d after %d: %w", rec.Stream, request.Seq-1, ErrAnswer)
			}
			request.Seq, request.Start = uint64(rec.Stream)+1, time.Time{}
			if err := yield(Arrived{Subject: subject, Record: rec, First: first}); err != nil {
				return true, &yieldError{err}
			}
			return false, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Answer is one server's state at one moment.
type Answer struct {
	// Records has the last record of each requested run that has one.
	Records map[string]schema.Record
	// UpTo is the last stream sequence of the server; 0 if it knew none of the runs.
	UpTo schema.StreamSequence
}

// LastOf returns the last record of each of the runs from one single server. It may be stale as a whole, but it is of
// one moment: if it includes a barrier, it includes every event stored before that barrier.
func LastOf(ctx context.Context, js jetstream.JetStream, names schema.Names, runs ...string) (Answer, error) {
	answer := Answer{Records: make(map[string]schema.Record, len(runs))}
	if len(runs) == 0 {
		return answer, nil
	}
	d, err := dial(js, names, len(runs)+8)
	if err != nil {
		return answer, readError(names, runs[0], err)
	}
	defer d.Close()
	subjects := make([]string, len(runs))
	for i, run := range runs {
		subjects[i] = names.EventSubject(run)
	}
	// A message with a malformed header block comes without its position; the next message names it.
	var bare *schema.Record
	err = d.ask(ctx, jsapi.GetRequest{MultiLast: subjects}, func(m *nats.Msg, status string) (bool, error) {
		if bare != nil && bare.Stream == 0 {
			before, err := strconv.ParseUint(jsapi.Last(m.Header, jsapi.HeaderBefore), 10, 64)
			if err != nil || before == 0 {
				return true, fmt.Errorf("message without its place, then %.24q: %w", jsapi.Last(m.Header, jsapi.HeaderBefore), ErrAnswer)
			}
			bare.Stream = schema.StreamSequence(before)
		}
		switch {
		case status == jsapi.StatusNotFound:
			return true, nil
		case status == jsapi.StatusEnd:
			if pending := jsapi.Last(m.Header, jsapi.HeaderPending); pending != "0" {
				return true, fmt.Errorf("last records with pending %.20q: %w", pending, ErrAnswer)
			}
			upTo, err := strconv.ParseUint(jsapi.Last(m.Header, jsapi.HeaderUpTo), 10, 64)
			if err != nil {
				return true, fmt.Errorf("last records up to %.20q: %w", jsapi.Last(m.Header, jsapi.HeaderUpTo), ErrAnswer)
			}
			answer.UpTo = schema.StreamSequence(upTo)
			return true, nil
		case status != "":
			return true, fmt.Errorf("status %.80s: %w", status, ErrAnswer)
		}
		run := names.RunOfSubject(jsapi.Last(m.Header, jsapi.HeaderSubject))
		rec, _, err := record(m)
		if errors.Is(err, errNoPlace) {
			if bare != nil {
				return true, fmt.Errorf("two messages without their places: %w", ErrAnswer)
			}
			bare = &schema.Record{Body: m.Data}
			return false, nil
		}
		if err != nil {
			return true, err
		}
		if run != "" {
			answer.Records[run] = rec
		}
		return false, nil
	})
	if err == nil && bare != nil {
		err = answer.give(runs, bare)
	}
	if err != nil {
		return answer, readError(names, strings.Join(runs, " and "), err)
	}
	return answer, nil
}

// give assigns a record without headers to the only run that it can belong to.
func (a *Answer) give(runs []string, rec *schema.Record) error {
	owner := ""
	for _, run := range runs {
		if _, ok := a.Records[run]; ok {
			continue
		}
		if owner != "" {
			return fmt.Errorf("record %d is the last of run %s or %s: %w", rec.Stream, owner, run, ErrAnswer)
		}
		owner = run
	}
	if owner == "" {
		return fmt.Errorf("record %d is of no run that was asked for: %w", rec.Stream, ErrAnswer)
	}
	a.Records[owner] = *rec
	return nil
}

// direct is a connection to the direct get of a shard's log.
type direct struct {
	*jsapi.Direct
	js jetstream.JetStream
}

func dial(js jetstream.JetStream, names schema.Names, room int) (*direct, error) {
	line, err := jsapi.Dial(js, names.EventStream(), room)
	return &direct{Direct: line, js: js}, err
}

// ask is Ask with the errors of this package; those of handle are returned unchanged.
func (d *direct) ask(ctx context.Context, what jsapi.GetRequest, handle func(m *nats.Msg, status string) (done bool, err error)) error {
	var handled error
	err := d.Ask(ctx, patience, what, func(m *nats.Msg, status string) (done bool, err error) {
		done, handled = handle(m, status)
		return done, handled
	})
	switch {
	case err == nil || handled != nil:
		return handled
	case errors.Is(err, nats.ErrNoResponders):
		return ErrNoStream
	default:
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
}

// errNoPlace says that a message came without the headers for its position.
var errNoPlace = errors.New("message without its place")

// record returns the record of a message in an answer, and whether it was the first on its subject, as in [expected].
func record(m *nats.Msg) (rec schema.Record, first bool, err error) {
	if len(m.Header) == 0 {
		return rec, false, errNoPlace
	}
	seq, err := strconv.ParseUint(jsapi.Last(m.Header, jsapi.HeaderSequence), 10, 64)
	if err != nil || seq == 0 {
		return rec, false, fmt.Errorf("stream sequence %.24q: %w", jsapi.Last(m.Header, jsapi.HeaderSequence), ErrAnswer)
	}
	at, err := time.Parse(time.RFC3339Nano, jsapi.Last(m.Header, jsapi.HeaderTime))
	if err != nil {
		return rec, false, fmt.Errorf("time %.40q of stream sequence %d: %w", jsapi.Last(m.Header, jsapi.HeaderTime), seq, ErrAnswer)
	}
	rec, first = own(schema.StreamSequence(seq), at, m)
	return rec, first, nil
}

// own is schema.NewRecord for a message that only we use: it removes NATS headers in place, which is cheaper than
// copying the map. first is the result of [expected].
func own(stream schema.StreamSequence, at time.Time, m *nats.Msg) (rec schema.Record, first bool) {
	behind, first := expected(m.Header)
	for name := range m.Header {
		if len(name) > 5 && strings.EqualFold(name[:5], "nats-") {
			delete(m.Header, name)
		}
	}
	return schema.Record{Stream: stream, Stored: at.UnixNano(), Header: m.Header, Body: m.Data, Behind: behind}, first
}

// yieldError distinguishes a caller's error from this package's own.
type yieldError struct{ err error }

func (e *yieldError) Error() string { return e.err.Error() }

func readError(names schema.Names, run string, err error) error {
	return fmt.Errorf("reading run %s from stream %s: %w", run, names.EventStream(), err)
}
