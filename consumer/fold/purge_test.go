package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

func TestPurge_AfterGrace_KeepsLastEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, _ := w.Fold(foldtest.Hasty())
	var writers []*foldtest.Writer
	for i := range 4 {
		x := w.Writer(fmt.Sprintf("run-%d", i))
		x.Start()
		writers = append(writers, x)
	}
	for range 10 {
		for _, x := range writers {
			x.TurnOf(900)
		}
	}
	for _, x := range writers[:2] {
		x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	}
	for i, x := range writers {
		c := w.AwaitPurged(x)
		w.RequireWhole(x, c)
		if i < 2 {
			require.Len(t, w.Log(x.Run.Run), 1, "an ended run leaves one message")
			kept, err := w.Shard.Checkpoints.History(t.Context(), x.Run.Run)
			require.NoError(t, err)
			require.Len(t, kept, 1, "and one checkpoint")
			require.Equal(t, c.Position, kept[0].Checkpoint.Position)
		}
	}
	stats := f.Stats()
	require.Positive(t, stats.Purge.Events.Load())
	require.Greater(t, stats.Purge.Bytes.Load(), int64(4*5*900))
	require.Zero(t, stats.Purge.ProofsFailed.Load())
	// The next publisher continues after the event that stayed.
	for _, x := range writers[2:] {
		x.TurnOf(900)
		w.RequireWhole(x, w.AwaitPurged(x))
	}
}

func TestPurge_WithinGraceOrDisabled_KeepsAll(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"within its grace": time.Hour, "never": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cfg := foldtest.Hasty()
			cfg.PurgeAfter = after
			f, _ := w.Fold(cfg)
			x := w.Writer("run-1")
			x.Start()
			var at schema.StreamSequence
			for range 10 {
				at = x.TurnOf(900)
			}
			w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 2 })
			require.Len(t, w.Log("run-1"), len(x.Acked))
			require.Zero(t, f.Stats().Purge.Events.Load())
		})
	}
}

func TestPurge_NextWorker_PurgesEarlierSeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := foldtest.Hasty()
	cfg.PurgeAfter = time.Hour
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	var at schema.StreamSequence
	for range 10 {
		at = x.TurnOf(900)
	}
	w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 2 })
	stop()
	cfg = foldtest.Hasty()
	cfg.Holder = "worker-2"
	w.Fold(cfg)
	w.RequireWhole(x, w.AwaitPurged(x))
}

func TestPurge_UnsyncedSegments_Refused(t *testing.T) {
	t.Parallel()
	cfg := fold.Config{Fleet: "default", Holder: "worker-1", PurgeAfter: time.Minute}
	require.ErrorContains(t, cfg.Validate(), "PurgeAfter is 1m0s, at least SafeAfter, 5m0s")
	cfg.Synced = true
	require.NoError(t, cfg.Validate())
}
