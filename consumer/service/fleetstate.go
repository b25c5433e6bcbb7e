package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// stateAge is how long a state of the shards is shown again.
	stateAge = 2 * time.Second
	// statePatience bounds reading the state of one shard.
	statePatience = 2 * time.Second
	// shardsAtOnce bounds the shards that are read concurrently.
	shardsAtOnce = 8
)

// shardStatus reads the state of a fleet's shards from their streams and buckets. It needs no fold worker, so that it
// also reports a shard that no process folds. Reading a shard costs about ten small requests, whatever is stored, and
// the result is shown again for two seconds.
type shardStatus struct {
	svc *Service

	mu     sync.Mutex
	at     time.Time
	shards []schema.ShardState
}

// look returns the state of each shard and when it was read.
func (l *shardStatus) look(ctx context.Context) ([]schema.ShardState, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sources := l.svc.routing.shards
	if now := l.svc.now(); len(l.shards) == len(sources) && now.Sub(l.at) < stateAge {
		return l.shards, l.at
	}
	shards := make([]schema.ShardState, len(sources))
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for i, src := range sources {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, statePatience)
			defer cancel()
			shards[i] = l.shard(ctx, src.Store)
			return nil
		})
	}
	_ = group.Wait() // each shard has its own error
	l.shards, l.at = shards, l.svc.now()
	return l.shards, l.at
}

// shard reads the state of one shard.
func (l *shardStatus) shard(ctx context.Context, store *kvstore.Shard) schema.ShardState {
	s := schema.ShardState{Shard: store.Names.Shard}
	if err := l.fill(ctx, store, &s); err != nil {
		l.svc.log.Debug().Err(err).Int(logkey.Shard, s.Shard).Msg("state of the shard not read")
		return schema.ShardState{Shard: s.Shard, Error: err.Error()}
	}
	return s
}

func (l *shardStatus) fill(ctx context.Context, store *kvstore.Shard, s *schema.ShardState) error {
	js := l.svc.js
	// The watermark is read first: events folded during the other reads make the count of waiting ones too high,
	// never too low.
	mark, _, err := store.Checkpoints.Watermark(ctx)
	derived := errors.Is(err, kvstore.ErrStreamMissing) // the bucket is lost, and is recreated
	if err != nil && !derived && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
		return err
	}
	usage, err := store.Usage(ctx)
	if err != nil {
		return err
	}
	if mark.Incarnation != usage.Incarnation {
		mark = kvstore.Watermark{} // of another log, or none yet: all events wait
	}
	waiting, err := eventlog.Behind(ctx, js, store.Names, mark.Position.Stream)
	if err != nil {
		return err
	}
	kept, err := store.Kept(ctx)
	if err != nil && !derived {
		return err
	}
	if s.Worker, err = kvstore.Holder(ctx, js, kvstore.FoldLease(store.Names)); err != nil {
		return err
	}
	s.Position, s.FoldedAt, s.Last, s.Totals = mark.Position.Stream, mark.Updated, usage.Last, mark.Totals
	s.LogBytes, s.LogMessages, s.LimitBytes = usage.Bytes, usage.Messages, usage.Limit
	if s.QuotaBytes = store.Quota(); s.QuotaBytes == kvstore.UnlimitedQuota {
		s.QuotaBytes, s.LimitBytes = 0, 0
	}
	s.SegmentBytes, s.CheckpointBytes, s.BlobBytes = kept.Segments, kept.Checkpoints, kept.Blobs
	if s.Waiting = waiting.Events; s.Waiting > 0 && !waiting.Stored.IsZero() {
		s.WaitingSince = schema.FormatTime(waiting.Stored)
		s.WaitingMS = max(l.svc.now().Sub(waiting.Stored).Milliseconds(), 0)
	}
	return nil
}

// State is the state of the fleet, up to two seconds old. The verb fleet answers with it. A shard that cannot be read
// has its error.
func (s *Service) State(ctx context.Context) *schema.FleetReply {
	shards, at := s.shards.look(ctx)
	runs := s.liveRuns.Counts()
	settings := s.cfg.Settings()
	reply := &schema.FleetReply{
		Fleet: s.cfg.Fleet, Replica: s.cfg.Name, At: schema.FormatTime(at), Shards: shards, Proven: s.cfg.Proof != nil,
		Runs:     schema.FleetRuns{Live: runs.Live, Claimable: runs.Claimable, Quarantined: runs.Quarantined, Gapped: runs.Gapped, Overdue: s.cfg.Heartbeats.OverdueRuns()},
		Recovery: s.stats.Recovery.last(), DurableMS: s.durableMS(len(shards)), SilenceMS: settings.Silence().Milliseconds(),
	}
	if s.cfg.Webhook != nil {
		reply.Webhook = s.cfg.Webhook()
	}
	if signer := s.keys.Signer(); signer != nil {
		reply.Signer = signer.Name
	}
	return reply
}

// durableMS is the shortest of the latest renewals of this process's leases, 0 for none. Others may include a wait
// for each other: all leases are in one stream.
func (s *Service) durableMS(shards int) float64 {
	if s.cfg.Worker == nil {
		return 0
	}
	least := time.Duration(0)
	for shard := range shards {
		if f := s.cfg.Worker(shard); f != nil {
			if took := f.LeaseRenewal(); took > 0 && (least == 0 || took < least) {
				least = took
			}
		}
	}
	return float64(least) / float64(time.Millisecond)
}

// fleet answers with the state of the fleet.
func (s *Service) fleet(ctx context.Context, _ *task, _ *schema.FleetRequest) (*schema.FleetReply, error) {
	return s.State(ctx), nil
}
