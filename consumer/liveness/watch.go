package liveness

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
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

// Run keeps the live runs up to date until ctx ends and returns nil. A broken watch begins again, and delivers
// everything again.
func (r *LiveRuns) Run(ctx context.Context) error {
	var group errgroup.Group
	for i, store := range r.stores {
		group.Go(func() error {
			r.keepWatching(ctx, i, store)
			return nil
		})
	}
	return group.Wait()
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
