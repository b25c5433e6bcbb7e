package fold

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// An administrator purges the log of a fleet. No client asks for the run, and its executor is gone.
func TestWorker_LogPurgedByHand_RunIsMarkedUnasked(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"while it works": false, "before it starts": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			lost, kept := w.begin("run-1", "executor-1", "i1"), w.begin("run-2", "executor-1", "i1")
			lost.Own(&schema.TurnStartedData{Turn: 1})
			require.Empty(t, lost.entry().Live.Attention)
			if restart {
				w.stop()
			}
			log, err := w.JS.Stream(t.Context(), w.Names.EventStream())
			require.NoError(t, err)
			require.NoError(t, log.Purge(t.Context(), jetstream.WithPurgeSubject(w.Names.EventSubject("run-1"))))
			if restart {
				w.stop = w.fold(w.config())
			}
			require.Eventually(t, func() bool {
				w.Clock.Forward(time.Minute)
				return w.worker.stats.Regressions.Load() > 0
			}, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return lost.entry().Live.Attention != "" }, time.Minute, time.Millisecond, "the webhook and the inbox learn of it")
			require.Eventually(t, func() bool { return w.liveRuns.Counts().Gapped == 1 }, time.Minute, time.Millisecond, "doctor says so")
			var c *schema.Checkpoint
			require.Eventually(t, func() bool { // it is put after the live index
				c, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
				return err == nil && len(c.Gaps) > 0
			}, time.Minute, time.Millisecond)
			require.Equal(t, []schema.Gap{{Epoch: 1, From: 2, To: 2, Reason: schema.ReasonLost, At: c.Position}}, c.Gaps)
			require.Equal(t, schema.StatusRunning, c.Status)
			sum := schema.SummaryOf(&c.Head)
			require.True(t, sum.Gapped)

			kept.Own(&schema.TurnStartedData{Turn: 1})
			for range 20 {
				w.Clock.Forward(time.Minute)
			}
			kept.Own(&schema.TurnEndedData{Turn: 1})
			require.EqualValues(t, 1, w.worker.stats.Regressions.Load(), "once")
			c, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-2")
			require.NoError(t, err)
			require.True(t, c.Complete())
		})
	}
}
