package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/kvstore"

	"github.com/waymarkio/waymark/schema"
)

// replicasAim is the lease of a fold worker, in us: what a killed daemon leaves is folded on within it.
const replicasAim = 5_000_000

// replicasRuns are enough that every shard has some.
const replicasRuns = 64

// replicasCase is how long checkpoints stand still when a daemon is killed.
func replicasCase() Case {
	return Case{
		Name: "replicas",
		About: "1, 2 and 3 daemons share the shards and one is killed: from the kill to the next checkpoint of each shard that it " +
			"folded. A lone one is started again at once.",
		Uses: []string{"runs", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			runs, shards := o.Pick(o.Runs, replicasRuns, 16), o.Pick(o.Shards, 6, 2)
			var list []Variant
			for _, daemons := range o.Span(o.Daemons, []int{1, 2, 3}, []int{2}) {
				list = append(list, Variant{
					Parameters: map[string]any{"daemons": daemons, "shards": shards, "runs": runs},
					World:      func(s *WorldSpec) { s.Shards, s.Daemons = shards, daemons },
					Setup:      func(ctx context.Context, w *World) (*Trial, error) { return replicasTrial(ctx, w, runs) },
				})
			}
			return list
		},
	}
}

// replicas is one variant.
type replicas struct {
	w       *World
	players []*Player
	watch   *FoldWatch
	// alive are the daemons that were not killed.
	alive []int
	// kept are the times of shards whose daemon lives, from the kill to the same checkpoint.
	kept []time.Duration
}

func replicasTrial(ctx context.Context, w *World, runs int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	r := &replicas{w: w}
	for i := range w.Daemons() {
		r.alive = append(r.alive, i)
	}
	if r.watch, err = w.WatchFold(); err != nil {
		return nil, err
	}
	if r.players, err = StartRuns(ctx, f, "run", runs, FullTurn); err != nil {
		return nil, err
	}
	return &Trial{
		Rounds: min(w.Options.Rounds, 3),
		Ours:   r.round,
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(r.players...)) },
		Finish: func(_ context.Context, res *Result) error {
			if len(r.kept) > 0 {
				var us []float64
				for _, d := range r.kept {
					us = append(us, float64(d)/float64(time.Microsecond))
				}
				res.Set("other_shards_p50_us", *median(us))
			}
			res.AtMost("us from the kill to the checkpoints of the shards left behind, p50", res.Ours.P50, replicasAim)
			return nil
		},
	}, nil
}

// round waits until the shards are shared, kills a daemon, has every run publish, and takes the time of the first
// checkpoint in each shard.
func (r *replicas) round(ctx context.Context, _ int) (Sample, error) {
	if err := r.awaitShared(ctx); err != nil {
		return Sample{}, err
	}
	holders, err := r.holders(ctx)
	if err != nil {
		return Sample{}, err
	}
	victim, dead := r.alive[0], fmt.Sprintf("daemon-%d", r.alive[0])
	killed := time.Now()
	if err := r.w.KillDaemon(victim); err != nil {
		return Sample{}, err
	}
	r.alive = r.alive[1:]
	if len(r.alive) == 0 {
		if err := r.another(ctx); err != nil {
			return Sample{}, err
		}
	}
	s, err := Together(ctx, turners(r.players), 1)
	if err != nil {
		return s, err
	}
	s.Latencies, s.Elapsed = nil, 0 // those of the publishes say nothing about the daemons
	first, err := r.checkpoints(ctx, len(holders), killed)
	if err != nil {
		return s, err
	}
	for shard, took := range first {
		switch {
		case took == 0: // no run is in it
		case holders[shard] == dead:
			s.Latencies = append(s.Latencies, took)
			s.Elapsed = max(s.Elapsed, took)
		default:
			r.kept = append(r.kept, took)
		}
	}
	s.Boundaries = int64(len(s.Latencies))
	if s.Boundaries == 0 {
		return s, fmt.Errorf("%w: the daemon that was killed had no shard with a run: %v", ErrOptions, holders)
	}
	if len(r.alive) < r.w.Spec.Daemons {
		err = r.another(ctx)
	}
	return s, err
}

// checkpoints waits in each shard for what one run has published, and returns how long after a moment it is in a checkpoint:
// what else the shard has comes in the same batch or the next. It is 0 for a shard without a run.
func (r *replicas) checkpoints(ctx context.Context, shards int, since time.Time) ([]time.Duration, error) {
	first := make([]time.Duration, shards)
	chosen := make([]bool, shards)
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range r.players {
		shard := schema.ShardOf(p.Run.ID(), r.w.Settings.Shards)
		if chosen[shard] {
			continue
		}
		chosen[shard] = true
		id, sequence := p.Run.ID(), p.Run.Head().Sequence
		group.Go(func() error {
			err := r.watch.Await(ctx, id, sequence)
			first[shard] = time.Since(since)
			return err
		})
	}
	return first, group.Wait()
}

// another starts one more daemon.
func (r *replicas) another(ctx context.Context) error {
	r.alive = append(r.alive, r.w.Daemons())
	return r.w.StartDaemon(ctx)
}

func (r *replicas) holders(ctx context.Context) ([]string, error) {
	list := make([]string, len(r.w.shards))
	for i, shard := range r.w.shards {
		var err error
		if list[i], err = kvstore.Holder(ctx, r.w.JS, kvstore.FoldLease(shard.Names)); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// awaitShared waits until the daemons that live fold all shards, as evenly as they can.
func (r *replicas) awaitShared(ctx context.Context) error {
	least, most := len(r.w.shards)/len(r.alive), (len(r.w.shards)+len(r.alive)-1)/len(r.alive)
	return r.w.Await(ctx, readyWait, "the daemons sharing the shards", func() (bool, error) {
		total := int64(0)
		for _, i := range r.alive {
			n, err := r.w.Leading(i)
			if err != nil || n < int64(least) || n > int64(most) {
				return false, err
			}
			total += n
		}
		return total == int64(len(r.w.shards)), nil
	})
}
