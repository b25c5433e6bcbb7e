package service_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// tappedFold starts a fold worker all of whose requests go through a tap, and returns it with the function that stops it.
func (w *foldWorld) tappedFold(cfg fold.Config, d *tap) (*fold.Worker, func()) {
	w.tb.Helper()
	cfg.Fleet, cfg.LeaseTTL, cfg.ReconcileEvery = "default", cmp.Or(cfg.LeaseTTL, time.Second), 20*time.Millisecond
	nc := w.server.Conn(w.tb, nats.SetCustomDialer(d), nats.MaxReconnects(0))
	js := newJS(w.tb, nc)
	settings, _, err := kvstore.NewFleets(w.js).Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	shard, err := kvstore.OpenShard(js, settings, 0, cfg.Holder)
	require.NoError(w.tb, err)
	f, err := fold.New(cfg, nc, js, shard, time.Now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(w.tb.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(w.tb, <-done)
	})
	w.tb.Cleanup(stop)
	return f, stop
}

// freeLease lets the next fold worker begin at once.
func (w *foldWorld) freeLease() {
	w.tb.Helper()
	kv, err := w.js.KeyValue(w.tb.Context(), schema.LeaseBucket)
	require.NoError(w.tb, err)
	require.NoError(w.tb, kv.Purge(w.tb.Context(), kvstore.FoldLease(w.names)))
}

// steps of a fold worker by which it changes something, in the order in which it takes them with a segment.
func (w *foldWorld) stepPrefixes() []string {
	return []string{
		"$KV." + w.names.SegmentBucket(), "$KV." + w.names.CheckpointBucket(), "$JS.API.STREAM.PURGE.", "$KV." + schema.LeaseBucket + ".purged.",
	}
}

// A fold worker that dies before or after any of its writes leaves a run that the next one folds, seals and purges whole.
func TestAWorkerThatDiesAtAnyStepLosesNothing(t *testing.T) {
	t.Parallel()
	every := int64(2)
	if testing.Short() {
		every = 12
		t.Log("short: each twelfth write instead of each second")
	}
	for _, when := range []string{"before", "after"} {
		t.Run(when+" a write", func(t *testing.T) {
			t.Parallel()
			w := newFoldWorld(t)
			for k := int64(1); k <= 60; k += every {
				d := &tap{prefixes: w.stepPrefixes(), after: when == "after"}
				var n atomic.Int64
				d.set(func(string) {
					if n.Add(1) == k {
						d.dead.Store(true)
					}
				})
				cfg := hasty()
				cfg.Holder = fmt.Sprintf("worker-%d-a", k)
				w.freeLease()
				_, end := w.tappedFold(cfg, d)
				x := w.writer(fmt.Sprintf("run-%d", k))
				x.start()
				for range 6 {
					x.turnOf(900)
				}
				x.publish(&schema.RunEndedData{Status: "completed"}, 0)
				died := func() bool { return d.dead.Load() }
				require.Eventually(t, func() bool { return died() || len(w.log(x.run.Run)) == 1 }, time.Minute, 10*time.Millisecond)
				d.dead.Store(true)
				w.freeLease()
				cfg.Holder = fmt.Sprintf("worker-%d-b", k)
				f, stop := w.fold(cfg)
				c := w.awaitPurged(x)
				w.requireWhole(x, c)
				require.Len(t, w.log(x.run.Run), 1)
				require.Zero(t, f.Stats().Purge.ProofsFailed.Load())
				require.Zero(t, f.Stats().Regressions.Load())
				stop()
				end() // what is left of the dead one only takes time from here on
			}
		})
	}
}

// A fold worker that was stopped at any of its writes, and goes on when another has the shard, changes nothing that the other
// relies on.
func TestAWorkerThatWasPausedAtAnyStepHarmsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a fold worker is paused at each of its steps")
	}
	t.Parallel()
	w := newFoldWorld(t)
	for i, prefix := range w.stepPrefixes() {
		for _, nth := range []int64{1, 2, 4} {
			run := fmt.Sprintf("run-%d-%d", i, nth)
			t.Run(fmt.Sprintf("%s %d", strings.TrimPrefix(prefix, "$"), nth), func(t *testing.T) {
				d := &tap{prefixes: []string{prefix}}
				paused, goOn := make(chan struct{}), make(chan struct{})
				var n atomic.Int64
				d.set(func(string) {
					if n.Add(1) == nth {
						close(paused)
						<-goOn
					}
				})
				cfg := hasty()
				cfg.Holder = "older-" + run
				w.freeLease()
				older, _ := w.tappedFold(cfg, d)
				x := w.writer(run)
				x.start()
				for range 6 {
					x.turnOf(900)
				}
				require.Eventually(t, func() bool {
					select {
					case <-paused:
						return true
					default: // a fold worker purges and marks as often as it comes to it
						return nth > 1 && len(w.log(run)) < 8
					}
				}, time.Minute, 10*time.Millisecond)
				w.freeLease()
				cfg.Holder = "newer-" + run
				f, stop := w.fold(cfg)
				for range 6 {
					x.turnOf(900)
				}
				c := w.awaitPurged(x)
				w.requireWhole(x, c)
				close(goOn)
				for range 6 {
					x.turnOf(900)
				}
				x.publish(&schema.RunEndedData{Status: "completed"}, 0)
				w.requireWhole(x, w.awaitPurged(x))
				for _, one := range []*fold.Worker{older, f} {
					require.Zero(t, one.Stats().Purge.ProofsFailed.Load())
					require.Zero(t, one.Stats().Regressions.Load())
				}
				stop()
				d.dead.Store(true)
			})
		}
	}
}
