package liveness

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Worker folds the fleet of a test. The package's own tests cannot import it, so the external tests provide it.
type Worker interface {
	Leads() bool
	Run(ctx context.Context) error
}

// NewWorker makes a fold worker that leaves the sweeps to the test.
var NewWorker func(w *fleettest.World, live *LiveRuns, heartbeats *Heartbeats) (Worker, error)

// lifeWorld is a fleet whose fold worker folds in real time, and whose sweeps and clock belong to the test.
type lifeWorld struct {
	*fleettest.World
	// begun is the server's time when the clock was at noon.
	begun time.Time
	live  *LiveRuns
	hb    *Heartbeats
	stop  func()
	*Sweeper
}

func newLifeWorld(tb testing.TB, change ...func(*nats.Conn)) *lifeWorld {
	tb.Helper()
	w := &lifeWorld{World: fleettest.New(tb, change...), begun: time.Now()}
	log := natstest.Logger(tb)
	w.live = NewLiveRuns([]*kvstore.Shard{w.Shard}, 0, w.Clock.Now, log)
	w.Live = w.live
	w.hb = NewHeartbeats("default", w.NC, w.live, w.Clock.Now, log)
	w.hb.setSteady(nil, w.Clock.Now())
	w.Go(w.live.Run)
	w.fold()
	w.Sweeper = w.newSweeper()
	require.Eventually(tb, w.live.Synced, time.Minute, time.Millisecond)
	return w
}

// fold runs a fold worker.
func (w *lifeWorld) fold() {
	w.TB.Helper()
	f, err := NewWorker(w.World, w.live, w.hb)
	require.NoError(w.TB, err)
	w.stop = w.Go(f.Run)
	require.Eventually(w.TB, f.Leads, time.Minute, time.Millisecond)
}

// newSweeper is a sweeper at the beginning of a term, with the defaults.
func (w *lifeWorld) newSweeper() *Sweeper {
	keys, err := kvstore.NewKeyring(w.JS, "default")
	require.NoError(w.TB, err)
	s := newSweeper(Deps{JS: w.JS, Shard: w.Shard, Keys: keys, LiveRuns: w.live, Heartbeats: w.hb, Now: w.Clock.Now})
	s.served = func(context.Context) (time.Time, error) { return w.begun.Add(w.Clock.Now().Sub(fleettest.Noon)), nil }
	return s
}

// newSweeper has the defaults, and a shard that is folded.
func newSweeper(deps Deps) *Sweeper {
	deps.Stats, deps.Log = new(SweepStats), zerolog.Nop()
	deps.Ready, deps.Suspect = func() bool { return true }, func(string) {}
	s := NewSweeper(SweeperConfig{
		Fleet: "default", Holder: "daemon-1", Silence: schema.DefaultSilenceMS * time.Millisecond, Every: time.Second,
	}, deps)
	s.machine = deps.Now
	return s
}

// skip advances the clock at once, with a sweep that notices it and two more.
func (w *lifeWorld) skip(d time.Duration) {
	w.TB.Helper()
	w.Clock.Forward(d)
	require.NoError(w.TB, w.sweep(w.TB.Context()))
	w.pass(2, nil)
}

// pass advances the clock by so many seconds, with a sweep each, and calls each every second.
func (w *lifeWorld) pass(seconds int, each func()) {
	w.TB.Helper()
	for range seconds {
		w.Clock.Forward(time.Second)
		if each != nil {
			each()
		}
		require.NoError(w.TB, w.sweep(w.TB.Context()))
	}
}

// lifeRun is a run that the test writes.
type lifeRun struct {
	*fleettest.Run
	w *lifeWorld
}

// begin starts a run.
func (w *lifeWorld) begin(run, executor, instance string) *lifeRun {
	w.TB.Helper()
	return &lifeRun{w.Begin(run, executor, instance), w}
}

// unwritten is a run without events in the log.
func (w *lifeWorld) unwritten(run string) *lifeRun {
	return &lifeRun{w.Unwritten(run, "executor-1"), w}
}

// stays is for a run without a published event.
func (r *lifeRun) stays(status schema.Status) {
	r.w.TB.Helper()
	stats := r.w.deps.Stats
	require.Zero(r.w.TB, stats.Orphaned.Load()+stats.Expired.Load()+stats.RacesLost.Load())
	require.Equal(r.w.TB, status, r.Checkpoint().Status)
}

// keyless is the ring of a fleet without keys.
func keyless() *keyring.Ring {
	return keyring.New("default", func(context.Context) ([]schema.FleetKey, error) { return nil, nil }, nil, nil)
}
