package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/schema"
)

func TestWatermark_CheckpointNotStored_Waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, stop := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	at := x.TurnOf(10)
	w.Await("first turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= uint64(at) }, time.Minute, time.Millisecond)
	// The bucket accepts a watermark, and does not answer puts of checkpoints.
	w.Subjects("KV_"+w.Names.CheckpointBucket(), "$KV."+w.Names.CheckpointBucket()+"._.>")
	later := x.TurnOf(10)
	require.Eventually(t, func() bool { return f.Stats().Failures.Load() >= 2 }, time.Minute, time.Millisecond)
	mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	require.Equal(t, at, mark.Position.Stream)
	stop()
	w.Subjects("KV_"+w.Names.CheckpointBucket(), "$KV."+w.Names.CheckpointBucket()+".>")
	w.Fold(fold.Config{})
	c := w.Await("second turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= later })
	require.Equal(t, x.Model(), c.Head)
}

func TestSeal_StoreFails_SegmentNotCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Limit("KV_"+w.Names.SegmentBucket(), 100)
	f, _ := w.Fold(fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
	x := w.Writer("run-1")
	x.Start()
	var at schema.StreamSequence
	for range 5 {
		at = x.TurnOf(1500)
	}
	c := w.Await("folding goes on", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head, "a bucket that refuses segments stops sealing, never folding")
	require.Zero(t, c.Segments.Count)
	require.Positive(t, f.Stats().SealsRefused.Load())
	w.Limit("KV_"+w.Names.SegmentBucket(), -1)
	c = w.Await("sealed after all", func(c *schema.Checkpoint) bool { return c.Segments.Count >= 3 })
	require.Len(t, w.Segments(c), int(c.Segments.Events))
}

func TestSeal_UnsealedTail_SealedByNextWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Limit("KV_"+w.Names.SegmentBucket(), 100)
	cfg := fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10}
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	var at schema.StreamSequence
	for range 5 {
		at = x.TurnOf(1500)
	}
	w.Await("folded", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	w.Limit("KV_"+w.Names.SegmentBucket(), -1)
	w.Fold(cfg)
	at = x.TurnOf(10)
	c := w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count >= 3 })
	require.Equal(t, x.Model(), c.Head)
	got := w.Segments(c)
	for i := range got {
		require.True(t, got[i].Equal(&x.Acked[i]), "record %d", i)
	}
}
