package consumer

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Quorum says whether the log of a shard takes writes.
type Quorum struct {
	Shard int
	// At is when the last barrier was acknowledged; zero before the first.
	At time.Time
	// Err says why it takes none now; nil when it does.
	Err error
}

// Quorum proves for each shard that its log takes writes: a barrier was acknowledged, by the stream's leader and by as many
// replicas as it needs, not longer than fresh ago. Where none was, one is published, and waited for until ctx ends. Reads
// publish barriers, too, where a log has several replicas.
func (s *Service) Quorum(ctx context.Context, fresh time.Duration) []Quorum {
	sources := s.places.Load().shards
	list := make([]Quorum, len(sources))
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for i, src := range sources {
		group.Go(func() error {
			list[i] = src.barrier.proof(ctx, s.now(), fresh)
			return nil
		})
	}
	_ = group.Wait() // a shard carries its own error
	return list
}

// reached proves for the given shards that as many servers as they need were reached after the call began, by a bound of each, which
// it repeats until ctx ends. What is read without a proof of its own, from memory or from whichever replica answers, is not a
// minority's then.
func (s *Service) reached(ctx context.Context, shards []*shardSource) error {
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for _, src := range shards {
		group.Go(func() error { return src.barrier.insist(ctx) })
	}
	return group.Wait()
}

// insist waits for a bound that was found after the call, and tries again while none is.
func (b *barrier) insist(ctx context.Context) error {
	return insist(ctx, "stream "+b.names.EventStream(), func() error {
		_, err := b.wait(ctx)
		return err
	}, func(error) {})
}

// proof is that of one shard.
func (b *barrier) proof(ctx context.Context, now time.Time, fresh time.Duration) Quorum {
	q := Quorum{Shard: b.names.Shard, At: b.lastAcked()}
	if !q.At.IsZero() && now.Sub(q.At) < fresh {
		return q
	}
	if err := b.written(ctx); err != nil {
		q.Err = fmt.Errorf("stream %s takes no writes: %w", b.names.EventStream(), err)
	}
	q.At = b.lastAcked()
	return q
}

// lastAcked is when the last barrier was acknowledged; zero before the first.
func (b *barrier) lastAcked() time.Time {
	if n := b.acked.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
