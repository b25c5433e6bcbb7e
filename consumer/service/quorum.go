package service

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/reader"
)

// Quorum proves for each shard that its log takes writes: a barrier was acknowledged, by the stream's leader and by as many
// replicas as it needs, not longer than fresh ago. Where none was, one is published, and waited for until ctx ends. Reads
// publish barriers, too, where a log has several replicas.
func (s *Service) Quorum(ctx context.Context, fresh time.Duration) []reader.Quorum {
	sources := s.routing.shards()
	list := make([]reader.Quorum, len(sources))
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for i, src := range sources {
		group.Go(func() error {
			list[i] = src.Barrier.Proof(ctx, s.now(), fresh)
			return nil
		})
	}
	_ = group.Wait() // a shard carries its own error
	return list
}

// reached proves for the given shards that as many servers as they need were reached after the call began, by a bound of each, which
// it repeats until ctx ends. What is read without a proof of its own, from memory or from whichever replica answers, is not a
// minority's then.
func reached(ctx context.Context, shards []*reader.Source) error {
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for _, src := range shards {
		group.Go(func() error { return src.Barrier.Insist(ctx) })
	}
	return group.Wait()
}
