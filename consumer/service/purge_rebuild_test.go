package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A lost checkpoint bucket comes back from segments and what is left of the log: of runs that go on, and of runs that
// have ended and left one event.
func TestALostCheckpointBucketComesBackThoughTheLogWasPurged(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	cfg := hasty()
	_, stop := w.fold(cfg)
	var writers []*writer
	for i := range 6 {
		x := w.writer(fmt.Sprintf("run-%d", i))
		x.start()
		for range 6 {
			x.turnOf(900)
		}
		if i%2 == 0 {
			x.publish(&schema.RunEndedData{Status: "completed"}, 0)
		}
		writers = append(writers, x)
	}
	before := make(map[string]*schema.Checkpoint)
	for _, x := range writers {
		before[x.run.Run] = w.awaitPurged(x)
	}
	stop()
	require.NoError(t, w.js.DeleteStream(t.Context(), "KV_"+w.names.CheckpointBucket()))
	cfg.Holder = "worker-2"
	f, _ := w.fold(cfg)
	for _, x := range writers {
		c := w.awaitPurged(x)
		w.requireWhole(x, c)
		require.Equal(t, before[x.run.Run].Segments, c.Segments)
	}
	require.Zero(t, f.Stats().Regressions.Load())
	require.Zero(t, f.Stats().DeadLetters.Load())
	for _, x := range writers {
		if x.turn++; x.model().Status.Terminal() {
			continue
		}
		x.turnOf(900)
		w.requireWhole(x, w.awaitPurged(x))
	}
}

// A crash of the server can take a purge back, all of it or any part: what is there again is known to be sealed.
func TestEventsThatComeBackAfterTheirPurgeAreFoldedOnce(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(i, n int) bool{
		"all":              func(int, int) bool { return true },
		"the first":        func(i, _ int) bool { return i == 0 },
		"a piece":          func(i, n int) bool { return i > n/3 && i < n/2 },
		"every other":      func(i, _ int) bool { return i%2 == 0 },
		"all but the last": func(i, n int) bool { return i < n-2 },
	} {
		for _, bucketLost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, checkpoints lost: %t", name, bucketLost), func(t *testing.T) {
				t.Parallel()
				w := newDamagedWorld(t)
				cfg := hasty()
				cfg.PurgeAfter = time.Hour
				_, stop := w.fold(cfg)
				x := w.writer("run-1")
				x.start()
				for range 8 {
					x.turnOf(900)
				}
				var c *schema.Checkpoint
				require.Eventually(t, func() bool {
					var err error
					c, _, err = w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
					return err == nil && uint64(c.Position.Stream) == x.last && c.Segments.Count > 3
				}, time.Minute, 10*time.Millisecond)
				stop()
				// A purger leaves its mark before it purges anything.
				_, err := kvstore.NewPurgeMarks(w.js).Put(t.Context(), w.names, kvstore.Watermark{Incarnation: c.Incarnation}, 0)
				require.NoError(t, err)
				// What is left is what a purge of all that is sealed leaves, and what came back of it.
				for i, rec := range x.acked {
					if rec.Stream <= c.Segments.Last.Stream && rec.Stream < c.Position.Stream && !back(i, int(c.Segments.Events)) {
						w.deleteMsg(rec.Stream)
					}
				}
				if bucketLost {
					bucket, err := w.js.Stream(t.Context(), "KV_"+w.names.CheckpointBucket())
					require.NoError(t, err)
					require.NoError(t, w.js.DeleteStream(t.Context(), "KV_"+w.names.CheckpointBucket()))
					_, err = w.js.CreateStream(t.Context(), bucket.CachedInfo().Config)
					require.NoError(t, err)
				}
				reply, a := w.get("run-1", schema.ViewEvents)
				require.True(t, reply.Complete)
				require.Equal(t, x.model(), reply.Head)
				require.Equal(t, x.model(), a.fold(t, "run-1").Head)
				cfg = hasty()
				cfg.Holder, cfg.UncleanStart = "worker-2", true
				cfg.Linger = 200 * time.Millisecond // its purger meets the run long before the fold has counted anything
				f, _ := w.fold(cfg)
				w.requireWhole(x, w.awaitPurged(x))
				x.turnOf(900)
				w.requireWhole(x, w.awaitPurged(x))
				require.Zero(t, f.Stats().Purge.ProofsFailed.Load())
				require.Zero(t, f.Stats().DeadLetters.Load())
			})
		}
	}
}

// A checkpoint that a crash took back to before what was purged: the fold takes what is between from the segments.
func TestACheckpointOlderThanThePurgeHidesNothing(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	cfg := hasty()
	_, stop := w.fold(cfg)
	x := w.writer("run-1")
	x.start()
	x.turnOf(900)
	older := w.awaitPurged(x)
	mark, _, err := w.shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	for range 8 {
		x.turnOf(900)
	}
	w.awaitPurged(x)
	stop()
	_, rev, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	_, err = w.shard.Checkpoints.Put(t.Context(), older, rev)
	require.NoError(t, err)
	_, rev, err = w.shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	_, err = w.shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	cfg.Holder = "worker-2"
	f, _ := w.fold(cfg)
	w.requireWhole(x, w.awaitPurged(x))
	require.Zero(t, f.Stats().DeadLetters.Load(), "what is between was not taken for a hole")
	require.Zero(t, f.Stats().Regressions.Load())
}

// The walk of the next reign begins at the mark: ended runs below it, with one event each, are not looked at again.
func TestTheMarkGoesUpToTheEndOfALogThatWasLookedThrough(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	cfg := hasty()
	_, stop := w.fold(cfg)
	runs := 30
	if testing.Short() {
		runs = 6
		t.Log("short: 6 of 30 runs")
	}
	for i := range runs {
		x := w.writer(fmt.Sprintf("run-%d", i))
		x.start()
		x.turnOf(900)
		x.publish(&schema.RunEndedData{Status: "completed"}, 0)
		w.awaitPurged(x)
	}
	last := func() uint64 {
		s, err := w.js.Stream(t.Context(), w.names.EventStream())
		require.NoError(t, err)
		return s.CachedInfo().State.LastSeq
	}()
	require.Eventually(t, func() bool {
		return uint64(w.purgeMark()) == last
	}, time.Minute, 5*time.Millisecond, "the mark goes up to the log's end")
	stop()
}

// A tail that waited long begins below the mark. The mark is set back before its segment is stored, so that no crash
// can hide it.
func TestASealOfAnOldTailSetsTheMarkBack(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	d := &tap{prefixes: []string{"$KV." + w.names.SegmentBucket()}}
	cfg := hasty()
	old := w.writer("run-old")
	first := old.start()
	_, stop := w.fold(cfg)
	x := w.writer("run-1")
	x.start()
	for range 8 {
		x.turnOf(900)
	}
	w.awaitPurged(x)
	require.Eventually(t, func() bool { return uint64(w.purgeMark()) == x.last }, time.Minute, 5*time.Millisecond, "the mark passes a tail that is too small to be sealed")
	stop()
	// The next fold worker dies before it stores the segment of the old run's tail.
	d.set(func(string) { d.dead.Store(true) })
	d.after = true
	cfg.Holder = "worker-2"
	w.freeLease()
	w.tappedFold(cfg, d)
	old.turnOf(900)
	require.Eventually(t, d.dead.Load, time.Minute, time.Millisecond)
	require.Equal(t, first, w.purgeMark())
	cfg.Holder = "worker-3"
	w.freeLease()
	w.fold(cfg)
	w.requireWhole(old, w.awaitPurged(old))
}

// purgeMark is the purger's mark, 0 before there is one.
func (w *foldWorld) purgeMark() schema.StreamSequence {
	w.tb.Helper()
	mark, _, err := kvstore.NewPurgeMarks(w.js).Get(w.tb.Context(), w.names)
	if err != nil {
		require.ErrorIs(w.tb, err, kvstore.ErrNotFound)
	}
	return mark.Position.Stream
}

// What the log has no more is in the segments alone. One that is lost does not take those behind it along.
func TestSegmentsBehindALostOneAreKeptWhoeverFoldsTheRunAnew(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *foldWorld){
		"lost": func(w *foldWorld) {},
		"damaged": func(w *foldWorld) {
			require.NoError(w.tb, w.shard.Segments.Create(w.tb.Context(), "run-1", 2, []byte("nothing of use")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFoldWorld(t)
			_, stop := w.fold(hasty())
			x := w.writer("run-1")
			x.start()
			for range 12 {
				x.turnOf(900)
			}
			c := w.awaitPurged(x)
			require.Greater(t, c.Segments.Count, 4)
			stop()
			kept := make(map[int][]byte)
			for n := 3; n <= c.Segments.Count; n++ {
				stored, err := w.shard.Segments.GetFresh(t.Context(), "run-1", n)
				require.NoError(t, err)
				kept[n] = stored
			}
			w.loseSegment("run-1", 2)
			damage(w)
			_, rev, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
			require.NoError(t, err)
			require.NoError(t, w.shard.Checkpoints.Delete(t.Context(), "run-1", rev))

			f, _ := w.fold(hasty())
			for range 12 {
				x.turnOf(900)
			}
			require.Eventually(t, func() bool { return f.Stats().SealsRefused.Load() > 0 }, time.Minute, 5*time.Millisecond,
				"what is not sealed is said")
			require.Eventually(t, func() bool { return f.Stats().Position.Load() >= x.last }, time.Minute, 5*time.Millisecond)
			for n, was := range kept {
				stored, err := w.shard.Segments.GetFresh(t.Context(), "run-1", n)
				require.NoError(t, err, "segment %d", n)
				require.Equal(t, was, stored, "segment %d", n)
			}
		})
	}
}
