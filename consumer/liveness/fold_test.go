package liveness_test

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
)

func init() {
	liveness.NewWorker = func(w *fleettest.World, live *liveness.LiveRuns, heartbeats *liveness.Heartbeats) (liveness.Worker, error) {
		return fold.New(fold.Config{
			Fleet: "default", Holder: "daemon-1", LeaseTTL: time.Second, ReconcileEvery: 20 * time.Millisecond,
			LiveRuns: live, Heartbeats: heartbeats, SweepEvery: time.Hour, Silence: 3 * time.Hour,
		}, w.NC, w.JS, w.Shard, w.Clock.Now, zerolog.Nop())
	}
}
