package service_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// parkWorld has a run whose checkpoint does not fit the bucket, which holds checkpoints of small runs only.
func parkWorld(t *testing.T, cfg fold.Config) (w *foldWorld, large *writer, f *fold.Worker, stop func()) {
	t.Helper()
	w = newFoldWorld(t)
	w.limit("KV_"+w.names.CheckpointBucket(), 3<<10)
	f, stop = w.fold(cfg)
	large = w.writer("large")
	large.start()
	for i := range 8 {
		large.publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 200) + string(rune('a'+i))}, 0)
	}
	large.publish(&schema.RunWaitingData{InterruptID: "i-1", Reason: "external_system", Message: strings.Repeat("m", 200), ToolCallID: strings.Repeat("c", 200)}, 0)
	return w, large, f, stop
}

func (w *foldWorld) parked() []schema.ParkedRun {
	w.tb.Helper()
	mark, _, err := w.shard.Checkpoints.Watermark(w.tb.Context())
	require.NoError(w.tb, err)
	return mark.Parked
}

// awaitPassed waits until the watermark is behind everything that was published.
func (w *foldWorld) awaitPassed(at uint64) {
	w.tb.Helper()
	require.Eventually(w.tb, func() bool {
		mark, _, err := w.shard.Checkpoints.Watermark(w.tb.Context())
		return err == nil && uint64(mark.Position.Stream) >= at
	}, time.Minute, time.Millisecond)
}

func TestPark_CheckpointTooLarge_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w, large, f, stop := parkWorld(t, fold.Config{})
	small := w.writer("small")
	small.start()
	at := small.turnOf(100)
	c := w.await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "small" && c.Position.Stream >= at })
	require.Equal(t, small.model(), c.Head)
	w.awaitPassed(uint64(at))
	require.Len(t, w.parked(), 1)
	p := w.parked()[0]
	require.Equal(t, "large", p.Run)
	require.Contains(t, p.Why, "too large")
	require.Zero(t, f.Stats().Failures.Load(), "the reign goes on")
	require.EqualValues(t, 1, f.Stats().Parked.Load())

	// The next replica knows of it, and skips it as long as it rests.
	stop()
	next, stop := w.fold(fold.Config{Holder: "worker-2"})
	large.publish(&schema.PhaseCompletedData{Phase: "more"}, 0)
	at = small.turnOf(100)
	w.awaitPassed(uint64(at))
	require.Equal(t, []schema.ParkedRun{p}, w.parked())
	require.Zero(t, next.Stats().Rebuilds.Load(), "a run that rests costs nothing")
	require.Zero(t, next.Stats().Parked.Load())
	stop()
	for i := range large.acked {
		require.True(t, w.log("large")[i].Equal(&large.acked[i]), "nothing of it is purged")
	}
}

func TestPark_Retried_FoldedWhole(t *testing.T) {
	t.Parallel()
	clock := fleettest.NewHandClock(time.Now())
	w := newFoldWorld(t)
	w.limit("KV_"+w.names.CheckpointBucket(), 3<<10)
	cfg := hasty()
	cfg.Holder = "worker-1"
	f := w.foldThrough(cfg, clock.Now, forwardAll)
	x := w.writer("large")
	x.start()
	x.turnOf(2000) // sealed, and counted by the checkpoint
	c := w.await("the segment", func(c *schema.Checkpoint) bool { return c.Segments.Count > 0 })
	for i := range 12 {
		x.publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
	}
	w.awaitPassed(x.last)
	require.Len(t, w.parked(), 1)
	stored, _, err := w.shard.Checkpoints.GetFresh(t.Context(), "large")
	require.NoError(t, err)
	require.GreaterOrEqual(t, stored.Position.Stream, c.Position.Stream)
	require.Less(t, uint64(stored.Position.Stream), x.last)

	w.limit("KV_"+w.names.CheckpointBucket(), -1)
	clock.Forward(time.Hour)
	require.Eventually(t, func() bool { return len(w.parked()) == 0 }, time.Minute, time.Millisecond)
	at := x.turnOf(100)
	c = w.await("the run again", func(c *schema.Checkpoint) bool { return c.Run == "large" && c.Position.Stream >= at })
	require.Zero(t, f.Stats().Failures.Load())
	w.requireWhole(x, c)
}

func TestPark_LaterCheckpointFormat_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x := w.writer("run-1")
	x.start()
	kv, err := w.js.KeyValue(t.Context(), w.names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-1", laterCheckpoint(t))
	require.NoError(t, err)
	f, _ := w.fold(fold.Config{})
	y := w.writer("run-2")
	y.start()
	at := y.turnOf(100)
	w.await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "run-2" && c.Position.Stream >= at })
	w.awaitPassed(uint64(at))
	require.Len(t, w.parked(), 1)
	require.Equal(t, "run-1", w.parked()[0].Run)
	require.Zero(t, f.Stats().Failures.Load())
}

// forwardAll hands every request on.
func forwardAll(nc *nats.Conn, m *nats.Msg, subject string) { natstest.Forward(nc, m, subject) }

// laterCheckpoint is a checkpoint as a later version may write it, with the sum of a whole one.
func laterCheckpoint(t *testing.T) []byte {
	t.Helper()
	stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: schema.NewHead("default", "run-1")})
	require.NoError(t, err)
	now := fmt.Sprintf(`"format":%d`, schema.CheckpointFormat)
	require.Contains(t, string(stored), now)
	stored = bytes.Replace(stored, []byte(now), []byte(`"format":99`), 1)
	body := stored[:len(stored)-len(`"}`)-sha256.Size*2]
	sum := sha256.Sum256(append(slices.Clone(body), `"}`...))
	return append(append(body, hex.EncodeToString(sum[:])...), `"}`...)
}

func TestPark_RunAskedFor_RecoveredWholeAndNamed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.limit("KV_"+w.names.CheckpointBucket(), 3<<10)
	w.fold(fold.Config{})
	x := w.writer("large")
	x.start()
	for i := range 12 {
		x.publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
	}
	w.awaitPassed(x.last)
	require.Len(t, w.parked(), 1)
	got, _ := w.get("large", schema.ViewHead)
	require.Equal(t, x.model(), got.Head)
	reply, _ := w.recover("large", schema.RecoverRequest{Executor: "executor-2", RequestID: "r1"})
	require.EqualValues(t, 2, reply.Epoch)
	require.Equal(t, w.parked()[0], w.page(schema.ListRequest{}).Parked[0])
	a, err := w.ask(schema.VerbFleet, "", schema.FleetRequest{})
	require.NoError(t, err)
	require.Equal(t, w.parked(), decodeAs[schema.FleetReply](t, a.first).Shards[0].Parked)
	require.Empty(t, w.verify("large").Findings)
}

// The safe watermark lags behind: of a run that failed since, it knows fewer tries and an older reason.
func TestPark_UncleanStart_LaterTriesAreKept(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x := w.writer("run-1")
	x.start()
	_, stop := w.fold(fold.Config{})
	x.turnOf(100)
	w.awaitPassed(x.last)
	stop()
	mark, rev, err := w.shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	early := schema.ParkedRun{Run: "large", Since: schema.FormatTime(time.Now()), Why: "then", Tries: 1}
	late := early
	late.Why, late.Tries = "now", 7
	safe := kvstore.NewSafeWatermarks(w.js)
	_, safeRev, err := safe.Get(t.Context(), w.names)
	if err != nil {
		require.ErrorIs(t, err, kvstore.ErrNotFound)
	}
	first, err := schema.Decode(x.acked[0].Header, x.acked[0].Body)
	require.NoError(t, err)
	was := mark
	was.Position = schema.Position{Stream: 1, ID: first.ID}
	was.Parked = []schema.ParkedRun{early}
	_, err = safe.Put(t.Context(), w.names, was, safeRev)
	require.NoError(t, err)
	mark.Parked = []schema.ParkedRun{late}
	_, err = w.shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)

	w.fold(fold.Config{Holder: "worker-2", UncleanStart: true})
	x.turnOf(100)
	w.awaitPassed(x.last)
	require.Equal(t, []schema.ParkedRun{late}, w.parked())
}

// Three shards with as many parked runs as they may have are more than fit into a message.
func TestFleet_ManyParkedRuns_CountsAllAndNamesSome(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) { f.Shards = 3 })
	for _, shard := range w.shards {
		usage, err := shard.Usage(t.Context())
		require.NoError(t, err)
		mark := kvstore.Watermark{Incarnation: usage.Incarnation}
		for i := range schema.MaxParked {
			mark.Parked = append(mark.Parked, schema.ParkedRun{Run: fmt.Sprintf("run-%d", i), Why: strings.Repeat("y", 256), Tries: 1})
		}
		_, rev, err := shard.Checkpoints.Watermark(t.Context())
		if err != nil {
			require.ErrorIs(t, err, kvstore.ErrNotFound)
		}
		_, err = shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
		require.NoError(t, err)
	}
	a, err := w.ask(schema.VerbFleet, "", schema.FleetRequest{})
	require.NoError(t, err)
	named := 0
	for _, s := range decodeAs[schema.FleetReply](t, a.first).Shards {
		require.Empty(t, s.Error)
		require.Equal(t, schema.MaxParked, s.ParkedCount)
		named += len(s.Parked)
	}
	require.Equal(t, schema.MaxListParked, named)
	require.Less(t, len(a.first), 64<<10)
}
