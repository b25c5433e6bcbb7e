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

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// grow makes a run whose checkpoint does not fit into the bucket; the bucket only accepts checkpoints of small runs.
func (w *world) grow(cfg fold.Config) (large *foldtest.Writer, f *fold.Worker, stop func()) {
	w.TB.Helper()
	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	f, stop = w.Fold(cfg)
	large = w.Writer("large")
	large.Start()
	for i := range 12 {
		large.Publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
	}
	w.AwaitPassed(large.Last)
	return large, f, stop
}

func TestWorker_CheckpointTooLarge_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	large, f, stop := w.grow(fold.Config{})
	small := w.Writer("small")
	small.Start()
	at := small.TurnOf(100)
	c := w.Await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "small" && c.Position.Stream >= at })
	require.Equal(t, small.Model(), c.Head)
	require.Zero(t, f.Stats().Failures.Load(), "the term goes on")
	require.NotZero(t, f.Stats().Unstored.Load())
	stop()
	for i := range large.Acked {
		require.True(t, w.Log("large")[i].Equal(&large.Acked[i]), "nothing of it is purged")
	}
}

// The next worker folds the run again from its segments and the log, and stores it if it can.
func TestWorker_CheckpointWasTooLarge_FoldedWhole(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"by its next event": true, "at the next takeover": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := foldtest.Hasty()
			x, _, stop := w.grow(cfg)
			stop()
			w.Limit("KV_"+w.Names.CheckpointBucket(), -1)
			cfg.ReconcileEvery = 10 * time.Millisecond
			f, _ := w.Fold(cfg)
			if again {
				x.TurnOf(2000)
			}
			c := w.Await("the run", func(c *schema.Checkpoint) bool { return uint64(c.Position.Stream) == x.Last })
			require.Zero(t, f.Stats().Failures.Load())
			w.RequireWhole(x, c)
		})
	}
}

// A worker that is older than the data of its shard changes nothing.
func TestWorker_LaterCheckpointFormat_NothingFolded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-1", laterCheckpoint(t))
	require.NoError(t, err)
	f, _ := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	require.Eventually(t, func() bool { return f.Stats().Failures.Load() > 0 }, time.Minute, time.Millisecond)
	_, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.ErrorIs(t, err, schema.ErrFormat)
	require.Zero(t, f.Stats().Checkpoints.Load())

	require.NoError(t, kv.Delete(t.Context(), "run-1"), "as if the daemon were upgraded")
	c := w.Await("the run", func(c *schema.Checkpoint) bool { return uint64(c.Position.Stream) == x.Last })
	w.RequireWhole(x, c)
}

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
