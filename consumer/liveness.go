package consumer

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
	// sweepsAtOnce bounds the runs that a sweep writes to side by side.
	sweepsAtOnce = 8
	// sweepPatience bounds one of them.
	sweepPatience = 5 * time.Second
)

// sweepConfig sets where a sweeper looks for silent executors, and how often. All fields are required.
type sweepConfig struct {
	fleet, holder string
	shard         int
	roster        *Roster
	heartbeats    *Heartbeats
	// silence is how long an executor may be silent, every the pace of the sweeps, and perSecond the most events that they write.
	silence, every time.Duration
	perSecond      int
}

// sweep is what a folder's configuration says of its sweeper.
func (c *FolderConfig) sweep() sweepConfig {
	return sweepConfig{
		fleet: c.Fleet, holder: c.Holder, shard: c.Shard, roster: c.Roster, heartbeats: c.Heartbeats,
		silence: c.Silence, every: c.SweepEvery, perSecond: c.OrphansPerSecond,
	}
}

// SweepStats counts what sweepers did. Every field may be read at any time.
type SweepStats struct {
	// Orphaned runs; Expired waits; RacesLost of either, as another event came first.
	Orphaned, Expired, RacesLost atomic.Int64
	// FreshGraces counts the times that the silence timers reset.
	FreshGraces atomic.Int64
}

// sweeper finds, tick by tick, the runs of a shard whose executor is gone and those whose wait has expired, and says so
// in their log, behind the last event that is checkpointed. Another event there says that somebody was faster, and that
// there is nothing to do.
//
//	not ready ──caught up, roster in, heartbeats heard──▶ in grace ──silence──▶ sweeping
//	                                                        ▲                    │
//	                                                        └──late tick, reconnect┘
//
// It keeps no timer and no goroutine for a run: a tick goes through the roster once.
type sweeper struct {
	cfg   sweepConfig
	keys  *keyring.Ring
	js    jetstream.JetStream
	shard *kvstore.Shard
	stats *SweepStats
	now   func() time.Time
	log   zerolog.Logger
	pace  *rate.Limiter
	// served is the time by the server's clock, which waits expire by.
	served func(context.Context) (time.Time, error)
	ready  func() bool
	wonder func(run string)
	// parked runs are written to by nobody: their checkpoint is not their last event's.
	parked func(run string) bool

	mu sync.Mutex
	// grace is since when the silence of executors counts that are known by their events, which only a folder sees; zero
	// before the first sweep. heard is since when that of executors that heartbeat does: a daemon hears them whoever
	// folds.
	grace, heardSince time.Time
	// beaten is when the sweeper was last seen to run.
	beaten time.Time
	// waits: the pass before met a run of which a wait may expire. It is the sweep's own.
	waits bool
}

// keepAlive sweeps while the reign lasts.
func (s *reignState) keepAlive(ctx context.Context) error {
	if s.cfg.Roster == nil || s.cfg.Heartbeats == nil {
		return nil
	}
	w := newSweeper(s.cfg.sweep(), s.keys, s.js, s.shard, &s.stats.Sweep, s.now, s.log)
	w.ready, w.wonder, w.parked = s.caughtUpWithLog, s.suspects.add, s.parked.has
	var group errgroup.Group
	// Beside the sweeps: one that waits for a slow disk is no sign that the daemon was stopped.
	group.Go(func() error {
		s.everyTick(ctx, func() { w.beat() })
		return nil
	})
	group.Go(func() error {
		s.everyTick(ctx, func() {
			if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
				// The next tick tries again, and who loses the lease stops.
				w.log.Warn().Err(err).Msg("sweep interrupted, trying again")
			}
		})
		return nil
	})
	return group.Wait()
}

func (s *reignState) everyTick(ctx context.Context, do func()) {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

func newSweeper(cfg sweepConfig, keys *keyring.Ring, js jetstream.JetStream, shard *kvstore.Shard, stats *SweepStats, now func() time.Time, log zerolog.Logger) *sweeper {
	return &sweeper{
		cfg: cfg, keys: keys, js: js, shard: shard, stats: stats, now: now, log: log,
		pace:   rate.NewLimiter(rate.Limit(cfg.perSecond), sweepsAtOnce),
		served: (&serverClock{js: js, shard: shard}).now,
		ready:  func() bool { return true }, wonder: func(string) {}, parked: func(string) bool { return false },
	}
}

// beat notes that the daemon runs. It reports false when it did not for some ticks: what executors said meanwhile may not
// have been read yet, so that the silence timers reset.
func (w *sweeper) beat() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	late := !w.beaten.IsZero() && now.Sub(w.beaten) > lateTicks*w.cfg.every
	w.beaten = now
	if late {
		w.regrace(now, "the daemon was stopped or slow")
	}
	return !late
}

// graceFrom brings the grace up to date with what is known of the heartbeats.
func (w *sweeper) graceFrom(steady time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.grace.IsZero() {
		w.regrace(w.now(), "this folder begins; who heartbeats was heard before")
		w.heardSince = steady
	}
	if steady.After(w.grace) {
		w.regrace(steady, "heartbeats may have been missed")
	}
	w.heardSince = later(w.heardSince, steady)
}

// since is since when the silence of an executor counts. The begin of the fold does not reset the timer
// of an executor that heartbeats and that this daemon heard before.
func (w *sweeper) since(l *instanceLife) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.unheard() {
		return w.grace
	}
	return w.heardSince
}

// regrace is called under w.mu.
func (w *sweeper) regrace(now time.Time, why string) {
	w.grace, w.heardSince = now, now
	w.stats.FreshGraces.Add(1)
	w.log.Info().Str(logkey.Reason, why).Dur("silence", w.cfg.silence).Msg("silence timers reset")
}

// sweep is one tick.
func (w *sweeper) sweep(ctx context.Context) error {
	if !w.beat() {
		return nil
	}
	steady, heard := w.cfg.heartbeats.Steady()
	if !heard || !w.ready() || !w.cfg.roster.syncedShard(w.cfg.shard) {
		return nil
	}
	w.graceFrom(steady)
	// No run that waits for a limited time costs no question.
	var served time.Time
	var unknown error
	if w.waits {
		served, unknown = w.served(ctx)
	}
	waits := false
	due := w.cfg.roster.due(w.cfg.shard, w.perTick(), func(e *rosterEntry) bool {
		waits = waits || !e.expires.IsZero()
		return (w.gone(e) || expired(e, served)) && !w.parked(e.live.Run)
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
		if !w.beat() || !w.cfg.roster.stands(e) {
			continue
		}
		gone := w.gone(e)
		if !gone && !expired(e, served) {
			continue
		}
		now := w.now()
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, sweepPatience)
			defer cancel()
			return w.write(ctx, e, gone, now, served)
		})
	}
	return errors.Join(group.Wait(), paced, unknown)
}

// perTick is how many runs one tick may write to.
func (w *sweeper) perTick() int {
	return max(int(float64(w.cfg.perSecond)*w.cfg.every.Seconds()), 1)
}

// attended reports whether the run needs an executor. One that waits costs nothing, whoever is gone.
func attended(l *schema.Live) bool {
	return l.Status == schema.StatusRunning || l.Status == schema.StatusWaiting && l.CancelRequested
}

// gone reports whether the run needs an executor and its own is silent for too long, or has left.
func (w *sweeper) gone(e *rosterEntry) bool {
	if !attended(&e.live) || e.live.Executor == "" {
		return false
	}
	now := w.now()
	l, seen := w.cfg.heartbeats.last(e.live.Executor, e.live.Instance, w.cfg.silence)
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
	return now.Sub(since) >= l.silence(w.cfg.silence)
}

// heard reports whether the run's executor was heard of within its silence, and neither leaves nor gave the run up.
func (w *sweeper) heard(e *rosterEntry) bool {
	l, seen := w.cfg.heartbeats.last(e.live.Executor, e.live.Instance, w.cfg.silence)
	return seen && l.left.IsZero() && !l.gaveUp(e.live.Run, e.live.Epoch) && w.now().Sub(l.seen) < l.silence(w.cfg.silence)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// expired reports whether a wait of the run is over at a time of the server's clock; zero is no time.
func expired(e *rosterEntry, served time.Time) bool {
	return !served.IsZero() && !e.expires.IsZero() && !e.expires.After(served)
}

// write says in the run's log that its executor is gone, or which of its waits have expired by the server's clock.
func (w *sweeper) write(ctx context.Context, e *rosterEntry, gone bool, now, served time.Time) error {
	run := e.live.Run
	asked := w.now()
	c, _, err := w.shard.Checkpoints.GetFresh(ctx, run)
	if err == nil && gone && (w.now().Sub(asked) > lateTicks*w.cfg.every || w.heard(e)) {
		// A server that was stopped answers before it brings the heartbeats that waited for it, too. The next tick tells.
		return nil
	}
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt), errors.Is(err, schema.ErrFormat):
		w.wonder(run)
		return nil
	case err != nil:
		return err
	}
	l := schema.LiveOf(&c.Head)
	if !c.Live() || !l.Same(&e.live) {
		// The checkpoint comes a moment after its entry. If that is not it, the entry is wrong.
		w.wonder(run)
		return nil
	}
	at, digest := c.Position.Stream, c.Digest
	for i := range c.Interrupts {
		o := &c.Interrupts[i]
		expires := parseTime(o.ExpiresAt)
		if served.IsZero() || expires.IsZero() || expires.After(served) {
			continue
		}
		data := &schema.RunInputData{InterruptID: o.InterruptID, Status: schema.InputExpired, By: w.cfg.holder}
		if at, digest, err = w.publish(ctx, c, data, at, digest); err != nil || at == 0 {
			return err
		}
		w.stats.Expired.Add(1)
		w.log.Info().Str(logkey.Run, run).Str("interrupt", o.InterruptID).Msg("wait expired")
	}
	if !gone {
		return nil
	}
	data := w.orphaned(e, now)
	if at, _, err = w.publish(ctx, c, data, at, digest); err != nil || at == 0 {
		return err
	}
	w.stats.Orphaned.Add(1)
	w.log.Info().Str(logkey.Run, run).Str("executor", data.Executor).Str("instance", data.Instance).
		Str("last_seen", data.LastSeen).Msg("run orphaned: its executor is gone")
	return nil
}

// orphaned is the data of run.orphaned.
func (w *sweeper) orphaned(e *rosterEntry, now time.Time) *schema.RunOrphanedData {
	data := &schema.RunOrphanedData{Executor: e.live.Executor, Instance: e.live.Instance}
	l, seen := w.cfg.heartbeats.last(e.live.Executor, e.live.Instance, w.cfg.silence)
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
func (w *sweeper) publish(ctx context.Context, c *schema.Checkpoint, data schema.Data, last schema.StreamSequence, digest string) (schema.StreamSequence, string, error) {
	e, err := schema.NewControl(w.cfg.fleet, w.cfg.holder, c.Run, c.Epoch, rand.Text(), data, w.now())
	if err != nil {
		return 0, "", fmt.Errorf("%s of run %s: %w", data.EventName(), c.Run, err)
	}
	if err := w.keys.Sign(ctx, e, digest); err != nil {
		return 0, "", fmt.Errorf("%s of run %s: %w", data.EventName(), c.Run, err)
	}
	at, err := control.Publish(ctx, w.js, w.shard, e, last)
	if errors.Is(err, control.ErrRefused) {
		w.stats.RacesLost.Add(1)
		w.wonder(c.Run) // unless its checkpoint is older than what was folded, which would refuse it for ever
		w.log.Debug().Str(logkey.Run, c.Run).Str("event", data.EventName()).Msg("another event came first")
		return 0, "", nil
	}
	return at, schema.DigestAfter(digest, e), err
}
