package service_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMessagesThatLookLikeTheServersOwnWordsBlockNobody(t *testing.T) {
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
			w := newFoldWorld(t)
			worker, _ := w.fold(fold.Config{})
			x := w.writer("run-1")
			x.start()
			_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-poison"), Header: header})
			require.NoError(t, err)
			last := x.turnOf(100)
			w.await("the turn behind the poison", func(c *schema.Checkpoint) bool { return c.Run == "run-1" && c.Position.Stream >= last })
			require.EqualValues(t, 1, worker.Stats().DeadLetters.Load())
		})
	}
}

func TestARunThatGarbageCameBeforeIsCountedWholeByTheNextWorker(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	worker, stop := w.fold(fold.Config{})
	ack, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-1"), Data: []byte("garbage")})
	require.NoError(t, err)
	// Behind the garbage, so that it is not what the next fold worker begins with.
	ack2, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-2"), Data: []byte("garbage")})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= ack2.Sequence }, time.Minute, time.Millisecond)
	stop()

	worker, _ = w.fold(fold.Config{Holder: "worker-2", SealBytes: 1 << 10})
	x := w.writer("run-1")
	x.last = ack.Sequence
	x.acked = append(x.acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), nil, []byte("garbage")))
	x.start()
	last := x.turnOf(2000)
	c := w.await("the turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last && c.Segments.Count > 0 })
	require.Equal(t, x.model(), c.Head)
	require.Zero(t, worker.Stats().Regressions.Load())
	require.Len(t, w.segments(c), len(x.acked))
}

func TestALogMadeAnewIsFoldedBehindTheSegmentsOfTheOld(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	cfg := fold.Config{SealBytes: 1 << 10}
	_, stop := w.fold(cfg)
	x := w.writer("run-1")
	x.start()
	for range 5 {
		x.turnOf(2000)
	}
	w.await("sealed", func(c *schema.Checkpoint) bool { return int(c.Segments.Events) == len(x.acked) })
	stop()

	stream, err := w.js.Stream(t.Context(), w.names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.js.DeleteStream(t.Context(), w.names.EventStream()))
	_, err = w.js.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)
	x.last = 0
	old := len(x.acked)
	for range 3 {
		x.turnOf(2000)
	}
	cfg.Holder = "worker-2"
	worker, _ := w.fold(cfg)
	c := w.await("new turns", func(c *schema.Checkpoint) bool { return c.Turn == 8 && !c.TurnOpen })
	model := schema.NewHead("default", "run-1")
	for i := range x.acked {
		if i == old {
			model.Position = schema.Position{}
		}
		model.Apply(schema.NoKeys, &x.acked[i])
	}
	require.Equal(t, model, c.Head)
	// Past the place where the old log ended.
	for range 4 {
		x.turnOf(2000)
	}
	w.await("sealed again", func(c *schema.Checkpoint) bool { return c.Turn == 12 && int(c.Segments.Events) == len(x.acked) })
	require.Zero(t, worker.Stats().Regressions.Load())
}

func TestACheckpointAheadOfALogThatLostItsEndHidesNothing(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x, at, _ := w.foldedTurn(10)
	// As if events of this run had been folded whose places the log has lost and gives away again.
	c, rev, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	c.Position = schema.Position{Stream: at + 100, ID: "run-1.1.9.00000000"}
	_, err = w.shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	worker, _ := w.fold(fold.Config{Holder: "worker-2"})
	at = x.turnOf(10)
	c = w.await("the next turn", func(c *schema.Checkpoint) bool { return c.Position.Stream == at })
	require.Equal(t, x.model(), c.Head)
	require.Zero(t, worker.Stats().Regressions.Load())
}

func TestASegmentThatAnotherWorkerCountedIsNeverReplaced(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x, _, _ := w.foldedTurn(2000)
	// The other fold worker sealed what had waited long enough: another range than a tail of this size ends with.
	idle := fold.Config{Holder: "worker-2", IdleSealBytes: 1, IdleSealAfter: time.Nanosecond}
	_, stop := w.fold(idle)
	at := x.turnOf(10)
	w.await("sealed", func(c *schema.Checkpoint) bool { return c.Segments.Last.Stream >= at })
	stop()
	before, err := w.shard.Segments.GetFresh(t.Context(), "run-1", 1)
	require.NoError(t, err)
	// Taken back to before it was counted, as one sees it who read the checkpoint earlier.
	c, rev, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Zero(t, c.TailEvents)
	for _, rec := range x.acked {
		c.TailBytes += int64(rec.Size())
		c.TailEvents++
	}
	c.Segments = schema.SegmentIndex{}
	_, err = w.shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	_, _ = w.fold(fold.Config{Holder: "worker-3", SealBytes: 1 << 10})
	at = x.turnOf(2000)
	c = w.await("sealed again", func(c *schema.Checkpoint) bool { return c.Segments.Last.Stream >= at })
	require.Equal(t, x.model(), c.Head)
	after, err := w.shard.Segments.GetFresh(t.Context(), "run-1", 1)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "the counted segment was replaced")
	x.stamp()
	require.Equal(t, x.acked, w.segments(c))
}

// A checkpoint bucket that is lost before anything was folded comes back, too: who lists the runs of all shards asks for it.
func TestACheckpointBucketOfAShardWithoutRunsComesBack(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	f, _ := w.fold(fold.Config{})
	// It has nothing left to put there.
	settled := func() bool {
		state, _, err := w.shard.Checkpoints.IndexState(t.Context())
		return err == nil && state.Complete && f.Leads()
	}
	require.Eventually(t, settled, time.Minute, time.Millisecond)
	// Nor to compare, which it does once when it begins.
	beats := map[int64]bool{}
	require.Eventually(t, func() bool {
		beats[f.Stats().Beat.Load()] = true
		return len(beats) > 20
	}, time.Minute, time.Millisecond)
	require.NoError(t, w.js.DeleteStream(t.Context(), "KV_"+w.names.CheckpointBucket()))
	require.Eventually(t, settled, time.Minute, time.Millisecond)
	x := w.writer("run-1")
	x.start()
	at := x.turnOf(10)
	c := w.await("the first run", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.model(), c.Head)
}

// A fold worker that stood still must not put its safe watermark over that of the next one.
func TestSafeWatermark_PutByAnotherWorker_IsNotOverwritten(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	safe := kvstore.NewSafeWatermarks(w.js)
	f, _ := w.fold(fold.Config{SafeAfter: 10 * time.Millisecond, ReconcileEvery: 10 * time.Millisecond})
	awaitSafe := func(at schema.StreamSequence) (mark kvstore.Watermark, rev schema.Revision) {
		require.Eventually(t, func() (ok bool) {
			var err error
			mark, rev, err = safe.Get(t.Context(), w.names)
			return err == nil && mark.Position.Stream >= at
		}, time.Minute, time.Millisecond)
		return mark, rev
	}
	x := w.writer("run-1")
	mark, rev := awaitSafe(x.start())
	_, err := safe.Put(t.Context(), w.names, mark, rev)
	require.NoError(t, err)
	awaitSafe(x.turnOf(10))
	require.EqualValues(t, 1, f.Stats().Conflicts.Load(), "it gives way, and begins again with what is there")
}
