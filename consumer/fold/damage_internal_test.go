package fold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// The data derived from the log is damaged while the run's executor is dead: no event of the run comes any more that
// would repair it.
func TestWorker_DamagedRecords_RunStillOrphaned(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, *lifeWorld, *lifeRun){
		"nothing": func(*testing.T, *lifeWorld, *lifeRun) {},
		"its checkpoint is junk": func(t *testing.T, w *lifeWorld, _ *lifeRun) {
			t.Helper()
			kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
			require.NoError(t, err)
			_, err = kv.PutString(t.Context(), "r1", "junk")
			require.NoError(t, err)
		},
		"its checkpoint is deleted": func(t *testing.T, w *lifeWorld, _ *lifeRun) {
			t.Helper()
			kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
			require.NoError(t, err)
			require.NoError(t, kv.Delete(t.Context(), "r1"))
		},
	} {
		for _, when := range []string{"while the worker folds", "between two workers"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				w := newLifeWorld(t)
				w.stop()
				cfg := w.config()
				cfg.SweepEvery, cfg.Silence = 50*time.Millisecond, 500*time.Millisecond
				w.stop = w.fold(cfg)
				r := w.begin("r1", "e1", "i1")
				if when == "between two workers" {
					w.stop()
				}
				damage(t, w, r)
				if when == "between two workers" {
					w.stop = w.fold(cfg)
				}
				require.Eventually(t, func() bool {
					w.Clock.Forward(10 * time.Millisecond)
					c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "r1")
					return err == nil && c.Status == schema.StatusOrphaned
				}, time.Minute, 10*time.Millisecond)
				require.Eventually(t, func() bool {
					l, known := w.liveRuns.Get("r1")
					return known && l.Status == schema.StatusOrphaned
				}, time.Minute, time.Millisecond, "and can be claimed")
			})
		}
	}
}
