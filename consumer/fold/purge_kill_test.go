package fold_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// freeLease lets the next fold worker begin at once.
func (w *world) freeLease() {
	w.TB.Helper()
	kv, err := w.JS.KeyValue(w.TB.Context(), schema.LeaseBucket)
	require.NoError(w.TB, err)
	require.NoError(w.TB, kv.Purge(w.TB.Context(), kvstore.FoldLease(w.Names)))
}

// steps of a fold worker by which it changes something, in the order in which it takes them with a segment.
func (w *world) stepPrefixes() []string {
	return []string{
		"$KV." + w.Names.SegmentBucket(), "$KV." + w.Names.CheckpointBucket(), "$JS.API.STREAM.PURGE.", "$KV." + schema.LeaseBucket + ".purged.",
	}
}

// A fold worker that dies before or after any of its writes leaves a run that the next one folds, seals and purges whole.
func TestWorker_DiesAtAnyStep_LosesNothing(t *testing.T) {
	t.Parallel()
	every := int64(2)
	if testing.Short() {
		every = 12
		t.Log("short: each twelfth write instead of each second")
	}
	for _, when := range []string{"before", "after"} {
		t.Run(when+" a write", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for k := int64(1); k <= 60; k += every {
				d := &foldtest.Tap{Prefixes: w.stepPrefixes(), After: when == "after"}
				var n atomic.Int64
				d.Set(func(string) {
					if n.Add(1) == k {
						d.Dead.Store(true)
					}
				})
				cfg := foldtest.Hasty()
				cfg.Holder = fmt.Sprintf("worker-%d-a", k)
				w.freeLease()
				_, end := w.FoldTapped(cfg, d)
				x := w.Writer(fmt.Sprintf("run-%d", k))
				x.Start()
				for range 6 {
					x.TurnOf(900)
				}
				x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
				died := func() bool { return d.Dead.Load() }
				require.Eventually(t, func() bool { return died() || len(w.Log(x.Run.Run)) == 1 }, time.Minute, 10*time.Millisecond)
				d.Dead.Store(true)
				w.freeLease()
				cfg.Holder = fmt.Sprintf("worker-%d-b", k)
				f, stop := w.Fold(cfg)
				c := w.AwaitPurged(x)
				w.RequireWhole(x, c)
				require.Len(t, w.Log(x.Run.Run), 1)
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
func TestWorker_PausedAtAnyStep_HarmsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a fold worker is paused at each of its steps")
	}
	t.Parallel()
	w := newWorld(t)
	for i, prefix := range w.stepPrefixes() {
		for _, nth := range []int64{1, 2, 4} {
			run := fmt.Sprintf("run-%d-%d", i, nth)
			t.Run(fmt.Sprintf("%s %d", strings.TrimPrefix(prefix, "$"), nth), func(t *testing.T) {
				d := &foldtest.Tap{Prefixes: []string{prefix}}
				paused, goOn := make(chan struct{}), make(chan struct{})
				var n atomic.Int64
				d.Set(func(string) {
					if n.Add(1) == nth {
						close(paused)
						<-goOn
					}
				})
				cfg := foldtest.Hasty()
				cfg.Holder = "older-" + run
				w.freeLease()
				older, _ := w.FoldTapped(cfg, d)
				x := w.Writer(run)
				x.Start()
				for range 6 {
					x.TurnOf(900)
				}
				require.Eventually(t, func() bool {
					select {
					case <-paused:
						return true
					default: // a fold worker purges and marks as often as it comes to it
						return nth > 1 && len(w.Log(run)) < 8
					}
				}, time.Minute, 10*time.Millisecond)
				w.freeLease()
				cfg.Holder = "newer-" + run
				f, stop := w.Fold(cfg)
				for range 6 {
					x.TurnOf(900)
				}
				c := w.AwaitPurged(x)
				w.RequireWhole(x, c)
				close(goOn)
				for range 6 {
					x.TurnOf(900)
				}
				x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
				w.RequireWhole(x, w.AwaitPurged(x))
				for _, one := range []*fold.Worker{older, f} {
					require.Zero(t, one.Stats().Purge.ProofsFailed.Load())
					require.Zero(t, one.Stats().Regressions.Load())
				}
				stop()
				d.Dead.Store(true)
			})
		}
	}
}
