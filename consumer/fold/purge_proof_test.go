package fold_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// tampered is a world with a sound run and a faulty one, both sealed and not purged.
type tampered struct {
	*world
	sound, bad *foldtest.Writer
	c          *schema.Checkpoint
	kv         jetstream.KeyValue
}

func newTampered(t *testing.T) *tampered {
	t.Helper()
	w := &tampered{world: newWorld(t)}
	cfg := foldtest.Hasty()
	cfg.PurgeAfter = time.Hour
	_, stop := w.Fold(cfg)
	w.sound, w.bad = w.Writer("run-sound"), w.Writer("run-bad")
	for _, x := range []*foldtest.Writer{w.bad, w.sound} {
		x.Start()
		var at schema.StreamSequence
		for range 8 {
			at = x.TurnOf(900)
		}
		c := w.Await("sealed", func(c *schema.Checkpoint) bool {
			return c.Run == x.Run.Run && c.Position.Stream >= at && c.Segments.Count > 2
		})
		if x == w.bad {
			w.c = c
		}
	}
	stop()
	var err error
	w.kv, err = w.JS.KeyValue(t.Context(), w.Names.SegmentBucket())
	require.NoError(t, err)
	return w
}

// segment returns a stored segment of the bad run.
func (w *tampered) segment(n int) (schema.SegmentInfo, []byte, []byte) {
	w.TB.Helper()
	stored, err := w.Shard.Segments.GetFresh(w.TB.Context(), "run-bad", n)
	require.NoError(w.TB, err)
	info, frames, err := schema.DecodeSegment(stored)
	require.NoError(w.TB, err)
	return info, frames, stored
}

// from is the bad run's log from an event on.
func (w *tampered) from(at schema.StreamSequence) []schema.Record {
	w.TB.Helper()
	return slices.DeleteFunc(w.Log("run-bad"), func(rec schema.Record) bool { return rec.Stream < at })
}

func (w *tampered) put(n int, stored []byte) {
	w.TB.Helper()
	_, err := w.kv.Put(w.TB.Context(), schema.SegmentKey("run-bad", n), stored)
	require.NoError(w.TB, err)
}

func (w *tampered) encode(info schema.SegmentInfo, frames []byte) []byte {
	w.TB.Helper()
	stored, err := schema.EncodeSegment(info, nil, frames)
	require.NoError(w.TB, err)
	return stored
}

func TestPurge_UnprovenSegment_Kept(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*tampered){
		"a segment is missing": func(w *tampered) { require.NoError(w.TB, w.kv.Delete(w.TB.Context(), schema.SegmentKey("run-bad", 2))) },
		"the latest is missing": func(w *tampered) {
			require.NoError(w.TB, w.kv.Delete(w.TB.Context(), schema.SegmentKey("run-bad", w.c.Segments.Count)))
		},
		"a byte of it has flipped": func(w *tampered) { _, _, b := w.segment(2); b = bytes.Clone(b); b[len(b)-9] ^= 1; w.put(2, b) },
		"it is another segment of the run": func(w *tampered) {
			_, _, b := w.segment(1)
			w.put(2, b)
		},
		"it is of another run": func(w *tampered) {
			b, err := w.Shard.Segments.GetFresh(w.TB.Context(), "run-sound", 2)
			require.NoError(w.TB, err)
			w.put(2, b)
		},
		"an event in it was altered, and its sum is right": func(w *tampered) {
			info, frames, _ := w.segment(2)
			frames = bytes.Clone(frames)
			frames[len(frames)-2] ^= 1
			w.put(2, w.encode(info, frames))
		},
		"an event was left out of it": func(w *tampered) {
			info, frames, _ := w.segment(2)
			var fewer []byte
			n := 0
			require.NoError(w.TB, schema.ReadFrames(frames, func(rec schema.Record) bool {
				if n++; n != 2 {
					fewer = schema.AppendFrame(fewer, &rec)
				}
				return true
			}))
			info.Events--
			w.put(2, w.encode(info, fewer))
		},
		"it does not follow from the one before": func(w *tampered) {
			info, frames, _ := w.segment(2)
			info.DigestBefore = info.DigestAfter
			w.put(2, w.encode(info, frames))
		},
		"the checkpoint counts another digest": func(w *tampered) {
			c, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-bad")
			require.NoError(w.TB, err)
			c.Segments.Digest = c.Segments.Digest[1:] + "0"
			_, err = w.Shard.Checkpoints.Put(w.TB.Context(), c, rev)
			require.NoError(w.TB, err)
		},
		"the checkpoint is of an event that the log does not have": func(w *tampered) {
			c, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-bad")
			require.NoError(w.TB, err)
			c.Position.Stream++
			_, err = w.Shard.Checkpoints.Put(w.TB.Context(), c, rev)
			require.NoError(w.TB, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTampered(t)
			kept := schema.StreamSequence(0)
			if strings.HasPrefix(name, "an event ") {
				// The links are correct, and so is the segment before: a proof that ends before the second may purge
				// the events of the first.
				second, _, _ := w.segment(2)
				kept = second.First.Stream
			}
			damage(w)
			before := w.from(kept)
			cfg := foldtest.Hasty()
			cfg.Holder = "worker-2"
			f, _ := w.Fold(cfg)
			require.Eventually(t, func() bool { return f.Stats().Purge.ProofsFailed.Load() >= 2 }, time.Minute, time.Millisecond, "it is said, and tried again")
			require.Equal(t, before, w.from(kept), "nothing is purged")
			w.RequireWhole(w.sound, w.AwaitPurged(w.sound))
		})
	}
}

func TestPurge_RepairedSegment_Purged(t *testing.T) {
	t.Parallel()
	w := newTampered(t)
	_, _, sound := w.segment(2)
	w.put(2, []byte("rubbish"))
	cfg := foldtest.Hasty()
	cfg.Holder = "worker-2"
	f, _ := w.Fold(cfg)
	require.Eventually(t, func() bool { return f.Stats().Purge.ProofsFailed.Load() >= 1 }, time.Minute, time.Millisecond)
	w.put(2, sound)
	w.RequireWhole(w.bad, w.AwaitPurged(w.bad))
}

// Another replica's log may have a run's missing events: an incomplete run is not purged.
func TestPurge_RunWithGap_Kept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, _ := w.Fold(foldtest.Hasty())
	x := w.Writer("run-1")
	x.Start()
	// Before anything that could be sealed: events sealed before the gap is folded may be purged.
	e, err := x.Run.Event(&schema.CheckpointMarkedData{Name: "lost"}, 0, time.Unix(1_700_000_000, 0), 0)
	require.NoError(t, err)
	require.NoError(t, x.Run.Commit(e))
	for range 10 {
		x.TurnOf(900)
	}
	x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	require.Eventually(t, func() bool { return f.Stats().Purge.ProofsFailed.Load() > 2 }, time.Minute, time.Millisecond)
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.False(t, c.Complete())
	require.Positive(t, c.Segments.Count)
	require.Len(t, w.Log("run-1"), len(x.Acked))
	require.Zero(t, f.Stats().Purge.Events.Load())
}
