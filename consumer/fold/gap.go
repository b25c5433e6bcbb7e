package fold

import (
	"context"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// gapKey is the position of a run's fold before events that the leader does not have either.
type gapKey struct {
	epoch    schema.Epoch
	sequence schema.Sequence
}

func gapAt(h *schema.Head) gapKey { return gapKey{h.Epoch, h.Sequence} }

// skips reports whether events of the run are missing before a message: the server's compare-and-set saw a later one
// than was folded last, or its sequence is not the next. An event without both shows nothing.
func (r *run) skips(a *message) bool {
	h := &r.head
	if a.Record.Stream <= h.Position.Stream || h.Status == schema.StatusErased || a.First {
		return false
	}
	if a.Record.Behind != 0 {
		return a.Record.Behind > h.Position.Stream
	}
	e := a.prepared.Event
	if e == nil || e.Sequence == 0 || r.confirmed == gapAt(h) {
		return false
	}
	return e.Epoch > h.Epoch || e.Epoch == h.Epoch && e.Sequence > h.Sequence+1
}

// fillGap folds the missing events of a run before a message. A consumer is served by one replica, and a replica with
// a damaged copy silently leaves messages out; the others have them. Events that the leader lacks too are a gap,
// which the fold reports.
func (s *term) fillGap(ctx context.Context, r *run, a *message, fold func(*message) error) error {
	for r.skips(a) {
		after := r.head.Position.Stream
		next, found, err := eventlog.Next(ctx, s.js, s.names, r.id, after+1)
		if err != nil {
			return fmt.Errorf("run %s: events between %d and %d: %w", r.id, after, a.Record.Stream, err)
		}
		if !found || next.Stream >= a.Record.Stream {
			r.confirmed = gapAt(&r.head)
			return nil
		}
		s.log.Error().Str(logkey.Run, r.id).Uint64("after", uint64(after)).Uint64("at", uint64(next.Stream)).
			Msg("a replica of the log does not have an event that its leader has")
		missed := &message{Arrived: eventlog.Arrived{Subject: a.Subject, Record: next, Pending: a.Pending}, run: r.id, size: next.Size()}
		keys, err := s.keys.Keys(ctx)
		if err != nil {
			return err
		}
		missed.prepared = schema.Prepare(keys, &missed.Record)
		if err := fold(missed); err != nil {
			return err
		}
	}
	return nil
}

// follow folds a run again whose end the log has lost: a message's compare-and-set saw an earlier event than was
// folded last, and the later one no longer exists. Readers of the log cannot know that, so the checkpoint lists the
// lost events.
func (s *term) follow(ctx context.Context, r *run, a *message) error {
	h := &r.head
	if a.Record.Behind == 0 || a.Record.Behind >= h.Position.Stream || a.Record.Stream <= h.Position.Stream || h.Status == schema.StatusErased {
		return nil
	}
	if there, err := s.stands(ctx, r.id, h.Position); err != nil || there {
		return err
	}
	was := *h
	s.stats.Regressions.Add(1)
	s.log.Error().Str(logkey.Run, r.id).Uint64(logkey.Position, uint64(was.Position.Stream)).Uint64("behind", uint64(a.Record.Behind)).
		Msg("the log lost the end of a run, folding the run again")
	if err := s.refold(ctx, r, a.Record.Stream); err != nil {
		return err
	}
	r.noteLost(&was)
	return nil
}

// observe folds a record of a run that is folded again, and the missing events before it.
func (s *term) observe(ctx context.Context, r *run, rec *schema.Record) error {
	keys, err := s.keys.Keys(ctx)
	if err != nil {
		return err
	}
	a := &message{Arrived: eventlog.Arrived{Record: *rec}, run: r.id, size: rec.Size(), prepared: schema.Prepare(keys, rec)}
	take := func(a *message) error {
		r.take(&a.prepared, a.size, &s.cfg)
		return nil
	}
	if err := s.fillGap(ctx, r, a, take); err != nil {
		return err
	}
	return take(a)
}
