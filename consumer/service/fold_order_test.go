package service_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/schema"
)

// limit sets the message size a bucket accepts; what is larger fails to be stored, as on a full disk.
func (w *foldWorld) limit(stream string, size int32) {
	w.tb.Helper()
	s, err := w.js.Stream(w.tb.Context(), stream)
	require.NoError(w.tb, err)
	config := s.CachedInfo().Config
	config.MaxMsgSize = size
	_, err = w.js.UpdateStream(w.tb.Context(), config)
	require.NoError(w.tb, err)
}

// subjects sets what a bucket listens to.
func (w *foldWorld) subjects(stream string, subjects ...string) {
	w.tb.Helper()
	s, err := w.js.Stream(w.tb.Context(), stream)
	require.NoError(w.tb, err)
	config := s.CachedInfo().Config
	config.Subjects = subjects
	_, err = w.js.UpdateStream(w.tb.Context(), config)
	require.NoError(w.tb, err)
}

func TestTheWatermarkNeverPassesACheckpointThatWasNotStored(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	f, stop := w.fold(fold.Config{})
	x := w.writer("run-1")
	x.start()
	at := x.turnOf(10)
	w.await("first turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= uint64(at) }, time.Minute, time.Millisecond)
	// The bucket takes a watermark, and answers to no put of a checkpoint.
	w.subjects("KV_"+w.names.CheckpointBucket(), "$KV."+w.names.CheckpointBucket()+"._.>")
	later := x.turnOf(10)
	require.Eventually(t, func() bool { return f.Stats().Failures.Load() >= 2 }, time.Minute, time.Millisecond)
	mark, _, err := w.shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	require.Equal(t, at, mark.Position.Stream)
	require.Empty(t, mark.Parked, "it is no fault of the run")
	stop()
	w.subjects("KV_"+w.names.CheckpointBucket(), "$KV."+w.names.CheckpointBucket()+".>")
	w.fold(fold.Config{})
	c := w.await("second turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= later })
	require.Equal(t, x.model(), c.Head)
}

func TestASegmentIsCountedOnlyOnceItIsStored(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	w.limit("KV_"+w.names.SegmentBucket(), 100)
	f, _ := w.fold(fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
	x := w.writer("run-1")
	x.start()
	var at schema.StreamSequence
	for range 5 {
		at = x.turnOf(1500)
	}
	c := w.await("folding goes on", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.model(), c.Head, "a bucket that refuses segments stops sealing, never folding")
	require.Zero(t, c.Segments.Count)
	require.Positive(t, f.Stats().SealsRefused.Load())
	w.limit("KV_"+w.names.SegmentBucket(), -1)
	c = w.await("sealed after all", func(c *schema.Checkpoint) bool { return c.Segments.Count >= 3 })
	require.Len(t, w.segments(c), int(c.Segments.Events))
}

func TestATailThatWasNeverSealedIsSealedByTheNextWorker(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	w.limit("KV_"+w.names.SegmentBucket(), 100)
	cfg := fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10}
	_, stop := w.fold(cfg)
	x := w.writer("run-1")
	x.start()
	var at schema.StreamSequence
	for range 5 {
		at = x.turnOf(1500)
	}
	w.await("folded", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	w.limit("KV_"+w.names.SegmentBucket(), -1)
	w.fold(cfg)
	at = x.turnOf(10)
	c := w.await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count >= 3 })
	require.Equal(t, x.model(), c.Head)
	got := w.segments(c)
	for i := range got {
		require.True(t, got[i].Equal(&x.acked[i]), "record %d", i)
	}
}
