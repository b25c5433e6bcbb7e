package fold

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/purge"
	"github.com/waymarkio/waymark/consumer/retention"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Stats counts a worker's work since it was created. Every field may be read at any time.
type Stats struct {
	// Events folded, accepted or not, without replays; Replayed are those read again.
	Events, Replayed atomic.Int64
	// Applied events.
	Applied atomic.Int64
	// DeadLetters stored, and rejected events without one, because their run had too many.
	DeadLetters, DeadLettersDropped atomic.Int64
	// Checkpoints put.
	Checkpoints atomic.Int64
	// LeaseRenewal is how long the last renewal of the shard's lease took, in nanoseconds; 0 before the first.
	LeaseRenewal atomic.Int64
	// Segments sealed, and their bytes as stored.
	Segments, SegmentBytes atomic.Int64
	// PayloadBytes and LogBytes of the folded events: their bodies, and their size in the log; CheckpointBytes of the
	// checkpoints put, as JetStream counts them.
	PayloadBytes, LogBytes, CheckpointBytes atomic.Int64
	// SealedFromLog counts the segments whose events were read from the log again for lack of memory.
	SealedFromLog atomic.Int64
	// Unstored counts the checkpoints that fit no message, and were not put.
	Unstored atomic.Int64
	// SealsRefused counts segments postponed by a full or failing bucket.
	SealsRefused atomic.Int64
	// Purge counts purged events.
	Purge purge.Stats
	// Failures that ended a term, including the two below.
	Failures atomic.Int64
	// Sweep counts runs orphaned and waits expired.
	Sweep liveness.SweepStats
	// Notices sent to executors; Quarantined runs announced.
	Notices, Quarantined atomic.Int64
	// Batches committed; Regressions of the log; Rebuilds of a run.
	Batches, Regressions, Rebuilds atomic.Int64
	// Position is the stream sequence of the last batch committed.
	Position atomic.Uint64
	// Boundaries accepted, and those followed by a checkpoint, without the counts of earlier workers.
	Boundaries, Covered atomic.Int64
	// Completed, ByTool, Limited and SummedUp count ends of runs; see [schema.FoldTotals].
	Completed, ByTool, Limited, SummedUp atomic.Int64
	// Beat is when the worker last made progress, folding or standing by, in nanoseconds since 1970; 0 before it
	// runs.
	Beat atomic.Int64
}

// Worker folds one shard: it reads the shard's events in order, and turns them into checkpoints and segments. Many
// replicas may run a Worker for the same shard. The lease lets one work; if two ever work at once, the
// compare-and-set of every checkpoint and of the watermark lets one win.
//
//	standing by ──lease──▶ reading _.fold ──▶ folding ──error, conflict, lease lost──▶ standing by
//	                                           │  ▲
//	                                 regressed ▼  │ from the log's beginning
//	                                          rebuilding
//
// A failure loses no data: the log has every event, and the watermark says where to begin again.
type Worker struct {
	cfg   Config
	nc    *nats.Conn
	js    jetstream.JetStream
	shard *kvstore.Shard
	// keys sign and check the fleet's control events.
	keys  *keyring.Ring
	dead  *kvstore.DeadLetters
	names schema.Names
	log   zerolog.Logger
	stats Stats
	now   func() time.Time
	// fromStart: the next term folds the log from its beginning, because it went back. Only Run's goroutine uses it.
	fromStart bool
	// unclean: not everything affected by an unclean start is folded again. Only the folding goroutine uses it.
	unclean bool
	// leading: the worker holds the shard's lease, as far as it knows.
	leading atomic.Bool
	// folded is the last watermark that this worker put; see checkFolded.
	folded kvstore.Watermark
	// shorter judges the signs that the log does not reach the folded position.
	shorter eventlog.Shorter
}

// New returns a worker of a provisioned shard. Call Run to start it.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, shard *kvstore.Shard, now func() time.Time, log zerolog.Logger) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	dead, err := kvstore.NewDeadLetters(js, cfg.Fleet)
	if err != nil {
		return nil, err
	}
	keys, err := kvstore.NewKeyring(js, cfg.Fleet)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Worker{
		cfg: cfg, keys: keys, nc: nc, js: js, shard: shard, dead: dead,
		names: schema.NamesOf(cfg.Fleet, cfg.Shard), now: now, unclean: cfg.UncleanStart,
		log: log.With().Str(logkey.Fleet, cfg.Fleet).Int(logkey.Shard, cfg.Shard).Logger(),
	}, nil
}

// awaitKeys returns the fleet's keys, and waits while they are unreadable: a term that failed because of them would
// start with the same wait.
func (f *Worker) awaitKeys(ctx context.Context) (*schema.Keys, error) {
	for {
		keys, err := f.keys.Keys(ctx)
		if err == nil || !errors.Is(err, keyring.ErrRead) || ctx.Err() != nil {
			return keys, err
		}
		f.log.Warn().Err(err).Msg("fold worker waits for the keys of the fleet")
		if err := pause.For(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// Stats returns the worker's counters.
func (f *Worker) Stats() *Stats { return &f.stats }

// Leads reports whether the worker holds the shard's lease, as far as it knows.
func (f *Worker) Leads() bool { return f.leading.Load() }

// LeaseRenewal is how long the last renewal of the shard's lease took; 0 before the first.
func (f *Worker) LeaseRenewal() time.Duration { return time.Duration(f.stats.LeaseRenewal.Load()) }

// beat records progress of the worker.
func (f *Worker) beat() { f.stats.Beat.Store(f.now().UnixNano()) }

var (
	// errRegressed ends a term: the log does not match the checkpoints.
	errRegressed = errors.New("the log went back: its sequences are used again or its end is gone")
	// errSuperseded ends a term: another worker has won.
	errSuperseded = errors.New("another fold worker won")
	// errRebalanced ends a term: another replica with fewer shards gets the shard.
	errRebalanced = errors.New("the shard is handed over")
)

// Run folds until ctx ends. It waits for the server after failures and logs them, but never returns them: a worker
// that gave up would leave its shard without checkpoints. It returns nil after a clean stop.
func (f *Worker) Run(ctx context.Context) error {
	const first, most = 100 * time.Millisecond, 5 * time.Second
	wait := first
	for ctx.Err() == nil {
		f.beat()
		began := f.now()
		err := f.lead(ctx)
		if stopped := ctx.Err() != nil; stopped {
			return nil //nolint:nilerr // the term was told to end
		}
		if errors.Is(err, errRebalanced) {
			continue
		}
		f.stats.Failures.Add(1)
		switch {
		case errors.Is(err, errSuperseded):
			f.log.Warn().Err(err).Msg("another fold worker won, standing by")
		case errors.Is(err, errRegressed):
			f.stats.Regressions.Add(1)
			f.fromStart = true
			f.log.Error().Err(err).Msg("log regressed, folding it again from its beginning")
		case errors.Is(err, schema.ErrFormat):
			f.log.Error().Err(err).Str("hint", "upgrade this daemon").Msg("shard has data of a later version, not folding it")
		default:
			f.log.Warn().Err(err).Msg("fold interrupted, trying again")
		}
		if f.now().Sub(began) > most {
			wait = first
		}
		_ = pause.For(ctx, wait) // the loop ends with ctx, too
		wait = min(2*wait, most)
	}
	return nil
}

// lead is one term, while the lease is held: read the position, fold from there, until something fails.
func (f *Worker) lead(ctx context.Context) error {
	lease, err := f.acquire(ctx)
	if err != nil {
		return err
	}
	f.leading.Store(true)
	defer f.leading.Store(false)
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The lease is kept until the current batch is committed, so that no other worker folds the shard in the
	// meantime.
	keep, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	kept := make(chan error, 1)
	go func() {
		err := f.keepLease(keep, lease)
		stop(err)
		kept <- err
	}()
	err = f.work(work)
	release()
	lost := <-kept
	f.giveBack(ctx, lease)
	if lost != nil {
		return lost
	}
	return err
}

// work folds until something fails, or ctx ends.
func (f *Worker) work(ctx context.Context) error {
	s, err := f.begin(ctx)
	if err != nil {
		return err
	}
	f.fromStart = false
	f.log.Debug().Uint64(logkey.Position, uint64(s.mark.Position.Stream)).Bool("rebuild", s.rebuild).Msg("folding")
	return s.loop(ctx)
}

// term is the memory of one term. It is dropped at the end, so that no stale state survives a lost lease.
type term struct {
	*Worker
	incarnation string
	mark        kvstore.Watermark
	markRev     schema.Revision
	pace        pace
	// rebuild: the term begins at the log's beginning. While the watermark has a RebuildTo, checkpoints are not
	// trusted, and runs are folded again from segments and log.
	rebuild bool
	// distrust: the checkpoints may be of another log, and segments without a checkpoint, too.
	distrust bool
	// doubted is the position of the watermark that the term found. An unclean start begins before it.
	doubted schema.StreamSequence
	// passed is the last message of the log that was taken.
	passed schema.StreamSequence
	// behind is the last known number of unfolded messages in the log.
	behind atomic.Uint64
	// committed is the stream sequence of the last batch committed.
	committed atomic.Uint64
	cache     runCache
	// room for the frames of tails.
	room frameRoom
	// totals adds the events of the term to those folded before it.
	totals totals
	// watch counts the work of agents.
	watch     activity.Watch
	safeMark  safeMark
	spending  spending
	letters   letters
	sealer    sealer
	live      liveIndex
	announcer announcer
	losses    losses
	// purger removes sealed events from the log, and remover the data of removed runs.
	purger  *purge.Purger
	remover *retention.Remover
}

// newTerm is a term before it has read any state.
func (f *Worker) newTerm() *term {
	s := &term{
		Worker: f, cache: newRunCache(f.cfg.CachedRuns), room: frameRoom{limit: f.cfg.TailMemory},
		safeMark:  safeMark{after: f.cfg.SafeAfter},
		letters:   letters{dead: f.dead, names: f.names, stats: &f.stats, now: f.now, log: f.log},
		sealer:    sealer{shard: f.shard, js: f.js, names: f.names, stats: &f.stats, log: f.log},
		live:      liveIndex{shard: f.shard, log: f.log},
		announcer: announcer{nc: f.nc, fleet: f.cfg.Fleet, holder: f.cfg.Holder, maxClaims: f.cfg.MaxClaims, stats: &f.stats, now: f.now, log: f.log},
	}
	s.sealer.refold = s.refold
	return s
}

// begin reads the watermark and decides from where to fold.
func (f *Worker) begin(ctx context.Context) (*term, error) {
	s := f.newTerm()
	var err error
	if s.incarnation, err = f.shard.Incarnation(ctx); err != nil {
		return nil, err
	}
	s.letters.incarnation = s.incarnation
	s.mark, s.markRev, err = f.shard.Checkpoints.Watermark(ctx)
	if errors.Is(err, kvstore.ErrStreamMissing) && f.cfg.Reprovision != nil {
		f.log.Error().Err(err).Msg("checkpoint bucket is gone, creating it again")
		if err := f.cfg.Reprovision(ctx); err != nil {
			return nil, err
		}
		s.mark, s.markRev, err = f.shard.Checkpoints.Watermark(ctx)
	}
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt):
		// A new shard, or a lost checkpoint bucket: it is derived and built again.
		s.rebuild = true
		s.mark = kvstore.Watermark{}
	case err != nil:
		return nil, err
	case s.mark.Incarnation != s.incarnation:
		f.log.Error().Str("was", s.mark.Incarnation).Str("is", s.incarnation).Msg("event stream was replaced, rebuilding checkpoints")
		s.rebuild, s.distrust = true, true
		s.mark = kvstore.Watermark{}
	}
	if f.fromStart {
		s.rebuild, s.distrust = true, true
		s.mark = kvstore.Watermark{}
	}
	s.distrust = s.distrust || s.mark.RebuildTo > 0 // an earlier term did not end its rebuild, whatever its reason
	if err := s.checkFolded(ctx); err != nil {
		return nil, err
	}
	s.doubted = s.mark.Position.Stream
	if f.unclean && s.mark.Safe.Stream < s.mark.Position.Stream {
		s.mark.Position = s.mark.Safe
		f.log.Info().Uint64(logkey.Position, uint64(s.mark.Position.Stream)).Msg("unclean start of the server, folding from the safe position")
	}
	if !s.rebuild && s.mark.Position.Stream > 0 {
		if err := s.checkPosition(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.beginSpending(ctx); err != nil {
		return nil, err
	}
	s.mark.Incarnation = s.incarnation
	s.safeMark.begin(s.mark.Safe, s.mark.Position, f.now())
	s.passed = s.mark.Position.Stream
	s.setCommitted()
	s.totals = totals{before: s.mark.Totals, began: s.stats.totals()}
	if err := s.beginRebuild(ctx); err != nil {
		return nil, err
	}
	s.remover = retention.New(retention.Config{Holder: f.cfg.Holder, SafeAfter: f.cfg.SafeAfter}, retention.Deps{
		JS: f.js, Shard: f.shard, Keys: f.keys, Folded: func() schema.StreamSequence { return schema.StreamSequence(s.committed.Load()) }, Now: f.now, Log: f.log,
	})
	s.purger, err = purge.New(ctx, purge.Config{Holder: f.cfg.Holder, After: f.cfg.PurgeAfter, Least: f.cfg.leastGrace(), Every: f.cfg.SweepEvery}, purge.Deps{
		Conn: f.nc, JS: f.js, Shard: f.shard, Stats: &f.stats.Purge, Now: f.now, Log: f.log,
		Folded: func() schema.StreamSequence { return schema.StreamSequence(s.committed.Load()) },
		Erased: func(run string) { s.remover.Add(run) },
	}, s.incarnation, f.unclean)
	s.sealer.purger = s.purger
	return s, supersededOr(err)
}

// setCommitted records that everything up to the watermark is folded and stored.
func (s *term) setCommitted() {
	at := uint64(s.mark.Position.Stream)
	s.committed.Store(at)
	s.stats.Position.Store(at)
}

// lost turns a conflict into errSuperseded: another worker folds this shard and has won.
func lost(err error) error {
	if errors.Is(err, kvstore.ErrConflict) {
		return fmt.Errorf("%w: %w", errSuperseded, err)
	}
	return err
}

// supersededOr turns the purger's error into errSuperseded if another worker won.
func supersededOr(err error) error {
	if errors.Is(err, purge.ErrSuperseded) {
		return fmt.Errorf("%w: %w", errSuperseded, err)
	}
	return err
}

func (f *Worker) acquire(ctx context.Context) (*kvstore.Lease, error) {
	lease, err := kvstore.NewLease(f.js, kvstore.LeaseConfig{Name: kvstore.FoldLease(f.names), Holder: f.cfg.Holder, TTL: f.cfg.LeaseTTL})
	if err != nil {
		return nil, err
	}
	share, shard := f.cfg.Share, f.cfg.Shard
	var asked time.Time
	for {
		f.beat()
		delay := share.delay(shard)
		err := share.try(func() error {
			err := lease.Acquire(ctx, f.now(), share.delay(shard))
			if err == nil {
				share.saw(shard, f.cfg.Holder)
			}
			return err
		})
		if err == nil {
			return lease, nil
		}
		held, ok := errors.AsType[*kvstore.HeldError](err)
		if !ok {
			return nil, err
		}
		wait := f.cfg.LeaseTTL / 4
		if held.Free {
			share.saw(shard, "")
			wait = min(wait, max(delay, f.cfg.LeaseTTL/shareSteps))
		} else {
			share.saw(shard, held.Holder)
		}
		if !held.Free && share.asks(held.Holder) {
			stored, err := lease.Ask(ctx)
			switch {
			case err != nil:
				f.log.Debug().Err(err).Msg("replica with more shards not asked for one")
			case stored:
				asked = f.now()
				f.log.Info().Str("replica", held.Holder).Msg("asking a replica with more shards for this one")
			}
			if !stored {
				share.unasked()
			}
		}
		if !asked.IsZero() && f.now().Sub(asked) < f.cfg.LeaseTTL {
			wait = f.cfg.LeaseTTL / shareSteps
		}
		if err := pause.For(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// keepLease renews the lease until ctx ends, or returns why the shard must not be folded any more.
func (f *Worker) keepLease(ctx context.Context, lease *kvstore.Lease) error {
	tick := time.NewTicker(f.cfg.LeaseTTL / leaseRenewals)
	defer tick.Stop()
	// The first renewal comes at once: it measures the cost of a durable write.
	for {
		began := time.Now()
		err := lease.Renew(ctx, f.now())
		switch {
		case err == nil:
			f.stats.LeaseRenewal.Store(int64(time.Since(began)))
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kvstore.ErrLeaseLost):
			return fmt.Errorf("%w: %w", errSuperseded, err)
		case err != nil && !lease.Valid(f.now()):
			// Compare-and-set fences the work in any case; stopping spares both sides the conflicts.
			return fmt.Errorf("lease not renewed for %s: %w", f.cfg.LeaseTTL, err)
		}
		if to := lease.WantedBy(); f.cfg.Share.yields(f.cfg.Shard, to) {
			f.log.Info().Str("replica", to).Msg("shard is handed over")
			return errRebalanced
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

const (
	// leaseRenewals is how often the lease is renewed within its time to live.
	leaseRenewals = 3
	// releasePatience bounds the release of a lease.
	releasePatience = 2 * time.Second
)

// giveBack releases the lease, so that the next worker need not wait until it expires.
func (f *Worker) giveBack(ctx context.Context, lease *kvstore.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
	defer cancel()
	f.cfg.Share.saw(f.cfg.Shard, "")
	if err := lease.Release(ctx); err != nil && !errors.Is(err, kvstore.ErrLeaseLost) {
		f.log.Debug().Err(err).Msg("lease not released, it will expire")
	}
}
