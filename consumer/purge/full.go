package purge

import (
	"context"
	"time"

	"github.com/waymarkio/waymark/kvstore"
)

const (
	// A log above fullAt percent of its quota is relieved until it is below fullTo.
	fullAt, fullTo = 75, 50
	// fillRate is the assumed maximal rate at which a log fills, in bytes a second: it determines the next look.
	fillRate = 200 << 20
	// fullLookMin and fullLookMax bound the pauses between two looks at the size of the log.
	fullLookMin, fullLookMax = 50 * time.Millisecond, purgeTick
	// fullPieces is the smallest number of steps in which room is made, so that some is there soon.
	fullPieces = 4
)

// relieve makes room in a log that is nearly full: sealed events are purged without waiting for the grace, the
// largest gain first, and if that is not enough, tails are sealed early. It returns when to look again.
func (p *Purger) relieve(ctx context.Context) (time.Duration, error) {
	p.pressed = false
	quota := p.deps.Shard.Settings().QuotaBytes
	if quota == kvstore.UnlimitedQuota {
		return fullLookMax, nil
	}
	for {
		usage, err := p.deps.Shard.Usage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				p.deps.Log.Warn().Err(err).Msg("size of the log not known")
			}
			return fullLookMax / 4, nil
		}
		if usage.Bytes < quota/100*fullAt {
			room := quota/100*fullAt - usage.Bytes
			return max(min(time.Duration(float64(room)/fillRate*float64(time.Second)), fullLookMax), fullLookMin), nil
		}
		p.pressed = true
		p.deps.Stats.Relieved.Add(1)
		need := usage.Bytes - quota/100*fullTo
		p.mu.Lock()
		runs := p.queue.gains(need, p.cfg.Least, p.deps.Now())
		p.mu.Unlock()
		freed := int64(0)
		for _, e := range runs {
			events, err := p.purgeRun(ctx, e, max(min(need/fullPieces, proofBytes), leastProofBytes))
			if err != nil {
				return 0, err
			}
			freed += events
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
		}
		if freed > 0 {
			continue
		}
		p.mu.Lock()
		waiting := p.queue.waiting()
		p.mu.Unlock()
		if waiting >= need {
			// The sealed events are enough once they are counted and may be purged; sealing more would only make
			// small segments.
			return fullLookMax / 4, nil
		}
		select {
		case p.press <- need:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		return fullLookMin, nil
	}
}
