package service

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/reader"
)

// Quorum proves for each shard that its log accepts writes: the stream's leader and enough replicas acknowledged a
// barrier within the time fresh. If there is none, it publishes one, and waits until ctx ends. Reads publish
// barriers, too, if a log has several replicas.
func (s *Service) Quorum(ctx context.Context, fresh time.Duration) []reader.Quorum {
	sources := s.routing.shards
	list := make([]reader.Quorum, len(sources))
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for i, src := range sources {
		group.Go(func() error {
			list[i] = src.Barrier.Proof(ctx, s.now(), fresh)
			return nil
		})
	}
	_ = group.Wait() // each shard has its own error
	return list
}

// reached proves for the given shards that enough of their servers were reached after the call began. Each barrier
// has its own time limit, and is repeated until ctx ends. So reads without their own proof, from memory or from any
// replica, do not come from a minority.
func reached(ctx context.Context, shards []*reader.Source) error {
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for _, src := range shards {
		group.Go(func() error { return src.Barrier.Insist(ctx) })
	}
	return group.Wait()
}
