package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// hasty is a fold worker that seals early and purges at once.
func hasty() fold.Config {
	return fold.Config{
		SealBytes: 2 << 10, SealMaxBytes: 8 << 10, SealEvents: 8, SealMaxEvents: 32,
		PurgeAfter: 20 * time.Millisecond, Synced: true, SweepEvery: 5 * time.Millisecond, Silence: time.Minute,
	}
}

// log is what the log has of a run.
func (w *foldWorld) log(run string) []schema.Record {
	w.tb.Helper()
	var all []schema.Record
	require.NoError(w.tb, eventlog.Read(w.tb.Context(), w.js, w.names, run, 1, func(rec schema.Record) error {
		all = append(all, rec)
		return nil
	}))
	return all
}

// awaitPurged waits until the log of the run has nothing before its first event that is not sealed.
func (w *foldWorld) awaitPurged(x *writer) *schema.Checkpoint {
	w.tb.Helper()
	var c *schema.Checkpoint
	require.Eventually(w.tb, func() bool {
		var err error
		c, _, err = w.shard.Checkpoints.GetFresh(w.tb.Context(), x.run.Run)
		if err != nil || uint64(c.Position.Stream) != x.last || c.Segments.Count == 0 {
			return false
		}
		for _, rec := range w.log(x.run.Run) {
			if rec.Stream <= c.Segments.Last.Stream && rec.Stream < c.Position.Stream {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "not purged")
	return c
}

// requireWhole compares what is left of a run, segments and log, with what was acknowledged.
func (w *foldWorld) requireWhole(x *writer, c *schema.Checkpoint) {
	w.tb.Helper()
	require.Equal(w.tb, x.model(), c.Head)
	all := w.segments(c)
	for _, rec := range w.log(x.run.Run) {
		if rec.Stream > c.Segments.Last.Stream {
			all = append(all, rec)
		}
	}
	require.Len(w.tb, all, len(x.acked))
	for i := range all {
		require.True(w.tb, all[i].Equal(&x.acked[i]), "record %d", i)
	}
}

func TestWhatIsSealedIsPurgedAfterItsGraceAndTheLastEventStays(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	f, _ := w.fold(hasty())
	var writers []*writer
	for i := range 4 {
		x := w.writer(fmt.Sprintf("run-%d", i))
		x.start()
		writers = append(writers, x)
	}
	for range 10 {
		for _, x := range writers {
			x.turnOf(900)
		}
	}
	for _, x := range writers[:2] {
		x.publish(&schema.RunEndedData{Status: "completed"}, 0)
	}
	for i, x := range writers {
		c := w.awaitPurged(x)
		w.requireWhole(x, c)
		if i < 2 {
			require.Len(t, w.log(x.run.Run), 1, "an ended run leaves one message")
			kept, err := w.shard.Checkpoints.History(t.Context(), x.run.Run)
			require.NoError(t, err)
			require.Len(t, kept, 1, "and one checkpoint")
			require.Equal(t, c.Position, kept[0].Checkpoint.Position)
		}
	}
	stats := f.Stats()
	require.Positive(t, stats.Purge.Events.Load())
	require.Greater(t, stats.Purge.Bytes.Load(), int64(4*5*900))
	require.Zero(t, stats.Purge.ProofsFailed.Load())
	// Who publishes next goes on behind the event that stayed.
	for _, x := range writers[2:] {
		x.turnOf(900)
		w.requireWhole(x, w.awaitPurged(x))
	}
}

func TestNothingIsPurgedWithinItsGraceOrByAPurgerThatNeverPurges(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"within its grace": time.Hour, "never": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFoldWorld(t)
			cfg := hasty()
			cfg.PurgeAfter = after
			f, _ := w.fold(cfg)
			x := w.writer("run-1")
			x.start()
			var at schema.StreamSequence
			for range 10 {
				at = x.turnOf(900)
			}
			w.await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 2 })
			require.Len(t, w.log("run-1"), len(x.acked))
			require.Zero(t, f.Stats().Purge.Events.Load())
		})
	}
}

func TestTheNextWorkerPurgesWhatTheLastOneSealed(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	cfg := hasty()
	cfg.PurgeAfter = time.Hour
	_, stop := w.fold(cfg)
	x := w.writer("run-1")
	x.start()
	var at schema.StreamSequence
	for range 10 {
		at = x.turnOf(900)
	}
	w.await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 2 })
	stop()
	cfg = hasty()
	cfg.Holder = "worker-2"
	w.fold(cfg)
	w.requireWhole(x, w.awaitPurged(x))
}

func TestAPurgeAfterThatAPowerCutCouldOutliveIsRefused(t *testing.T) {
	t.Parallel()
	cfg := fold.Config{Fleet: "default", Holder: "worker-1", PurgeAfter: time.Minute}
	require.ErrorContains(t, cfg.Validate(), "PurgeAfter is 1m0s, at least SafeAfter, 5m0s")
	cfg.Synced = true
	require.NoError(t, cfg.Validate())
}
