package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A server crash can undo a purge, wholly or partly: events that are back are known to be sealed.
func TestWorker_PurgedEventsReturn_FoldedOnce(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(i, n int) bool{
		"all":              func(int, int) bool { return true },
		"the first":        func(i, _ int) bool { return i == 0 },
		"a piece":          func(i, n int) bool { return i > n/3 && i < n/2 },
		"every other":      func(i, _ int) bool { return i%2 == 0 },
		"all but the last": func(i, n int) bool { return i < n-2 },
	} {
		for _, bucketLost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, checkpoints lost: %t", name, bucketLost), func(t *testing.T) {
				t.Parallel()
				w := newServiceWorld(t)
				cfg := foldtest.Hasty()
				cfg.PurgeAfter = time.Hour
				_, stop := w.Fold(cfg)
				x := w.writer("run-1")
				x.Start()
				for range 8 {
					x.TurnOf(900)
				}
				var c *schema.Checkpoint
				require.Eventually(t, func() bool {
					var err error
					c, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
					return err == nil && uint64(c.Position.Stream) == x.Last && c.Segments.Count > 3
				}, time.Minute, 10*time.Millisecond)
				stop()
				// A purger puts its cursor before it purges anything.
				_, err := w.Shard.PutPurgeMark(t.Context(), kvstore.Watermark{Incarnation: c.Incarnation}, 0)
				require.NoError(t, err)
				// The log has what is left after a purge of all sealed events, and the events that came back.
				for i, rec := range x.Acked {
					if rec.Stream <= c.Segments.Last.Stream && rec.Stream < c.Position.Stream && !back(i, int(c.Segments.Events)) {
						w.deleteMsg(rec.Stream)
					}
				}
				if bucketLost {
					bucket, err := w.JS.Stream(t.Context(), "KV_"+w.Names.CheckpointBucket())
					require.NoError(t, err)
					require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
					_, err = w.JS.CreateStream(t.Context(), bucket.CachedInfo().Config)
					require.NoError(t, err)
				}
				reply, a := w.get("run-1", schema.ViewEvents)
				require.True(t, reply.Complete)
				require.Equal(t, x.Model(), reply.Head)
				require.Equal(t, x.Model(), a.fold(t, "run-1").Head)
				cfg = foldtest.Hasty()
				cfg.Holder, cfg.UncleanStart = "worker-2", true
				cfg.Linger = 200 * time.Millisecond // its purger reads the run long before the fold has counted anything
				f, _ := w.Fold(cfg)
				w.RequireWhole(x.Writer, w.AwaitPurged(x.Writer))
				x.TurnOf(900)
				w.RequireWhole(x.Writer, w.AwaitPurged(x.Writer))
				require.Zero(t, f.Stats().Purge.ProofsFailed.Load())
				require.Zero(t, f.Stats().DeadLetters.Load())
			})
		}
	}
}
