package liveness

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// watchReread is how often the live index is read again without a known error: a watch that lagged far behind may
	// have missed a deletion.
	watchReread = 5 * time.Minute
	// watchWait and watchMaxWait bound the pause before a broken watch begins again.
	watchWait    = 50 * time.Millisecond
	watchMaxWait = 2 * time.Second
	// watchPatience bounds the beginning of a watch: a request that is lost in a reconnect gets no answer.
	watchPatience = 2 * time.Second
)

// errReread ends a watch that must begin again.
var errReread = errors.New("it is time to read the index again")

// Grow adds shards, in the order of their numbers. It may be called while Run runs, which is not synced until their
// index is here.
func (r *LiveRuns) Grow(added ...*kvstore.Shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, store := range added {
		i := len(r.shards)
		r.shards = append(r.shards, shardRuns{
			runs: make(map[string]*entry), broken: make(map[string]schema.Revision), vanished: make(map[string]struct{}),
		})
		r.stores = append(r.stores, store)
		if r.follow != nil {
			r.follow(i, store)
		}
	}
}

// Run keeps the live runs up to date until ctx ends and returns nil. A broken watch begins again, and delivers
// everything again.
func (r *LiveRuns) Run(ctx context.Context) error {
	var group errgroup.Group
	r.followWith(func(i int, store *kvstore.Shard) {
		group.Go(func() error {
			r.keepWatching(ctx, i, store)
			return nil
		})
	})
	<-ctx.Done()
	r.followWith(nil)
	return group.Wait()
}

// followWith begins to follow the shards, including later ones, or ends that with nil.
func (r *LiveRuns) followWith(follow func(int, *kvstore.Shard)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.follow = follow; follow != nil {
		for i, store := range r.stores {
			follow(i, store)
		}
	}
}

func (r *LiveRuns) keepWatching(ctx context.Context, i int, store *kvstore.Shard) {
	wait := watchWait
	for ctx.Err() == nil {
		began := r.now()
		err := r.watch(ctx, i, store.Checkpoints)
		if ctx.Err() != nil || errors.Is(err, errReread) {
			continue
		}
		r.unsync(i)
		if r.now().Sub(began) > watchMaxWait {
			wait = watchWait
		}
		r.log.Warn().Err(err).Str(logkey.Fleet, store.Names.Fleet).Int(logkey.Shard, i).Msg("live index not watched, trying again")
		_ = pause.For(ctx, wait) // the loop ends with ctx, too
		wait = min(2*wait, watchMaxWait)
	}
}

// watch follows the live index of one shard.
func (r *LiveRuns) watch(ctx context.Context, shard int, cps *kvstore.Checkpoints) error {
	begin, cancelBegin := context.WithTimeout(ctx, watchPatience)
	defer cancelBegin()
	w, err := cps.WatchLive(begin)
	if err != nil {
		return err
	}
	defer w.Close(ctx)
	again, cancel := context.WithTimeoutCause(ctx, watchReread, errReread)
	defer cancel()
	r.begin(shard)
	for {
		e, synced, err := w.Next(again)
		switch {
		case err != nil && ctx.Err() == nil && again.Err() != nil:
			return errReread
		case err != nil:
			return err
		case synced:
			r.sync(shard)
		default:
			r.apply(shard, &e)
		}
	}
}

// suspectTwins searches for a run, whose entry has just arrived, in the other shards: then it began twice. Executors
// with correct settings cannot cause that, so it is an alarm. Under r.mu.
func (r *LiveRuns) suspectTwins(e *entry) {
	for i := range r.shards {
		other := r.shards[i].runs[e.live.Run]
		if i == e.shard || other == nil {
			continue
		}
		if _, known := r.twins[e.live.Run]; !known {
			r.log.Error().Str(logkey.Run, e.live.Run).Ints("shards", []int{i, e.shard}).
				Strs("executors", []string{other.live.Executor, e.live.Executor}).
				Str("hint", "requests reach the run in the shard that waymark runs get names; stop the executor of the other").
				Msg("run was begun in two shards")
		}
		r.twins[e.live.Run] = struct{}{}
		return
	}
}

// parted forgets that a run is in two shards once it is not. Under r.mu, after one of its entries is gone.
func (r *LiveRuns) parted(run string) {
	if _, ok := r.twins[run]; !ok {
		return
	}
	n := 0
	for i := range r.shards {
		if _, ok := r.shards[i].runs[run]; ok {
			n++
		}
	}
	if n < 2 {
		delete(r.twins, run)
	}
}
