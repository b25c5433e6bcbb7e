package liveness

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// lateTicks is the number of missed ticks after which the daemon itself counts as having been stopped.
	lateTicks = 3
	// sweepsPerSilence is how many ticks fit into the silence of a fleet at least.
	sweepsPerSilence = 5
	// sweepsAtOnce bounds the runs that a sweep writes to side by side.
	sweepsAtOnce = 8
	// sweepPatience bounds one of them.
	sweepPatience = 5 * time.Second
)

// SweeperConfig sets where a sweeper looks for silent executors, and how often. All fields are required.
type SweeperConfig struct {
	Fleet string
	// Holder names the daemon replica in the events that it writes.
	Holder string
	Shard  int
	// Silence is how long an executor may be silent, Every the pace of the sweeps, and PerSecond the most events that they write.
	Silence, Every time.Duration
	PerSecond      int
}

// Deps are what a sweeper works with. All fields are required.
type Deps struct {
	JS         jetstream.JetStream
	Shard      *kvstore.Shard
	Keys       *keyring.Ring
	LiveRuns   *LiveRuns
	Heartbeats *Heartbeats
	Stats      *SweepStats
	// Ready reports whether the shard is folded up to the end of the log.
	Ready func() bool
	// Suspect is told of a run whose entry or checkpoint may be wrong.
	Suspect func(run string)
	// Parked reports whether the fold leaves a run where it stands: its checkpoint is not that of its last event, so that nothing is
	// written behind it.
	Parked func(run string) bool
	// Now is the daemon's clock.
	Now func() time.Time
	Log zerolog.Logger
}

// SweepStats counts what sweepers did. Every field may be read at any time.
type SweepStats struct {
	// Orphaned runs; Expired waits; RacesLost of either, as another event came first.
	Orphaned, Expired, RacesLost atomic.Int64
	// FreshGraces counts the times that the silence timers reset.
	FreshGraces atomic.Int64
	// Sweeps counts completed passes over the live runs.
	Sweeps atomic.Int64
}

// Sweeper finds, tick by tick, the runs of a shard whose executor is gone and those whose wait has expired, and says so
// in their log, behind the last event that is checkpointed. Another event there says that somebody was faster, and that
// there is nothing to do.
//
//	not ready ──caught up, index in, heartbeats heard──▶ in grace ──silence──▶ sweeping
//	                                                        ▲                    │
//	                                                        └──late tick, reconnect┘
//
// It keeps no timer and no goroutine for a run: a tick goes through the live runs once.
type Sweeper struct {
	cfg  SweeperConfig
	deps Deps
	pace *rate.Limiter
	// served is the time by the server's clock, which waits expire by.
	served func(context.Context) (time.Time, error)
	// machine is the machine's clock, which tells whether the daemon was stopped. A test moves only the daemon's clock.
	machine func() time.Time

	mu sync.Mutex
	// grace is since when the silence of executors counts that are known by their events, which only a fold worker sees; zero
	// before the first sweep. heard is since when that of executors that heartbeat does: a daemon hears them whoever
	// folds.
	grace, heardSince time.Time
	// beaten is when the sweeper was last seen to run.
	beaten time.Time
	// waits: the pass before met a run of which a wait may expire. It is the sweep's own.
	waits bool
	// told are the ids of what observers were told of overdue work that still is. It is the sweep's own.
	told map[string]struct{}
}

// NewSweeper returns a sweeper of a shard. Call Run to start it.
func NewSweeper(cfg SweeperConfig, deps Deps) *Sweeper {
	return &Sweeper{
		cfg: cfg, deps: deps, pace: rate.NewLimiter(rate.Limit(cfg.PerSecond), sweepsAtOnce),
		served: (&serverClock{js: deps.JS, shard: deps.Shard, daemon: deps.Now}).now, machine: time.Now,
	}
}

// Run sweeps until ctx ends.
func (w *Sweeper) Run(ctx context.Context) {
	var group sync.WaitGroup
	// Beside the sweeps: one that waits for a slow disk is no sign that the daemon was stopped.
	group.Go(func() {
		w.everyTick(ctx, func() { w.beat() })
	})
	group.Go(func() {
		w.everyTick(ctx, func() {
			if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
				// The next tick tries again, and who loses the lease stops.
				w.deps.Log.Warn().Err(err).Msg("sweep interrupted, trying again")
			}
		})
	})
	group.Wait()
}

func (w *Sweeper) everyTick(ctx context.Context, do func()) {
	every := w.every()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
		if now := w.every(); now != every {
			every = now
			tick.Reset(every)
		}
	}
}

// silence is how long an executor may be silent: what the fleet asks for, else what the sweeper was made with.
func (w *Sweeper) silence() time.Duration { return cmp.Or(w.deps.Heartbeats.Silence(), w.cfg.Silence) }

// every is the pace of the sweeps: five fit into a silence that the fleet asks for. So a pause of the daemon that its late ticks do not
// tell leaves room for a heartbeat within the silence.
func (w *Sweeper) every() time.Duration {
	if asked := w.deps.Heartbeats.Silence(); asked > 0 {
		return min(w.cfg.Every, asked/sweepsPerSilence)
	}
	return w.cfg.Every
}

// beat notes that the daemon runs. It reports false when it did not for some ticks: what executors said meanwhile may not
// have been read yet, so that the silence timers reset.
func (w *Sweeper) beat() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.machine()
	late := !w.beaten.IsZero() && now.Sub(w.beaten) > lateTicks*w.every()
	w.beaten = now
	if late {
		w.regrace(w.deps.Now(), "the daemon was stopped or slow")
	}
	return !late
}

// graceFrom brings the grace up to date with what is known of the heartbeats.
func (w *Sweeper) graceFrom(steady time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.grace.IsZero() {
		w.regrace(w.deps.Now(), "this fold worker begins; who heartbeats was heard before")
		w.heardSince = steady
	}
	if steady.After(w.grace) {
		w.regrace(steady, "heartbeats may have been missed")
	}
	w.heardSince = later(w.heardSince, steady)
}

// since is since when the silence of an executor counts. The begin of the fold does not reset the timer
// of an executor that heartbeats and that this daemon heard before.
func (w *Sweeper) since(l *instanceLife) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.unheard() {
		return w.grace
	}
	return w.heardSince
}

// regrace is called under w.mu.
func (w *Sweeper) regrace(now time.Time, why string) {
	w.grace, w.heardSince = now, now
	w.deps.Stats.FreshGraces.Add(1)
	w.deps.Log.Info().Str(logkey.Reason, why).Dur("silence", w.silence()).Msg("silence timers reset")
}

// sweep is one tick.
func (w *Sweeper) sweep(ctx context.Context) error {
	if !w.beat() {
		return nil
	}
	steady, heard := w.deps.Heartbeats.Steady()
	if !heard || !w.deps.Ready() || !w.deps.LiveRuns.syncedShard(w.cfg.Shard) {
		return nil
	}
	w.graceFrom(steady)
	w.tellOverdue()
	// No run that waits for a limited time costs no question.
	var served time.Time
	var unknown error
	if w.waits {
		served, unknown = w.served(ctx)
	}
	waits := false
	due := w.deps.LiveRuns.due(w.cfg.Shard, w.perTick(), func(e *entry) bool {
		waits = waits || !e.expires.IsZero()
		return (w.gone(e) || expired(e, served)) && !w.deps.Parked(e.live.Run)
	})
	w.waits = waits
	var group errgroup.Group
	group.SetLimit(sweepsAtOnce)
	var paced error
	for _, e := range due {
		if paced = w.pace.Wait(ctx); paced != nil {
			break
		}
		// Waiting took time, in which the executor may have come back, or the daemon have been stopped.
		if !w.beat() || !w.deps.LiveRuns.stands(e) {
			continue
		}
		gone := w.gone(e)
		if !gone && !expired(e, served) {
			continue
		}
		now := w.deps.Now()
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, sweepPatience)
			defer cancel()
			return w.write(ctx, e, gone, now, served)
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
	return max(int(float64(w.cfg.PerSecond)*w.every().Seconds()), 1)
}

// attended reports whether the run needs an executor. One that waits costs nothing, whoever is gone.
func attended(l *schema.Live) bool {
	return l.Status == schema.StatusRunning || l.Status == schema.StatusWaiting && l.CancelRequested
}

// gone reports whether the run needs an executor and its own is silent for too long, or has left.
func (w *Sweeper) gone(e *entry) bool {
	if !attended(&e.live) || e.live.Executor == "" {
		return false
	}
	now := w.deps.Now()
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	if seen && !l.left.IsZero() && (e.live.Instance != "" || e.changed.Before(l.left)) {
		// It does nothing more. A process that names no instance may be a new one by now, if the run came after it.
		return true
	}
	if seen && l.gaveUp(e.live.Run, e.live.Epoch) {
		return true
	}
	since := e.changed
	if seen && l.interval > 0 {
		// It says by itself that it lives. That somebody else wrote, such as the answer to what the run waited for, is no
		// sign that it does.
		since = e.held
	}
	since = later(since, w.since(&l))
	if seen {
		since = later(since, l.seen)
	}
	return now.Sub(since) >= l.silence(w.silence())
}

// heard reports whether the run's executor was heard of within its silence, and neither leaves nor gave the run up.
func (w *Sweeper) heard(e *entry) bool {
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	return seen && l.left.IsZero() && !l.gaveUp(e.live.Run, e.live.Epoch) && w.deps.Now().Sub(l.seen) < l.silence(w.silence())
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

// write says in the run's log that its executor is gone, or which of its waits have expired by the server's clock.
func (w *Sweeper) write(ctx context.Context, e *entry, gone bool, now, served time.Time) error {
	run := e.live.Run
	asked := w.machine()
	c, _, err := w.deps.Shard.Checkpoints.GetFresh(ctx, run)
	if err == nil && gone && (w.machine().Sub(asked) > lateTicks*w.every() || w.heard(e)) {
		// A server that was stopped answers before it brings the heartbeats that waited for it, too. The next tick tells.
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
		// The checkpoint comes a moment after its entry. If that is not it, the entry is wrong.
		w.deps.Suspect(run)
		return nil
	}
	at, digest := c.Position.Stream, c.Digest
	for i := range c.Interrupts {
		o := &c.Interrupts[i]
		expires := parseTime(o.ExpiresAt)
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
	data := w.orphaned(e, now)
	if at, _, err = w.publish(ctx, c, data, at, digest); err != nil || at == 0 {
		return err
	}
	w.deps.Stats.Orphaned.Add(1)
	w.deps.Log.Info().Str(logkey.Run, run).Str("executor", data.Executor).Str("instance", data.Instance).
		Str("last_seen", data.LastSeen).Msg("run orphaned: its executor is gone")
	return nil
}

// orphaned is the data of run.orphaned.
func (w *Sweeper) orphaned(e *entry, now time.Time) *schema.RunOrphanedData {
	data := &schema.RunOrphanedData{Executor: e.live.Executor, Instance: e.live.Instance}
	l, seen := w.deps.Heartbeats.last(e.live.Executor, e.live.Instance, w.silence())
	since := later(e.changed, w.since(&l))
	if seen {
		data.LastSeen = schema.FormatTime(l.seen)
		since = l.seen
	}
	data.Missed = int64(now.Sub(since) / cmp.Or(l.interval, schema.DefaultHeartbeatMS*time.Millisecond))
	return data
}

// publish stores a control event behind the run's last event, at which the run has a digest, and returns its place and the run's digest
// there, or 0 when another came first.
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
		w.deps.Suspect(c.Run) // unless its checkpoint is older than what was folded, which would refuse it for ever
		w.deps.Log.Debug().Str(logkey.Run, c.Run).Str("event", data.EventName()).Msg("another event came first")
		return 0, "", nil
	}
	return at, schema.DigestAfter(digest, e), err
}
