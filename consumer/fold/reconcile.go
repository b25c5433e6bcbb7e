package fold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// reconcile is the periodic work of an idle worker: it compares its position with the log, so that it never waits
// beyond the end of a log that went back; finds live runs that the log has lost; seals idle tails; lowers a raised
// quota; repairs the live index; moves the safe position.
func (s *term) reconcile(ctx context.Context) error {
	s.settleDoubt()
	if s.mark.Position.Stream > 0 {
		err := s.checkPosition(ctx)
		if errors.Is(err, errSeemsShorter) {
			s.log.Warn().Err(err).Msg("log seems shorter, looking again")
			return nil
		}
		if err != nil {
			return err
		}
	}
	if err := s.checkBucket(ctx); err != nil {
		return err
	}
	if err := s.sealIdle(ctx); err != nil {
		return err
	}
	// A limit that was raised for a control event on a full stream goes back as soon as there is room below the
	// quota.
	if _, err := s.shard.LiftQuota(ctx, 0); err != nil {
		s.log.Warn().Err(err).Msg("stream limit stays above the quota")
	}
	for _, job := range []func(context.Context) error{s.mendLive, s.checkLosses} {
		switch err := job(ctx); {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, errSuperseded), errors.Is(err, errRegressed), errors.Is(err, schema.ErrFormat):
			return err
		default:
			// The shard must not lose its worker to what executors have put into it.
			s.log.Warn().Err(err).Msg("live runs not checked, trying again")
		}
	}
	s.safeMark.note(s.mark.Position, s.now())
	return nil
}

// throttle keeps room in the shard's buckets, once at once.
func (s *term) throttle(ctx context.Context) (wait time.Duration) {
	wait, err := s.shard.Throttle(ctx, schema.StreamSequence(s.committed.Load()))
	if err == nil {
		return wait
	}
	if ctx.Err() == nil {
		s.log.Warn().Err(err).Msg("room for checkpoints not known")
	}
	return time.Second
}

// collectEvery is the interval of collectBlobs.
const collectEvery = time.Hour

// collectBlobs collects what no event names in the fleet's blob store, until ctx ends.
func (s *term) collectBlobs(ctx context.Context) {
	for wait := time.Duration(0); pause.For(ctx, wait) == nil; wait = collectEvery {
		n, err := s.shard.CollectBlobs(ctx, s.now())
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("blobs that no event names are not collected, trying again in an hour")
		} else if n > 0 {
			s.log.Info().Int("blobs", n).Msg("collected blobs that no event names")
		}
	}
}

// checkBucket notices a checkpoint bucket that was deleted or created again while there was nothing to put.
func (s *term) checkBucket(ctx context.Context) error {
	_, rev, err := s.shard.Checkpoints.Watermark(ctx)
	if err != nil {
		return fmt.Errorf("watermark: %w", err)
	}
	if rev != s.markRev {
		return fmt.Errorf("%w: the watermark is at revision %d, this fold worker put %d", errSuperseded, rev, s.markRev)
	}
	return nil
}

// tailIdle is when an idle tail's memory is freed for others.
const tailIdle = 30 * time.Second

// sealIdle seals tails that have waited long enough and are large enough for a segment.
func (s *term) sealIdle(ctx context.Context) error {
	now := s.now()
	idle := make(map[string]*run)
	s.cache.each(func(r *run) bool {
		if now.Sub(r.touched) >= tailIdle {
			r.tail.drop()
		}
		waiting := len(r.cuts) > 0
		if waiting || r.tailBytes >= s.cfg.IdleSealBytes && now.Sub(r.touched) >= s.cfg.IdleSealAfter {
			idle[r.id] = r
		}
		return len(idle) < s.cfg.BatchEvents
	})
	for _, r := range idle {
		if len(r.cuts) == 0 {
			r.cut()
		}
		if err := s.sealer.seal(ctx, r); err != nil {
			return err
		}
	}
	return s.store(ctx, idle)
}

// stands reports whether the log has the event of a checkpoint that is ahead of the message being read, as after a
// crash. If not, damage freed sequences, and the messages there now are not those that were folded.
func (s *term) stands(ctx context.Context, id string, at schema.Position) (bool, error) {
	rec, found, err := eventlog.Next(ctx, s.js, s.names, id, at.Stream)
	return found && schema.PositionOf(&rec) == at, err
}

// adjoins reports whether a run is still at its checkpoint until its next event at a position. A server crash can
// undo puts of an asynchronous bucket and keep a later watermark: then the log has the events in between, or
// segments, if they were purged. Or the log went back, and the checkpoint's event no longer exists.
func (s *term) adjoins(ctx context.Context, c *schema.Checkpoint, next schema.StreamSequence) (bool, error) {
	if c.Status != schema.StatusErased {
		rec, found, err := eventlog.Next(ctx, s.js, s.names, c.Run, c.Position.Stream)
		if err != nil || !found || schema.PositionOf(&rec) != c.Position {
			return false, err
		}
		rec, found, err = eventlog.Next(ctx, s.js, s.names, c.Run, c.Position.Stream+1)
		if err != nil || found && rec.Stream < next {
			return false, err
		}
	}
	beyond, err := s.sealer.sealedBeyond(ctx, c.Run, c.Segments.Count)
	return !beyond, err
}
