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
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// scanPause is how often a scanner at the end asks for more.
const scanPause = 250 * time.Millisecond

// Scanner reads a shard's log by direct gets, for clients that may read and may not create consumers. At the end of
// the log it asks a few times a second, and any replica may answer: a [Follower] is quicker and cheaper for a long
// read.
type Scanner struct {
	names   schema.Names
	run     string
	line    *direct
	request jsapi.GetRequest
	// ready are records that were read and not yet returned; pending is the server's count of later ones.
	ready   []Arrived
	pending uint64
}

// Scan makes a scanner. Close it after use.
func Scan(ctx context.Context, js jetstream.JetStream, names schema.Names, from FollowFrom) (*Scanner, error) {
	s := &Scanner{names: names, run: "*"}
	if from.Run != "" {
		s.run = from.Run
	}
	s.request = jsapi.GetRequest{Seq: uint64(from.Stream), NextFor: names.EventSubject(s.run), Batch: batchMessages, MaxBytes: batchBytes}
	switch {
	case from.Stream != 0:
	case !from.Since.IsZero():
		s.request.Start = from.Since
	case from.New:
		stream, err := js.Stream(ctx, names.EventStream())
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", names.EventStream(), err)
		}
		s.request.Seq = stream.CachedInfo().State.LastSeq + 1
	default:
		s.request.Seq = 1
	}
	line, err := dial(js, names, 2*batchMessages)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBroken, names.EventStream(), err)
	}
	s.line = line
	return s, nil
}

// Close ends the reading.
func (s *Scanner) Close() { s.line.Close() }

// Next returns the next message of the log, and waits for it until ctx ends. Its Pending is the number of later
// messages, as far as the answering server knows.
func (s *Scanner) Next(ctx context.Context) (Arrived, error) {
	for {
		a, there, err := s.NextIfThere(ctx)
		if err != nil || there {
			return a, err
		}
		if pause.For(ctx, scanPause) != nil {
			return Arrived{}, ctx.Err()
		}
	}
}

// NextIfThere is Next without waiting: there is false at the end of the log.
func (s *Scanner) NextIfThere(ctx context.Context) (a Arrived, there bool, err error) {
	if len(s.ready) == 0 {
		if err := s.more(ctx); err != nil {
			return Arrived{}, false, err
		}
	}
	if len(s.ready) == 0 {
		return Arrived{}, false, nil
	}
	a = s.ready[0]
	s.ready = s.ready[1:]
	a.Pending = s.pending + uint64(len(s.ready))
	return a, true, nil
}

// more asks for the next messages.
func (s *Scanner) more(ctx context.Context) error {
	err := s.line.ask(ctx, s.request, func(m *nats.Msg, status string) (bool, error) {
		switch {
		case status == jsapi.StatusNotFound:
			s.pending = 0
			return true, nil
		case status == jsapi.StatusEnd:
			n, err := strconv.ParseUint(jsapi.Last(m.Header, jsapi.HeaderPending), 10, 64)
			s.pending = n
			return true, err
		case status != "":
			return true, fmt.Errorf("the server said %.80q: %w", status, ErrAnswer)
		}
		subject := jsapi.Last(m.Header, jsapi.HeaderSubject)
		rec, first, err := record(m)
		if errors.Is(err, errNoPlace) {
			// Its own headers are malformed, so its position is lost: the leader's answer has it separately. Its run
			// does not matter: it is no event.
			rec, err = s.line.nextOfLeader(ctx, s.names, s.run, s.request.Seq)
		}
		if err != nil {
			return true, err
		}
		s.request.Seq, s.request.Start = uint64(rec.Stream)+1, time.Time{}
		s.ready = append(s.ready, Arrived{Subject: subject, Record: rec, First: first})
		return false, nil
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, ErrNoStream) {
		return fmt.Errorf("read stream %s: %w", s.line.stream, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrBroken, s.line.stream, err)
}
