package liveness

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// sweepRate bounds the events of a sweeper per second.
	sweepRate = 200
	// sweepsAtOnce bounds the concurrent writes of a sweep.
	sweepsAtOnce = 8
	// sweepPatience bounds one of them.
	sweepPatience = 5 * time.Second
)

// SweeperConfig sets where a sweeper searches for silent executors, and how often. All fields are required.
type SweeperConfig struct {
	Fleet string
	// Holder names the daemon replica in its events.
	Holder string
	Shard  int
	// Silence is how long an executor may be silent, and Every the interval of the sweeps.
	Silence, Every time.Duration
}

// Deps are the dependencies of a sweeper. All fields are required.
type Deps struct {
	JS         jetstream.JetStream
	Shard      *kvstore.Shard
	Keys       *keyring.Ring
	LiveRuns   *LiveRuns
	Heartbeats *Heartbeats
	Stats      *SweepStats
	// Ready reports whether the shard is folded up to the end of the log.
	Ready func() bool
	// Suspect gets a run whose entry or checkpoint may be wrong.
	Suspect func(run string)
	// Now is the daemon's clock.
	Now func() time.Time
	Log zerolog.Logger
}

// SweepStats counts the work of sweepers. Every field may be read at any time.
type SweepStats struct {
	// Orphaned runs; Expired waits; RacesLost of both, because another event came first.
	Orphaned, Expired, RacesLost atomic.Int64
	// Sweeps counts completed passes over the live runs.
	Sweeps atomic.Int64
}

// Sweeper finds, tick by tick, the runs of a shard whose executor is gone or whose wait has expired, and writes that
// into their log, after the last checkpointed event. If another event came first, there is nothing to do.
//
// It waits until the shard is folded, the index is loaded, and heartbeats arrive. It has no timer and no goroutine per
// run: a tick goes through the live runs once.
type Sweeper struct {
	cfg  SweeperConfig
	deps Deps
	pace *rate.Limiter
	// served is the time by the server's clock, by which waits expire.
	served func(context.Context) (time.Time, error)
	// machine is the machine's clock, which shows how long a server takes to answer. A test moves only the daemon's
	// clock.
	machine func() time.Time
	// waits: the previous pass found a run whose wait may expire. Only the sweep uses it.
	waits bool
}

// NewSweeper returns a sweeper of a shard. Call Run to start it.
func NewSweeper(cfg SweeperConfig, deps Deps) *Sweeper {
	return &Sweeper{
		cfg: cfg, deps: deps, pace: rate.NewLimiter(sweepRate, sweepsAtOnce),
		served: NewServerClock(deps.JS, deps.Shard, deps.Now).Now, machine: time.Now,
	}
}

// Run sweeps until ctx ends.
func (w *Sweeper) Run(ctx context.Context) {
	every := w.every()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
			// The next tick tries again, and a worker that loses the lease stops.
			w.deps.Log.Warn().Err(err).Msg("sweep interrupted, trying again")
		}
		if now := w.every(); now != every {
			every = now
			tick.Reset(every)
		}
	}
}

// silence is how long an executor may be silent: the fleet's setting, else the sweeper's.
func (w *Sweeper) silence() time.Duration { return cmp.Or(w.deps.Heartbeats.Silence(), w.cfg.Silence) }

// every is the interval of the sweeps.
func (w *Sweeper) every() time.Duration { return w.deps.Heartbeats.every(w.cfg.Every) }

// sweep is one tick.
func (w *Sweeper) sweep(ctx context.Context) error {
	steady, heard := w.deps.Heartbeats.Steady()
	if !heard || !w.deps.Ready() || !w.deps.LiveRuns.syncedShard(w.cfg.Shard) {
		return nil
	}
	// The server's time is only read if a run waits for a limited time.
	var served time.Time
	var unknown error
	if w.waits {
		served, unknown = w.served(ctx)
	}
	waits := false
	due := w.deps.LiveRuns.due(w.cfg.Shard, w.perTick(), func(e *entry) bool {
		waits = waits || !e.expires.IsZero()
		return w.gone(e, steady) || expired(e, served)
	})
	w.waits = waits
	var group errgroup.Group
	group.SetLimit(sweepsAtOnce)
	var paced error
	for _, e := range due {
		if paced = w.pace.Wait(ctx); paced != nil {
			break
		}
		// Waiting took time, in which the executor may have come back, or the daemon have been paused.
		if steady, heard = w.deps.Heartbeats.Steady(); !heard || !w.deps.LiveRuns.stands(e) {
			continue
		}
		gone := w.gone(e, steady)
		if !gone && !expired(e, served) {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, sweepPatience)
			defer cancel()
			return w.write(ctx, e, gone, served)
		})
	}
	err := errors.Join(group.Wait(), paced, unknown)
	if err == nil {
		w.deps.Stats.Sweeps.Add(1)
	}
	return err
}

// perTick is how many runs one tick may write to.
func (w *Sweeper) perTick() int {
	return max(int(float64(w.pace.Limit())*w.every().Seconds()), 1)
}

// gone reports whether the run needs an executor and its own is silent for too long, or has left, or disowns the run.
// No heartbeat since steady was missed.
func (w *Sweeper) gone(e *entry, steady time.Time) bool {
	if !e.live.Attended || e.live.Executor == "" {
		return false
	}
	since := later(e.held, steady)
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	if !seen {
		return w.deps.Now().Sub(since) >= w.silence()
	}
	if l.held[e.live.Run] == e.live.Epoch { // else it takes the run over, and may not be able to
		e.named.Store(true)
	}
	switch {
	case l.leaving && (e.live.Instance != "" || e.held.Before(l.seen)):
		// It is not active any more. A process without an instance name may be a new one by now, if it got the run
		// later.
		return true
	case l.disowns(e):
		return true
	}
	return w.deps.Now().Sub(later(since, l.seen)) >= l.silence(w.silence())
}

// answerPatience is the least time that the answer to a claim may take before heartbeats disown the run: with a short
// heartbeat interval a busy daemon would take back what the executor is about to get.
const answerPatience = time.Second

// disowns reports whether the heartbeats of the run's instance list its runs without this one: not any more, or not a
// full interval after it got the run, and [answerPatience] at least.
func (l *instanceLife) disowns(e *entry) bool {
	if e.live.Instance == "" || l.held == nil || l.names(e.live.Run, e.live.Epoch) {
		return false
	}
	return e.named.Load() || l.seen.Sub(e.held) >= max(l.interval, answerPatience)
}

// heard reports whether the run's executor was seen within its silence, and neither leaves nor disowns the run.
func (w *Sweeper) heard(e *entry) bool {
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	return seen && l.alive(w.deps.Now(), w.silence()) && !l.disowns(e)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// expired reports whether a wait of the run is over at a time of the server's clock; zero is no time.
func expired(e *entry, served time.Time) bool {
	return !served.IsZero() && !e.expires.IsZero() && !e.expires.After(served)
}

// write writes into the run's log that its executor is gone, or which of its waits have expired by the server's
// clock.
func (w *Sweeper) write(ctx context.Context, e *entry, gone bool, served time.Time) error {
	run := e.live.Run
	asked := w.machine()
	c, _, err := w.deps.Shard.Checkpoints.GetFresh(ctx, run)
	if err == nil && gone && (w.machine().Sub(asked) > lateTicks*w.deps.Heartbeats.every(awakeEvery) || w.heard(e)) {
		// A server that was paused answers before it delivers the waiting heartbeats. The next tick decides.
		return nil
	}
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt), errors.Is(err, schema.ErrFormat):
		w.deps.Suspect(run)
		return nil
	case err != nil:
		return err
	}
	l := schema.LiveOf(&c.Head)
	if !c.Live() || !l.Same(&e.live) {
		// The checkpoint comes a moment after its entry. Otherwise the entry is wrong.
		w.deps.Suspect(run)
		return nil
	}
	at, digest := c.Position.Stream, c.Digest
	for i := range c.Interrupts {
		o := &c.Interrupts[i]
		expires := schema.ParseTime(o.ExpiresAt)
		if served.IsZero() || expires.IsZero() || expires.After(served) {
			continue
		}
		data := &schema.RunInputData{InterruptID: o.InterruptID, Status: schema.InputExpired, By: w.cfg.Holder}
		if at, digest, err = w.publish(ctx, c, data, at, digest); err != nil || at == 0 {
			return err
		}
		w.deps.Stats.Expired.Add(1)
		w.deps.Log.Info().Str(logkey.Run, run).Str("interrupt", o.InterruptID).Msg("wait expired")
	}
	if !gone {
		return nil
	}
	data := w.orphaned(e)
	if at, _, err = w.publish(ctx, c, data, at, digest); err != nil || at == 0 {
		return err
	}
	w.deps.Stats.Orphaned.Add(1)
	w.deps.Log.Info().Str(logkey.Run, run).Str("executor", data.Executor).Str("instance", data.Instance).
		Str("last_seen", data.LastSeen).Msg("run orphaned: its executor is gone")
	return nil
}

// orphaned is the data of run.orphaned. A heartbeat may have arrived while its event was prepared, so time is read here.
func (w *Sweeper) orphaned(e *entry) *schema.RunOrphanedData {
	data := &schema.RunOrphanedData{Executor: e.live.Executor, Instance: e.live.Instance}
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	since := e.held
	if seen {
		data.LastSeen = schema.FormatTime(l.seen)
		since = l.seen
		data.Unheld = !e.named.Load() && !l.leaving && l.disowns(e)
	}
	data.Missed = max(0, int64(w.deps.Now().Sub(since)/cmp.Or(l.interval, schema.DefaultHeartbeatMS*time.Millisecond)))
	return data
}

// publish stores a control event after the run's last event, at which the run has a digest, and returns its position
// and the run's digest there, or 0 if another event came first.
func (w *Sweeper) publish(ctx context.Context, c *schema.Checkpoint, data schema.Data, last schema.StreamSequence, digest string) (schema.StreamSequence, string, error) {
	e, err := schema.NewControl(w.cfg.Fleet, w.cfg.Holder, c.Run, c.Epoch, rand.Text(), data, w.deps.Now())
	if err != nil {
		return 0, "", fmt.Errorf("%s of run %s: %w", data.EventName(), c.Run, err)
	}
	if err := w.deps.Keys.Sign(ctx, e, digest); err != nil {
		return 0, "", fmt.Errorf("%s of run %s: %w", data.EventName(), c.Run, err)
	}
	at, err := control.Publish(ctx, w.deps.JS, w.deps.Shard, e, last)
	if errors.Is(err, control.ErrRefused) {
		w.deps.Stats.RacesLost.Add(1)
		w.deps.Suspect(c.Run) // unless its checkpoint is older than the folded position, which would refuse it forever
		w.deps.Log.Debug().Str(logkey.Run, c.Run).Str("event", data.EventName()).Msg("another event came first")
		return 0, "", nil
	}
	return at, schema.DigestAfter(digest, e), err
}
