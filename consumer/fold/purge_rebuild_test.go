package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A lost checkpoint bucket is rebuilt from segments and the rest of the log: with active runs, and with ended runs
// that left one event.
func TestPurge_CheckpointBucketLost_Rebuilt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := foldtest.Hasty()
	_, stop := w.Fold(cfg)
	var writers []*foldtest.Writer
	for i := range 6 {
		x := w.Writer(fmt.Sprintf("run-%d", i))
		x.Start()
		for range 6 {
			x.TurnOf(900)
		}
		if i%2 == 0 {
			x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
		}
		writers = append(writers, x)
	}
	before := make(map[string]*schema.Checkpoint)
	for _, x := range writers {
		before[x.Run.Run] = w.AwaitPurged(x)
	}
	stop()
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
	cfg.Holder = "worker-2"
	f, _ := w.Fold(cfg)
	for _, x := range writers {
		c := w.AwaitPurged(x)
		w.RequireWhole(x, c)
		require.Equal(t, before[x.Run.Run].Segments, c.Segments)
	}
	require.Zero(t, f.Stats().Regressions.Load())
	require.Zero(t, f.Stats().DeadLetters.Load())
	for _, x := range writers {
		if x.Turn++; x.Model().Status.Terminal() {
			continue
		}
		x.TurnOf(900)
		w.RequireWhole(x, w.AwaitPurged(x))
	}
}

// A crash reset a checkpoint to before the purge: the fold reads the events in between from the segments.
func TestPurge_OlderCheckpoint_HidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := foldtest.Hasty()
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(900)
	older := w.AwaitPurged(x)
	mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	for range 8 {
		x.TurnOf(900)
	}
	w.AwaitPurged(x)
	stop()
	_, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.Put(t.Context(), older, rev)
	require.NoError(t, err)
	_, rev, err = w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	cfg.Holder = "worker-2"
	f, _ := w.Fold(cfg)
	w.RequireWhole(x, w.AwaitPurged(x))
	require.Zero(t, f.Stats().DeadLetters.Load(), "the events in between were not taken for a gap")
	require.Zero(t, f.Stats().Regressions.Load())
}

// The walk of the next term begins at the cursor: ended runs below it, with one event each, are not checked again.
func TestPurge_LogScanned_CursorReachesEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := foldtest.Hasty()
	_, stop := w.Fold(cfg)
	runs := 30
	if testing.Short() {
		runs = 6
		t.Log("short: 6 of 30 runs")
	}
	for i := range runs {
		x := w.Writer(fmt.Sprintf("run-%d", i))
		x.Start()
		x.TurnOf(900)
		x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
		w.AwaitPurged(x)
	}
	last := func() uint64 {
		s, err := w.JS.Stream(t.Context(), w.Names.EventStream())
		require.NoError(t, err)
		return s.CachedInfo().State.LastSeq
	}()
	require.Eventually(t, func() bool {
		return uint64(w.purgeMark()) == last
	}, time.Minute, 5*time.Millisecond, "the mark goes up to the log's end")
	stop()
}

// A tail that waited long begins below the cursor. The cursor is set back before its segment is stored, so that no
// crash can hide it.
func TestPurge_OldTailSealed_CursorMovesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := &foldtest.Tap{Prefixes: []string{"$KV." + w.Names.SegmentBucket()}}
	cfg := foldtest.Hasty()
	old := w.Writer("run-old")
	first := old.Start()
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	for range 8 {
		x.TurnOf(900)
	}
	w.AwaitPurged(x)
	require.Eventually(t, func() bool { return uint64(w.purgeMark()) == x.Last }, time.Minute, 5*time.Millisecond, "the mark passes a tail that is too small to be sealed")
	stop()
	// The next fold worker dies before it stores the segment of the old run's tail.
	d.Set(func(string) { d.Dead.Store(true) })
	d.After = true
	cfg.Holder = "worker-2"
	w.freeLease()
	w.FoldTapped(cfg, d)
	old.TurnOf(900)
	require.Eventually(t, d.Dead.Load, time.Minute, time.Millisecond)
	require.Equal(t, first, w.purgeMark())
	cfg.Holder = "worker-3"
	w.freeLease()
	w.Fold(cfg)
	w.RequireWhole(old, w.AwaitPurged(old))
}

// purgeMark is the purger's cursor, 0 before there is one.
func (w *world) purgeMark() schema.StreamSequence {
	w.TB.Helper()
	mark, _, err := w.Shard.PurgeMark(w.TB.Context())
	if err != nil {
		require.ErrorIs(w.TB, err, kvstore.ErrNotFound)
	}
	return mark.Position.Stream
}

// Purged events are only in the segments. A lost segment must not take later ones with it.
func TestPurge_LostSegment_LaterSegmentsKept(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *world){
		"lost": func(w *world) {},
		"damaged": func(w *world) {
			require.NoError(w.TB, w.Shard.Segments.Create(w.TB.Context(), "run-1", 2, []byte("nothing of use")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			_, stop := w.Fold(foldtest.Hasty())
			x := w.Writer("run-1")
			x.Start()
			for range 12 {
				x.TurnOf(900)
			}
			c := w.AwaitPurged(x)
			require.Greater(t, c.Segments.Count, 4)
			stop()
			kept := make(map[int][]byte)
			for n := 3; n <= c.Segments.Count; n++ {
				stored, err := w.Shard.Segments.GetFresh(t.Context(), "run-1", n)
				require.NoError(t, err)
				kept[n] = stored
			}
			w.LoseSegment("run-1", 2)
			damage(w)
			kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
			require.NoError(t, err)
			require.NoError(t, kv.Purge(t.Context(), "run-1"))

			f, _ := w.Fold(foldtest.Hasty())
			for range 12 {
				x.TurnOf(900)
			}
			require.Eventually(t, func() bool { return f.Stats().SealsRefused.Load() > 0 }, time.Minute, 5*time.Millisecond,
				"unsealed events are reported")
			require.Eventually(t, func() bool { return f.Stats().Position.Load() >= x.Last }, time.Minute, 5*time.Millisecond)
			for n, was := range kept {
				stored, err := w.Shard.Segments.GetFresh(t.Context(), "run-1", n)
				require.NoError(t, err, "segment %d", n)
				require.Equal(t, was, stored, "segment %d", n)
			}
		})
	}
}
