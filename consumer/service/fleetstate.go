package service

import (
	"cmp"
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
	// stateAge is how long a state of the shards is shown again, and streamsAge an inspection of the streams.
	stateAge, streamsAge = 2 * time.Second, time.Second
	// statePatience bounds inspecting the streams, and then reading the state of one shard or the last backup.
	statePatience = 2 * time.Second
	// shardsAtOnce bounds the shards that are read concurrently.
	shardsAtOnce = 8
)

// shardStatus reads the state of a fleet's shards from their streams and buckets. It needs no fold worker, so that it
// also reports a shard that no process folds. Looking costs about eight small requests a shard, whatever is stored, and
// the result is shown again for two seconds.
type shardStatus struct {
	svc *Service

	mu   sync.Mutex
	last sighting

	// The streams have a lock of their own: a probe of readiness does not wait for the shards' states.
	inspecting  sync.Mutex
	streams     []kvstore.Inspected
	inspectedAt time.Time
}

// sighting is what a look at the fleet's shards found.
type sighting struct {
	at     time.Time
	shards []schema.ShardState
	// spent are the tokens of the shards, if the fleet has a budget.
	spent []kvstore.Spent
	saved time.Time
}

// inspect returns the fleet's streams.
func (l *shardStatus) inspect(ctx context.Context) []kvstore.Inspected {
	l.inspecting.Lock()
	defer l.inspecting.Unlock()
	if l.streams == nil || l.svc.now().Sub(l.inspectedAt) >= streamsAge {
		ctx, cancel := context.WithTimeout(ctx, statePatience)
		defer cancel()
		l.streams = kvstore.Inspect(ctx, l.svc.js, l.svc.routing.shards[0].Store.Settings())
		l.inspectedAt = l.svc.now()
	}
	return l.streams
}

// look returns the state of each shard, and when they were read.
func (l *shardStatus) look(ctx context.Context) sighting {
	l.mu.Lock()
	defer l.mu.Unlock()
	sources := l.svc.routing.shards
	if now := l.svc.now(); len(l.last.shards) == len(sources) && now.Sub(l.last.at) < stateAge {
		return l.last
	}
	s, list := sighting{shards: make([]schema.ShardState, len(sources)), spent: make([]kvstore.Spent, len(sources))}, l.inspect(ctx)
	streams := make(map[string]*kvstore.Inspected, len(list))
	for i := range list {
		streams[list[i].Stream] = &list[i]
	}
	var group errgroup.Group
	group.SetLimit(shardsAtOnce)
	for i, src := range sources {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, statePatience)
			defer cancel()
			s.shards[i] = l.shard(ctx, src.Store, streams, &s.spent[i])
			return nil
		})
	}
	patience, cancel := context.WithTimeout(ctx, statePatience)
	defer cancel()
	s.saved = cmp.Or(l.saved(patience, streams[sources[0].Store.Names.EventStream()]), l.last.saved)
	_ = group.Wait() // each shard has its own error
	s.at = l.svc.now()
	l.last = s
	return s
}

// saved is when the last backup began, or else when the fleet's first log was made; zero if that is unknown.
func (l *shardStatus) saved(ctx context.Context, log *kvstore.Inspected) time.Time {
	record, err := kvstore.LastBackup(ctx, l.svc.js, l.svc.cfg.Fleet)
	if errors.Is(err, kvstore.ErrNotFound) && log != nil && log.Info != nil {
		return log.Info.Created
	}
	return schema.ParseTime(record.Began)
}

// shard reads the state of one shard.
func (l *shardStatus) shard(ctx context.Context, store *kvstore.Shard, streams map[string]*kvstore.Inspected, spent *kvstore.Spent) schema.ShardState {
	s := schema.ShardState{Shard: store.Names.Shard}
	if err := l.fill(ctx, store, streams, &s, spent); err != nil {
		l.svc.log.Debug().Err(err).Int(logkey.Shard, s.Shard).Msg("state of the shard not read")
		return schema.ShardState{Shard: s.Shard, Error: err.Error()}
	}
	return s
}

func (l *shardStatus) fill(ctx context.Context, store *kvstore.Shard, streams map[string]*kvstore.Inspected, s *schema.ShardState, spent *kvstore.Spent) error {
	js, names := l.svc.js, store.Names
	usage := make(map[string]kvstore.Usage, 4)
	for _, name := range []string{names.EventStream(), "KV_" + names.SegmentBucket(), "KV_" + names.CheckpointBucket(), "OBJ_" + schema.BlobBucket(names.Fleet)} {
		switch i := streams[name]; {
		case i.Info != nil:
			usage[name] = kvstore.UsageOf(i.Info)
		case i.Truth || !errors.Is(i.Err, kvstore.ErrStreamMissing): // a derived stream is created again
			return i.Err
		}
	}
	log := usage[names.EventStream()]
	mark, _, err := store.Checkpoints.Watermark(ctx)
	if err != nil && !errors.Is(err, kvstore.ErrStreamMissing) && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
		return err
	}
	if mark.Incarnation != log.Incarnation {
		mark = kvstore.Watermark{} // of another log, or none yet: all events wait
	}
	// Events folded after the watermark was read make the count of waiting ones too high, never too low.
	waiting, err := eventlog.Behind(ctx, js, names, mark.Position.Stream)
	if err != nil {
		return err
	}
	if s.Worker, err = kvstore.Holder(ctx, js, kvstore.FoldLease(names)); err != nil {
		return err
	}
	s.Position, s.Last, s.Totals = mark.Position.Stream, max(log.Last, mark.Position.Stream), mark.Totals
	s.LogBytes, s.LimitBytes = log.Bytes, log.Limit
	if s.QuotaBytes = store.Settings().QuotaBytes; s.QuotaBytes == kvstore.UnlimitedQuota {
		s.QuotaBytes, s.LimitBytes = 0, 0
	}
	s.SegmentBytes, s.CheckpointBytes = usage["KV_"+names.SegmentBucket()].Bytes, usage["KV_"+names.CheckpointBucket()].Bytes
	s.BlobBytes = usage["OBJ_"+schema.BlobBucket(names.Fleet)].Bytes / int64(len(l.svc.routing.shards))
	if s.Waiting = waiting.Events; s.Waiting > 0 && !waiting.Stored.IsZero() {
		s.WaitingMS = max(l.svc.now().Sub(waiting.Stored).Milliseconds(), 0)
	}
	if l.svc.hasBudgets() {
		if *spent, _, err = store.Spent(ctx); err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return err
		}
	}
	return nil
}

// Streams are those of the fleet, up to a second old.
func (s *Service) Streams(ctx context.Context) []kvstore.Inspected { return s.shards.inspect(ctx) }

// Saved is when the fleet's last backup began; without one, when its first log was made; zero if that is unknown. It is
// as old as [Service.State].
func (s *Service) Saved(ctx context.Context) time.Time { return s.shards.look(ctx).saved }

// State is the state of the fleet, up to three seconds old. The verb fleet answers with it. A shard that cannot be read
// has its error.
func (s *Service) State(ctx context.Context) *schema.FleetReply {
	seen := s.shards.look(ctx)
	runs := s.liveRuns.Counts()
	settings := s.cfg.Settings()
	reply := &schema.FleetReply{
		Fleet: s.cfg.Fleet, Replica: s.cfg.Name, At: schema.FormatTime(seen.at), Shards: seen.shards, Proven: s.cfg.Proof != nil,
		Runs:   schema.FleetRuns{Live: runs.Live, Claimable: runs.Claimable, Quarantined: runs.Quarantined, Paused: runs.Paused, Waiting: runs.Waiting, Gapped: runs.Gapped, Overdue: s.cfg.Heartbeats.OverdueRuns()},
		Pauses: s.liveRuns.Pauses(), Limits: s.limitStates(settings.Limits, sumSpent(seen.spent, s.now())), DurableMS: s.durableMS(len(seen.shards)), SilenceMS: settings.Silence().Milliseconds(),
	}
	if s.cfg.Schedules != nil {
		reply.Schedules = s.cfg.Schedules()
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
