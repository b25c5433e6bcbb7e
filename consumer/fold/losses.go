package fold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/kvstore"
)

const (
	// lossesEvery is the shortest time between two comparisons of all live runs with the log.
	lossesEvery = 5 * time.Minute
	// lossesPage is how many live runs are compared in one period of an idle worker.
	lossesPage = 128
)

// losses finds live runs that are gone from the log, as after nats stream purge. The purger never removes a run's last
// event. All live runs are compared once in a term, and again when the log has lost more messages than the purger
// removed. A run that lost only earlier events goes on by its checkpoint; reads of its content name them.
type losses struct {
	// due: a comparison is to begin. checking: one is under way, with the runs left; began is when.
	due, checking bool
	left          []string
	began         time.Time
	// messages and last are of the log when it was last seen, and purged is what the purger had removed then.
	seen           bool
	messages, last uint64
	purged         int64
}

// see takes the state of the log.
func (x *losses) see(log *jetstream.StreamState, purged int64, now time.Time) {
	gone := int64(x.messages+log.LastSeq-x.last) - int64(log.Msgs) //nolint:gosec // numbers of messages
	x.due = x.due || !x.seen || gone > purged-x.purged
	x.seen, x.messages, x.last, x.purged = true, log.Msgs, log.LastSeq, purged
	if x.due && !x.checking && (x.began.IsZero() || now.Sub(x.began) >= lossesEvery) {
		x.due, x.checking, x.left, x.began = false, true, nil, now
	}
}

// checkLosses compares a page of live runs with the log.
func (s *term) checkLosses(ctx context.Context) error {
	if !s.losses.checking || s.mark.RebuildTo > 0 || !s.caughtUpWithLog() {
		return nil
	}
	x := &s.losses
	if x.left == nil {
		runs, _, err := s.shard.Checkpoints.LiveRuns(ctx)
		if err != nil {
			return err
		}
		x.left = runs
	}
	page, _, err := s.shard.Checkpoints.Of(ctx, x.left[:min(len(x.left), lossesPage)])
	if err != nil {
		return err
	}
	for i := range page {
		c := page[i].Checkpoint
		if c == nil || c.Incarnation != s.incarnation {
			continue
		}
		has, err := s.logHas(ctx, c.Run)
		if err == nil && (!has || !c.Complete()) {
			err = s.noteLoss(ctx, c.Run)
		}
		if err != nil {
			return err
		}
	}
	x.left = x.left[len(page):]
	x.checking = len(x.left) > 0
	return nil
}

// logHas reports whether the log has a message of a run. A leader that lags behind tells nothing.
func (s *term) logHas(ctx context.Context, run string) (bool, error) {
	stream, err := s.js.Stream(ctx, s.names.EventStream())
	if err != nil {
		return false, fmt.Errorf("event stream %s: %w", s.names.EventStream(), err)
	}
	subject := s.names.EventSubject(run)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return false, fmt.Errorf("run %s: %w", run, err)
	}
	return info.State.Subjects[subject] > 0 || info.State.LastSeq < uint64(s.mark.Position.Stream), nil
}

// noteLoss looks again, by the state of this worker, and marks the run as incomplete, or takes the mark back. The
// checkpoint stays: it is what is left of the run.
func (s *term) noteLoss(ctx context.Context, id string) error {
	r := s.cache.get(id)
	if r == nil {
		c, rev, err := s.shard.Checkpoints.GetFresh(ctx, id)
		if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrCorrupt) || err == nil && c.Incarnation != s.incarnation {
			return nil // it is folded again at its next event
		}
		if err != nil {
			return err
		}
		r = &run{id: id, revision: rev, tail: tailbuffer{room: &s.room}}
		s.resume(r, c)
	}
	has, err := s.logHas(ctx, id)
	if err != nil || !r.head.NoteLost(!has) {
		return err
	}
	if !has {
		s.stats.Regressions.Add(1)
		s.log.Error().Str(logkey.Run, id).Uint64(logkey.Position, uint64(r.head.Position.Stream)).
			Str("hint", "restore a backup, or remove what is left: waymark erase "+id+" --force").Msg("log has lost events of a live run")
	}
	r.dirty = true
	return s.store(ctx, map[string]*run{id: r})
}
