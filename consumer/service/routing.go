package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// routes tell which shards can hold which runs. They never change: new routes replace them.
type routes struct {
	// generations are the numbers of shards that runs were spread over, oldest first.
	generations []int
	shards      []*reader.Source
}

// of returns the shards that can hold a run, the most probable first.
func (p *routes) of(run string) []*reader.Source {
	shards := schema.ShardsOf(run, p.generations)
	list := make([]*reader.Source, len(shards))
	for i, shard := range shards {
		list[i] = p.shards[shard]
	}
	return list
}

// routing finds the shards that hold a run, and reads runs there. The routes change while the service runs.
type routing struct {
	fleet string
	// actor is the source of the barriers.
	actor  string
	js     jetstream.JetStream
	now    func() time.Time
	log    zerolog.Logger
	stats  *reader.Stats
	reader *reader.Reader
	// refresh is [Config.Refresh].
	refresh func(ctx context.Context, after time.Time) error
	// timeout is [Config.Timeout].
	timeout time.Duration
	folded  foldedSince
	current atomic.Pointer[routes]

	// mu guards changes of the routes.
	mu sync.Mutex
	// tend begins the background work for a shard while the service runs; nil otherwise.
	tend func(*reader.Source)
}

func newRouting(cfg *Config, js jetstream.JetStream, keys *keyring.Ring, stats *reader.Stats, now func() time.Time, log zerolog.Logger) *routing {
	rt := &routing{fleet: cfg.Fleet, actor: cfg.Name, js: js, now: now, log: log, stats: stats, refresh: cfg.Refresh, timeout: cfg.Timeout}
	rt.reader = reader.New(js, cfg.Fleet, keys, rt.of, stats, log)
	rt.current.Store(new(routes))
	return rt
}

// of returns the shards that can hold a run, the most probable first.
func (rt *routing) of(run string) []*reader.Source { return rt.current.Load().of(run) }

// shards returns all shards, in the order of their numbers.
func (rt *routing) shards() []*reader.Source { return rt.current.Load().shards }

// place replaces the routes, as [Service.Place].
func (rt *routing) place(generations []int, added ...*kvstore.Shard) error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	next := &routes{generations: slices.Clone(generations), shards: slices.Clone(rt.shards())}
	had := len(next.shards)
	for _, shard := range added {
		if want := schema.NamesOf(rt.fleet, len(next.shards)); shard.Names != want {
			return fmt.Errorf("%w: shard %d is %s, want %s", ErrConfig, len(next.shards), shard.Names.EventStream(), want.EventStream())
		}
		next.shards = append(next.shards, &reader.Source{Store: shard, Barrier: reader.NewBarrier(rt.js, shard, rt.actor, rt.now, rt.log, rt.stats)})
	}
	for _, n := range generations {
		if n < 1 || n > len(next.shards) {
			return fmt.Errorf("%w: Generations names %d shards, %d were given", ErrConfig, n, len(next.shards))
		}
	}
	if rt.tend != nil {
		for _, src := range next.shards[had:] {
			rt.tend(src)
		}
	}
	rt.current.Store(next)
	return nil
}

// tendWith begins the background work for all shards, including later ones, or ends it with nil.
func (rt *routing) tendWith(tend func(*reader.Source)) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.tend = tend; tend != nil {
		for _, src := range rt.shards() {
			tend(src)
		}
	}
}

// find reads the run from the first of its shards that has it, without proof. An empty read means that none showed
// it.
func (rt *routing) find(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := rt.reader.Find(ctx, rt.of(run), run, want)
	return rt.notErased(ctx, run, r, err)
}

// proven is [reader.Reader.Proven] in all shards that can hold the run. Before it reports that there is none it makes
// sure that it knows all shards.
func (rt *routing) proven(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := rt.provenAnywhere(ctx, run, want)
	return rt.notErased(ctx, run, r, err)
}

// provenAnywhere is [routing.proven] without the check whether the run was removed.
func (rt *routing) provenAnywhere(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	asked := rt.now()
	for {
		p := rt.current.Load()
		r, err := rt.reader.Proven(ctx, p.of(run), run, want)
		if !errors.Is(err, reader.ErrNoRun) || rt.refresh == nil {
			return r, err
		}
		if err := rt.refresh(ctx, asked); err != nil {
			return nil, fmt.Errorf("run %s: %w: which shards can hold it is not known: %w", run, eventlog.ErrStale, err)
		}
		if rt.current.Load() == p {
			return r, err
		}
	}
}

// notErased returns an error for a read of a run that was removed, or is being removed: its remaining data must not
// be sent.
func (rt *routing) notErased(ctx context.Context, run string, r *reader.Snapshot, err error) (*reader.Snapshot, error) {
	var bad *reader.Damaged
	switch {
	case err == nil && r != nil && (r.Marked || r.Head.Status == schema.StatusErased):
	case err == nil, !errors.Is(err, reader.ErrNoRun) && !errors.As(err, &bad):
		return r, err
	}
	record, _, _, gerr := rt.erasure(ctx, run)
	switch {
	case errors.Is(gerr, kvstore.ErrNotFound):
		return r, err // a forged tombstone
	case gerr != nil:
		return nil, gerr
	case record.RemovedAt == "" && r != nil && r.Head.Status != schema.StatusErased && (!r.Marked || !record.Decided()):
		return r, err // an order without its tombstone decides nothing
	}
	return nil, Erased(record)
}

// stays refuses a point of a run whose removal is being decided: a new fork must know whether its base remains.
func (rt *routing) stays(ctx context.Context, run string) error {
	record, _, _, err := rt.erasure(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case record.RemovedAt != "":
		return Erased(record)
	default:
		return schema.Fail(schema.CodeUnavailable, "Ask again: the run is then removed, or kept.", "the removal of run %s, asked by %s, is being decided", run, record.By)
	}
}

// erasure returns the record of a run's removal, and the shard that has it.
func (rt *routing) erasure(ctx context.Context, run string) (*schema.Erasure, schema.Revision, *reader.Source, error) {
	for _, src := range rt.of(run) {
		record, rev, _, err := src.Store.Erasures.Get(ctx, run)
		if !errors.Is(err, kvstore.ErrNotFound) {
			return record, rev, src, err
		}
	}
	return nil, 0, nil, fmt.Errorf("erasure of run %s: %w", run, kvstore.ErrNotFound)
}
