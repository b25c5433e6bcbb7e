package fold_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/schema"
)

func TestWorker_MessageLikeServerStatus_BlocksNothing(t *testing.T) {
	t.Parallel()
	for _, header := range []nats.Header{
		{"Status": {"100"}},
		{"Status": {"404"}},
		{"Status": {"503"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
		{"Status": {"409"}, "Description": {"Server Shutdown"}},
		{"Status": {"408"}, "Description": {"Request Timeout"}},
	} {
		t.Run(header.Get("Status")+" "+header.Get("Description"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			worker, _ := w.Fold(fold.Config{})
			x := w.Writer("run-1")
			x.Start()
			_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-poison"), Header: header})
			require.NoError(t, err)
			last := x.TurnOf(100)
			w.Await("the turn behind the poison", func(c *schema.Checkpoint) bool { return c.Run == "run-1" && c.Position.Stream >= last })
			require.EqualValues(t, 1, worker.Stats().DeadLetters.Load())
		})
	}
}

func TestWorker_GarbageBeforeRun_NextWorkerCountsWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	worker, stop := w.Fold(fold.Config{})
	ack, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Data: []byte("garbage")})
	require.NoError(t, err)
	// After the garbage, so that the next fold worker does not begin with it.
	ack2, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-2"), Data: []byte("garbage")})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= ack2.Sequence }, time.Minute, time.Millisecond)
	stop()

	worker, _ = w.Fold(fold.Config{Holder: "worker-2", SealBytes: 1 << 10})
	x := w.Writer("run-1")
	x.Last = ack.Sequence
	x.Acked = append(x.Acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), nil, []byte("garbage")))
	x.Start()
	last := x.TurnOf(2000)
	c := w.Await("the turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last && c.Segments.Count > 0 })
	require.Equal(t, x.Model(), c.Head)
	require.Zero(t, worker.Stats().Regressions.Load())
	require.Len(t, w.Segments(c), len(x.Acked))
}

func TestWorker_RecreatedLog_FoldsBehindOldSegments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := fold.Config{SealBytes: 1 << 10}
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	for range 5 {
		x.TurnOf(2000)
	}
	w.Await("sealed", func(c *schema.Checkpoint) bool { return int(c.Segments.Events) == len(x.Acked) })
	stop()

	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.JS.DeleteStream(t.Context(), w.Names.EventStream()))
	_, err = w.JS.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)
	x.Last = 0
	old := len(x.Acked)
	for range 3 {
		x.TurnOf(2000)
	}
	cfg.Holder = "worker-2"
	worker, _ := w.Fold(cfg)
	c := w.Await("new turns", func(c *schema.Checkpoint) bool { return c.Turn == 8 && !c.TurnOpen })
	model := schema.NewHead("default", "run-1")
	for i := range x.Acked {
		if i == old {
			model.Position = schema.Position{}
		}
		model.Apply(schema.NoKeys, &x.Acked[i])
	}
	require.Equal(t, model, c.Head)
	// Past the end of the old log.
	for range 4 {
		x.TurnOf(2000)
	}
	w.Await("sealed again", func(c *schema.Checkpoint) bool { return c.Turn == 12 && int(c.Segments.Events) == len(x.Acked) })
	require.Zero(t, worker.Stats().Regressions.Load())
}

func TestWorker_CheckpointAheadOfTruncatedLog_HidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, at, _ := w.FoldedTurn(10)
	// As if events of this run had been folded whose sequences the log has lost and uses again.
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	c.Position = schema.Position{Stream: at + 100, ID: "run-1.1.9.00000000"}
	_, err = w.Shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	worker, _ := w.Fold(fold.Config{Holder: "worker-2"})
	at = x.TurnOf(10)
	c = w.Await("the next turn", func(c *schema.Checkpoint) bool { return c.Position.Stream == at })
	require.Equal(t, x.Model(), c.Head)
	require.Zero(t, worker.Stats().Regressions.Load())
}

func TestWorker_SegmentCountedByAnother_NotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, _, _ := w.FoldedTurn(2000)
	// The other fold worker sealed an idle tail: another range than a tail of this size ends with.
	idle := fold.Config{Holder: "worker-2", IdleSealBytes: 1, IdleSealAfter: time.Nanosecond}
	_, stop := w.Fold(idle)
	at := x.TurnOf(10)
	w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Segments.Last.Stream >= at })
	stop()
	before, err := w.Shard.Segments.GetFresh(t.Context(), "run-1", 1)
	require.NoError(t, err)
	// Reset to before it was counted, as seen by a worker that read the checkpoint earlier.
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Zero(t, c.TailEvents)
	for _, rec := range x.Acked {
		c.TailBytes += int64(rec.Size())
		c.TailEvents++
	}
	c.Segments = schema.SegmentIndex{}
	_, err = w.Shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	_, _ = w.Fold(fold.Config{Holder: "worker-3", SealBytes: 1 << 10})
	at = x.TurnOf(2000)
	c = w.Await("sealed again", func(c *schema.Checkpoint) bool { return c.Segments.Last.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
	after, err := w.Shard.Segments.GetFresh(t.Context(), "run-1", 1)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "the counted segment was replaced")
	x.Stamp()
	require.Equal(t, x.Acked, w.Segments(c))
}

// A checkpoint bucket that is lost before anything was folded is created again, too: lists of all shards read it.
func TestWorker_EmptyShardLosesCheckpointBucket_RecreatesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, _ := w.Fold(fold.Config{})
	// It has nothing left to put there.
	settled := func() bool {
		mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
		return err == nil && mark.RebuildTo == 0 && f.Leads()
	}
	require.Eventually(t, settled, time.Minute, time.Millisecond)
	// It has nothing to compare either, which it does once at its beginning.
	beats := map[int64]bool{}
	require.Eventually(t, func() bool {
		beats[f.Stats().Beat.Load()] = true
		return len(beats) > 20
	}, time.Minute, time.Millisecond)
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
	require.Eventually(t, settled, time.Minute, time.Millisecond)
	x := w.Writer("run-1")
	x.Start()
	at := x.TurnOf(10)
	c := w.Await("the first run", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
}

// A power cut undid the last puts of a run's checkpoint, and left the watermark that counts them. The run has no next
// event that would show it.
func TestWorker_UncleanStart_FoldsFromSafePosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	safe := x.TurnOf(10)
	c := w.Await("before the power cut", func(c *schema.Checkpoint) bool { return c.Position.Stream >= safe })
	x.TurnOf(10)
	last := x.TurnOf(10)
	w.AwaitPassed(uint64(last))
	stop()
	mark, rev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	require.Zero(t, mark.Safe.Stream, "nothing is old enough")
	mark.Safe = c.Position
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	_, rev, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)

	f, _ := w.Fold(fold.Config{Holder: "worker-2", UncleanStart: true, SafeAfter: time.Nanosecond, ReconcileEvery: 10 * time.Millisecond})
	c = w.Await("folded again", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	require.Equal(t, x.Model(), c.Head)
	require.Less(t, f.Stats().Events.Load()+f.Stats().Replayed.Load(), int64(len(x.Acked)), "not from the beginning of the log")
	at := x.TurnOf(10)
	w.AwaitPassed(uint64(at))
	require.Eventually(t, func() bool {
		x.TurnOf(10)
		mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
		return err == nil && mark.Safe.Stream >= at
	}, time.Minute, 20*time.Millisecond, "the safe position follows")
}
