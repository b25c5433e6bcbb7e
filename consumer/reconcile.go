package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/kvstore"
)

// reconcile is what an idle folder does from time to time: it compares its position with the log, so that it never
// waits beyond the end of a log that went back; seals tails that nothing was added to; puts a
// lifted quota back; moves the safe watermark.
func (s *reignState) reconcile(ctx context.Context) error {
	s.settleDoubt()
	if s.mark.Position.Stream > 0 {
		if err := s.checkPosition(ctx); err != nil {
			return err
		}
		if err := s.checkBucket(ctx); err != nil {
			return err
		}
	}
	if err := s.sealIdle(ctx); err != nil {
		return err
	}
	// What was lifted for a control event on a full stream goes back as soon as there is room below the quota.
	if _, err := s.shard.LiftQuota(ctx, 0); err != nil {
		s.log.Warn().Err(err).Msg("quota stays lifted")
	}
	if err := s.purgeMarks(ctx); err != nil {
		return err
	}
	return s.moveSafe(ctx)
}

// checkBucket notices a checkpoint bucket that was deleted or made anew while nothing had to be put.
func (s *reignState) checkBucket(ctx context.Context) error {
	_, rev, err := s.shard.Checkpoints.Watermark(ctx)
	if err != nil {
		return fmt.Errorf("watermark: %w", err)
	}
	if rev != s.markRev {
		return fmt.Errorf("%w: the watermark is at revision %d, this folder put %d", errYield, rev, s.markRev)
	}
	return nil
}

// tailIdle is when the memory of a tail that nothing was added to goes to the others.
const tailIdle = 30 * time.Second

// sealIdle seals what has waited long enough and is large enough to be worth a segment.
func (s *reignState) sealIdle(ctx context.Context) error {
	now := s.now()
	idle := make(map[string]*run)
	s.cached(func(r *run) bool {
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
		if err := s.seal(ctx, r); err != nil {
			return err
		}
	}
	return s.store(ctx, idle)
}

// aging is a watermark and when it was put.
type aging struct {
	mark kvstore.Watermark
	at   time.Time
}

// moveSafe keeps the watermark of two sync intervals ago in a bucket that is synced: whatever a power cut took back of
// the checkpoints, what stood there before that is on disk. A shard that is always busy has one entry a tick on its
// way: SafeAfter divided by ReconcileEvery, a few dozen.
func (s *reignState) moveSafe(ctx context.Context) error {
	now := s.now()
	if n := len(s.aging); n == 0 || s.aging[n-1].mark.Position != s.mark.Position {
		s.aging = append(s.aging, aging{s.mark, now})
	}
	due := -1
	for i, a := range s.aging {
		if now.Sub(a.at) >= s.cfg.SafeAfter {
			due = i
		}
	}
	if due < 0 || s.aging[due].mark.Incarnation == "" {
		return nil
	}
	_, rev, err := s.safe.Get(ctx, s.names)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
		return err
	}
	if _, err := s.safe.Put(ctx, s.names, s.aging[due].mark, rev); err != nil {
		return s.lost(err)
	}
	s.aging = s.aging[due+1:]
	return nil
}
