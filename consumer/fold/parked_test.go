package fold_test

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
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

// parkWorld has a run whose checkpoint does not fit into the bucket, which only accepts checkpoints of small runs.
func parkWorld(t *testing.T, cfg fold.Config) (w *world, large *foldtest.Writer, f *fold.Worker, stop func()) {
	t.Helper()
	w = newWorld(t)
	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	f, stop = w.Fold(cfg)
	large = w.Writer("large")
	large.Start()
	for i := range 8 {
		large.Publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 200) + string(rune('a'+i))}, 0)
	}
	large.Publish(&schema.RunWaitingData{InterruptID: "i-1", Reason: "external_system", Message: strings.Repeat("m", 200), ToolCallID: strings.Repeat("c", 200)}, 0)
	return w, large, f, stop
}

func TestPark_CheckpointTooLarge_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w, large, f, stop := parkWorld(t, fold.Config{})
	small := w.Writer("small")
	small.Start()
	at := small.TurnOf(100)
	c := w.Await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "small" && c.Position.Stream >= at })
	require.Equal(t, small.Model(), c.Head)
	w.AwaitPassed(uint64(at))
	require.Len(t, w.Parked(), 1)
	p := w.Parked()[0]
	require.Equal(t, "large", p.Run)
	require.Contains(t, p.Why, "too large")
	require.Zero(t, f.Stats().Failures.Load(), "the term goes on")
	require.EqualValues(t, 1, f.Stats().Parked.Load())

	// The next replica knows it, and skips it until its next try.
	stop()
	next, stop := w.Fold(fold.Config{Holder: "worker-2"})
	large.Publish(&schema.PhaseCompletedData{Phase: "more"}, 0)
	at = small.TurnOf(100)
	w.AwaitPassed(uint64(at))
	require.Equal(t, []schema.ParkedRun{p}, w.Parked())
	require.Zero(t, next.Stats().Rebuilds.Load(), "a run that rests costs nothing")
	require.Zero(t, next.Stats().Parked.Load())
	stop()
	for i := range large.Acked {
		require.True(t, w.Log("large")[i].Equal(&large.Acked[i]), "nothing of it is purged")
	}
}

func TestPark_Retried_FoldedWhole(t *testing.T) {
	t.Parallel()
	clock := fleettest.NewHandClock(time.Now())
	w := newWorld(t)
	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	cfg := foldtest.Hasty()
	cfg.Holder = "worker-1"
	f := w.FoldThrough(cfg, clock.Now, forwardAll)
	x := w.Writer("large")
	x.Start()
	x.TurnOf(2000) // sealed, and counted by the checkpoint
	c := w.Await("the segment", func(c *schema.Checkpoint) bool { return c.Segments.Count > 0 })
	for i := range 12 {
		x.Publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
	}
	w.AwaitPassed(x.Last)
	require.Len(t, w.Parked(), 1)
	stored, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "large")
	require.NoError(t, err)
	require.GreaterOrEqual(t, stored.Position.Stream, c.Position.Stream)
	require.Less(t, uint64(stored.Position.Stream), x.Last)

	w.Limit("KV_"+w.Names.CheckpointBucket(), -1)
	clock.Forward(time.Hour)
	require.Eventually(t, func() bool { return len(w.Parked()) == 0 }, time.Minute, time.Millisecond)
	at := x.TurnOf(100)
	c = w.Await("the run again", func(c *schema.Checkpoint) bool { return c.Run == "large" && c.Position.Stream >= at })
	require.Zero(t, f.Stats().Failures.Load())
	w.RequireWhole(x, c)
}

func TestPark_LaterCheckpointFormat_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-1", laterCheckpoint(t))
	require.NoError(t, err)
	f, _ := w.Fold(fold.Config{})
	y := w.Writer("run-2")
	y.Start()
	at := y.TurnOf(100)
	w.Await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "run-2" && c.Position.Stream >= at })
	w.AwaitPassed(uint64(at))
	require.Len(t, w.Parked(), 1)
	require.Equal(t, "run-1", w.Parked()[0].Run)
	require.Zero(t, f.Stats().Failures.Load())
}

// forwardAll forwards every request.
func forwardAll(nc *nats.Conn, m *nats.Msg, subject string) { natstest.Forward(nc, m, subject) }

// laterCheckpoint is a checkpoint of a later version, with a correct sum.
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
