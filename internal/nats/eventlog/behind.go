package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// behindTries is how often the counts are repeated if barriers came between them.
	behindTries = 3
	// behindPage and behindPageBytes bound one search for the first event after a position.
	behindPage      = 256
	behindPageBytes = 64 << 10
	// behindPages bounds the searches: more than 16,384 barriers without an event in between are not read.
	behindPages = 64
)

// Waiting is the content of a shard's log after a position.
type Waiting struct {
	// Events of runs, without barriers.
	Events int64
	// First and Stored are the position and time of storage of the first of them; zero without events.
	First  schema.StreamSequence
	Stored time.Time
}

// Behind counts the events of a shard's log after a stream sequence, as one server shows it. It only reads the first
// of them: the server counts. Events that are stored during the call may be counted or not.
func Behind(ctx context.Context, js jetstream.JetStream, names schema.Names, after schema.StreamSequence) (Waiting, error) {
	d, err := dial(js, names, 2*behindPage)
	if err != nil {
		return Waiting{}, readError(names, "*", err)
	}
	defer d.Close()
	w, err := d.behind(ctx, names, uint64(after)+1)
	if err != nil {
		return w, fmt.Errorf("events of stream %s after %d: %w", names.EventStream(), after, err)
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
	// Usually the first message is the one; barriers before it are few, as older ones are purged.
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

// countFrom asks how many messages of a subject the stream has from a sequence on.
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

// expectEnd turns a status message that ends no answer into an error.
func expectEnd(status string) error {
	if status == jsapi.StatusEnd || status == jsapi.StatusNotFound {
		return nil
	}
	return fmt.Errorf("status %.80s: %w", status, ErrAnswer)
}
