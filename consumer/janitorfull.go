package consumer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waymarkio/waymark/kvstore"
)

const (
	// A log that is fuller than fullAt of its quota is relieved until it is below fullTo, in percent.
	fullAt, fullTo = 75, 50
	// fillRate is how fast a log is taken to fill at most, in bytes a second: it says how soon to look again.
	fillRate = 200 << 20
	// fullLookMin and fullLookMax bound the pauses between two looks at how full the log is.
	fullLookMin, fullLookMax = 50 * time.Millisecond, purgeTick
	// fullPieces is in how many pieces room is made at least, so that some is there soon.
	fullPieces = 4
)

// relieve makes room in a log that is nearly full: what is sealed goes without waiting for the grace period, most gain
// first, and if that is not enough, tails are sealed early. It returns when to look again.
func (j *janitor) relieve(ctx context.Context) (time.Duration, error) {
	j.pressed = false
	quota := j.shard.Quota()
	if quota == kvstore.UnlimitedQuota {
		return fullLookMax, nil
	}
	for {
		usage, err := j.shard.Usage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				j.log.Warn().Err(err).Msg("how full the log is cannot be told")
			}
			return fullLookMax / 4, nil
		}
		if usage.Bytes < quota/100*fullAt {
			room := quota/100*fullAt - usage.Bytes
			return max(min(time.Duration(float64(room)/fillRate*float64(time.Second)), fullLookMax), fullLookMin), nil
		}
		j.pressed = true
		j.stats.Relieved.Add(1)
		need := usage.Bytes - quota/100*fullTo
		j.mu.Lock()
		runs := j.queue.gains(need, j.cfg.leastGrace(), j.now())
		j.mu.Unlock()
		before := j.stats.PurgedEvents.Load()
		for _, e := range runs {
			if err := j.purgeRun(ctx, e, max(min(need/fullPieces, proofBytes), leastProofBytes)); err != nil {
				return 0, err
			}
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
		}
		if j.stats.PurgedEvents.Load() > before {
			continue
		}
		j.mu.Lock()
		waiting := j.queue.waiting()
		j.mu.Unlock()
		if waiting >= need {
			// What is sealed will do once it is counted and may go; sealing more would only make small segments.
			return fullLookMax / 4, nil
		}
		select {
		case j.press <- need:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		return fullLookMin, nil
	}
}

// sealPressed seals the largest tails in memory that are worth a segment, for so many bytes. What is sealed of them is
// purged next.
func (s *reignState) sealPressed(ctx context.Context, need int64) error {
	var tails []*run
	s.cached(func(r *run) bool {
		if r.tailBytes >= s.cfg.IdleSealBytes || len(r.cuts) > 0 {
			tails = append(tails, r)
		}
		return true
	})
	slices.SortFunc(tails, func(a, b *run) int { return cmp.Compare(b.tailBytes, a.tailBytes) })
	sealed := make(map[string]*run)
	for _, r := range tails {
		if need <= 0 || len(sealed) == s.cfg.BatchEvents {
			break
		}
		need -= r.tailBytes
		r.cut()
		parked, err := s.spare(r.id, s.seal(ctx, r))
		if err != nil {
			return err
		}
		if !parked {
			sealed[r.id] = r
		}
	}
	if err := s.store(ctx, sealed); err != nil {
		return err
	}
	s.janitor.counted()
	return nil
}
