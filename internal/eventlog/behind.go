package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// behindTries is how often the counts are taken again when barriers came between them.
	behindTries = 3
	// behindPage and behindPageBytes bound one look for the first event behind a place.
	behindPage      = 256
	behindPageBytes = 64 << 10
	// behindPages bounds the looks: more than 16,384 barriers without an event between are not walked through.
	behindPages = 64
)

// Waiting is what a shard's log holds behind a place.
type Waiting struct {
	// Events of runs; barriers are none.
	Events int64
	// First and Stored are where the first of them stands and when the server stored it; zero without events.
	First  schema.StreamSequence
	Stored time.Time
}

// Behind counts the events that a shard's log holds behind a stream sequence, as one server shows it. It reads nothing
// but the first of them: the server counts. Events that are stored meanwhile may be counted or not.
func Behind(ctx context.Context, js jetstream.JetStream, names schema.Names, after schema.StreamSequence) (Waiting, error) {
	d, err := dial(js, names, 2*behindPage)
	if err != nil {
		return Waiting{}, readError(names, "*", err)
	}
	defer d.Close()
	w, err := d.behind(ctx, names, uint64(after)+1)
	if err != nil {
		return w, fmt.Errorf("what stream %s holds behind %d: %w", names.EventStream(), after, err)
	}
	return w, nil
}

func (d *direct) behind(ctx context.Context, names schema.Names, from uint64) (w Waiting, err error) {
	barriers, err := d.countFrom(ctx, names.EventSubject(schema.BarrierRun), from)
	if err != nil {
		return w, err
	}
	for range behindTries {
		all, err := d.countFrom(ctx, names.EventSubjects(), from)
		if err != nil {
			return w, err
		}
		again, err := d.countFrom(ctx, names.EventSubject(schema.BarrierRun), from)
		if err != nil {
			return w, err
		}
		w.Events = max(all-again, 0)
		if again == barriers {
			break
		}
		barriers = again
	}
	if w.Events == 0 {
		return Waiting{}, nil
	}
	// Most often the first message is the one; barriers before it are few, as older ones are purged.
	batch := 1
	for range behindPages {
		next, more := from, false
		err := d.ask(ctx, jsapi.GetRequest{Seq: from, NextFor: names.EventSubjects(), Batch: batch, MaxBytes: behindPageBytes},
			func(m *nats.Msg, status string) (bool, error) {
				if status != "" {
					more = status == jsapi.StatusEnd && jsapi.Last(m.Header, jsapi.HeaderPending) != "0"
					return true, expectEnd(status)
				}
				seq, err := strconv.ParseUint(jsapi.Last(m.Header, jsapi.HeaderSequence), 10, 64)
				if err != nil {
					return true, fmt.Errorf("stream sequence %.24q: %w", jsapi.Last(m.Header, jsapi.HeaderSequence), ErrAnswer)
				}
				next = seq + 1
				if w.First == 0 && names.RunOfSubject(jsapi.Last(m.Header, jsapi.HeaderSubject)) != schema.BarrierRun {
					w.First = schema.StreamSequence(seq)
					if w.Stored, err = time.Parse(time.RFC3339Nano, jsapi.Last(m.Header, jsapi.HeaderTime)); err != nil {
						return true, fmt.Errorf("time %.40q: %w", jsapi.Last(m.Header, jsapi.HeaderTime), errors.Join(ErrAnswer, err))
					}
				}
				return false, nil
			})
		if err != nil || w.First != 0 || !more {
			return w, err
		}
		from, batch = next, behindPage
	}
	return w, nil
}

// countFrom asks how many messages of a subject there are from a stream sequence on.
func (d *direct) countFrom(ctx context.Context, subject string, from uint64) (n int64, err error) {
	err = d.ask(ctx, jsapi.GetRequest{Seq: from, NextFor: subject, Batch: 1, MaxBytes: 1}, func(m *nats.Msg, status string) (bool, error) {
		switch status {
		case jsapi.StatusNotFound:
			return true, nil
		case "", jsapi.StatusEnd:
		default:
			return true, expectEnd(status)
		}
		pending, err := strconv.ParseInt(jsapi.Last(m.Header, jsapi.HeaderPending), 10, 64)
		if err != nil || pending < 0 {
			return true, fmt.Errorf("answer with pending %.20q: %w", jsapi.Last(m.Header, jsapi.HeaderPending), ErrAnswer)
		}
		if status == "" {
			n++
			return false, nil
		}
		n += pending
		return true, nil
	})
	return n, err
}

// expectEnd turns the server's own words that end no answer into an error.
func expectEnd(status string) error {
	if status == jsapi.StatusEnd || status == jsapi.StatusNotFound {
		return nil
	}
	return fmt.Errorf("status %.80s: %w", status, ErrAnswer)
}
