package fold

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

var noLog = zerolog.Nop()

// lifeWorld is a fleet whose worker folds in real time, with a clock of the test.
type lifeWorld struct {
	*fleettest.World
	liveRuns *liveness.LiveRuns
	hb       *liveness.Heartbeats
	worker   *Worker
	// stop ends the worker.
	stop func()
}

func newLifeWorld(tb testing.TB, change ...func(*nats.Conn)) *lifeWorld {
	tb.Helper()
	w := &lifeWorld{World: fleettest.New(tb, change...)}
	log := natstest.Logger(tb)
	w.liveRuns = liveness.NewLiveRuns([]*kvstore.Shard{w.Shard}, 0, w.Clock.Now, log)
	w.Live = w.liveRuns
	w.hb = liveness.NewHeartbeats("default", w.NC, w.liveRuns, w.Clock.Now, log)
	w.Go(w.hb.Run)
	w.Go(w.liveRuns.Run)
	w.stop = w.fold(w.config())
	require.Eventually(tb, func() bool { return w.liveRuns.Synced() && w.worker.Leads() }, time.Minute, time.Millisecond)
	return w
}

// config is that of a worker that does not sweep.
func (w *lifeWorld) config() Config {
	return Config{
		Fleet: "default", Holder: "daemon-1", LeaseTTL: time.Second, ReconcileEvery: 20 * time.Millisecond,
		LiveRuns: w.liveRuns, Heartbeats: w.hb, SweepEvery: time.Hour, Silence: 3 * time.Hour,
	}
}

// fold runs a worker and returns the function that stops it.
func (w *lifeWorld) fold(cfg Config) func() {
	w.TB.Helper()
	var err error
	w.worker, err = New(cfg, w.NC, w.JS, w.Shard, w.Clock.Now, natstest.Logger(w.TB))
	require.NoError(w.TB, err)
	return w.Go(w.worker.Run)
}

// lifeRun is a run that the test writes.
type lifeRun struct {
	*fleettest.Run
	w *lifeWorld
}

// begin starts a run.
func (w *lifeWorld) begin(run, executor, instance string) *lifeRun {
	w.TB.Helper()
	r := &lifeRun{w.Begin(run, executor, instance), w}
	// A worker that is stopped during the rebuild of its first term makes the next one fold each run again.
	require.Eventually(w.TB, func() bool {
		mark, _, err := w.Shard.Checkpoints.Watermark(w.TB.Context())
		return err == nil && mark.RebuildTo == 0
	}, time.Minute, time.Millisecond)
	return r
}

// unwritten is a run without events in the log.
func (w *lifeWorld) unwritten(run string) *lifeRun {
	return &lifeRun{w.Unwritten(run, "executor-1"), w}
}
