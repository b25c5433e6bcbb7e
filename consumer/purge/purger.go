package purge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxQueue bounds the runs that wait for their purge; a walk through the log finds the others again.
	maxQueue = 1 << 16
	// purgePause is the pause between two purges, unless the log is nearly full: executors publish in between.
	purgePause = 5 * time.Millisecond
	// purgePatience bounds the proof and the purge of a run. A proof is used within proofTrust or repeated: a process
	// that was paused in between must not act on old knowledge.
	purgePatience = 30 * time.Second
	proofTrust    = 10 * time.Second
	// proofBytes bounds the events of one proof. A proof that took too long is repeated with a quarter, down to
	// leastProofBytes: on a slow machine a long run is purged in pieces.
	proofBytes      = 32 << 20
	leastProofBytes = 2 << 20
	// markEvery is the interval at which the purge cursor is stored.
	markEvery = time.Minute
	// purgeTick is the longest pause between two looks at the queue.
	purgeTick = 5 * time.Second
)

// ErrSuperseded ends a purger whose cursor was moved by another one: another fold worker has the shard.
var ErrSuperseded = errors.New("another purger moved the purge mark")

// Config sets when sealed events leave the log.
type Config struct {
	// Holder names the daemon in the purge cursor. Required.
	Holder string
	// After is how long events stay in the log after they were sealed; 0 or less is forever.
	After time.Duration
	// Least is how long they stay even in a log that is nearly full. 0 means no wait in a full log.
	Least time.Duration
	// Every is the interval at which an idle purger looks for work. Required, above 0.
	Every time.Duration
}

// purges reports whether sealed events are ever purged.
func (c *Config) purges() bool { return c.After > 0 }

// Stats counts the work of a purger. Every field may be read at any time.
type Stats struct {
	// Purges of a run, the events removed from the log, and their bytes (headers and data).
	Purges, Events, Bytes atomic.Int64
	// ProofsFailed counts the proofs that found events not sealed; Relieved the times that a nearly full log was
	// relieved without waiting.
	ProofsFailed, Relieved atomic.Int64
}

// Deps are the dependencies of a purger. All are required.
type Deps struct {
	Conn  *nats.Conn
	JS    jetstream.JetStream
	Shard *kvstore.Shard
	Stats *Stats
	Now   func() time.Time
	Log   zerolog.Logger
	// Folded is the position up to which all events are folded and stored.
	Folded func() schema.StreamSequence
	// Erased gets a removed run whose log has more than run.erased.
	Erased func(run string)
}

// Purger removes events from a shard's log some time after they were sealed. It learns which runs to check from the
// fold of this term, and from a walk through the log after its cursor for what earlier terms left. It proves
// everything again from stored data before it deletes; its memory only says when and where to look.
//
//	sealing ──▶ queue ──grace──▶ prove ──▶ purge
//	walk ──────▶  ▲                │ not proven: nothing is purged, an alarm
//	              └── tried later ─┘
type Purger struct {
	cfg         Config
	deps        Deps
	incarnation string
	// press asks the fold goroutine to seal tails early, for a number of bytes.
	press chan int64

	mu    sync.Mutex
	queue queue
	// mark is the stored cursor: everything below it was checked. markRev is its revision.
	mark    schema.StreamSequence
	markRev schema.Revision
	// walking is where the current walk began, 0 without one.
	walking schema.StreamSequence
	// purgedBefore: a purger ran before this term.
	purgedBefore bool
	// wake tells the walk that there is room in the queue.
	wake chan struct{}
	// sealedMore tells the purge of a full log that more events are sealed and counted.
	sealedMore chan struct{}
	// pressed: the last look found the log nearly full. Only the purging goroutine uses it.
	pressed bool
}

// New reads the cursor of earlier terms. incarnation is the event stream's. unclean says that the server may have
// undone purges.
func New(ctx context.Context, cfg Config, deps Deps, incarnation string, unclean bool) (*Purger, error) {
	p := &Purger{
		cfg: cfg, deps: deps, incarnation: incarnation, press: make(chan int64),
		queue: newQueue(cfg.After), wake: make(chan struct{}, 1), sealedMore: make(chan struct{}, 1),
	}
	mark, rev, err := deps.Shard.PurgeMark(ctx)
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt):
	case err != nil:
		return nil, err
	case mark.Incarnation == incarnation:
		p.mark = mark.Position.Stream
	}
	p.markRev, p.purgedBefore = rev, rev != 0
	if !cfg.purges() {
		return p, nil
	}
	if unclean && p.mark > 1 {
		// A purge may have been undone for runs that get no more events.
		if err := p.putMark(ctx, 1); err != nil {
			return nil, err
		}
	}
	p.walking = max(p.mark, 1)
	return p, nil
}

// PurgedBefore reports whether a purger ran before this term.
func (p *Purger) PurgedBefore() bool { return p.purgedBefore }

// Press is how many bytes of tails the fold should seal early, because the log is nearly full.
func (p *Purger) Press() <-chan int64 { return p.press }

// Sealing is called before a segment is stored. When it returns, a crash can no longer hide the run from the next
// term's walk.
func (p *Purger) Sealing(ctx context.Context, run string, first, last schema.StreamSequence, bytes int64) error {
	if !p.cfg.purges() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.sealed(run, first, last, bytes, p.deps.Now())
	if first >= p.mark {
		return nil
	}
	// The tail of a run that waited long begins below the cursor.
	return p.putMark(ctx, first)
}

// putMark stores the cursor. Under p.mu.
func (p *Purger) putMark(ctx context.Context, at schema.StreamSequence) error {
	rev, err := p.deps.Shard.PutPurgeMark(ctx, kvstore.Watermark{
		Incarnation: p.incarnation, Position: schema.Position{Stream: at, ID: "purger"}, Worker: p.cfg.Holder,
		Updated: schema.FormatTime(p.deps.Now()),
	}, p.markRev)
	if errors.Is(err, kvstore.ErrConflict) {
		return fmt.Errorf("%w: %w", ErrSuperseded, err)
	}
	if err != nil {
		return err
	}
	p.mark, p.markRev = at, rev
	return nil
}

// markOnce ensures that there is a cursor before anything is purged: it tells later terms that the log may have been
// purged even if it begins with a run's first message.
func (p *Purger) markOnce(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.markRev != 0 {
		return nil
	}
	return p.putMark(ctx, 1)
}

// storeMark stores the cursor if it can move on: below everything that waits, and below events that are not folded
// yet.
func (p *Purger) storeMark(ctx context.Context, folded schema.StreamSequence) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := folded
	if p.walking != 0 {
		at = min(at, p.walking)
	}
	if first, ok := p.queue.first(); ok {
		at = min(at, first)
	}
	if at <= p.mark {
		return nil
	}
	return p.putMark(ctx, at)
}

// Run purges the queue until ctx ends. caughtUp says that the fold has processed what other workers left.
func (p *Purger) Run(ctx context.Context, caughtUp func() bool) error {
	if !p.cfg.purges() {
		return nil
	}
	for ctx.Err() == nil && !caughtUp() {
		_ = pause.For(ctx, p.cfg.Every) // the condition has its error
	}
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return p.walk(both) })
	group.Go(func() error { return p.purge(both) })
	if err := group.Wait(); ctx.Err() == nil || errors.Is(err, ErrSuperseded) {
		return err
	}
	return nil
}

// purge processes the queue.
func (p *Purger) purge(ctx context.Context) error {
	var marked time.Time
	for {
		if p.deps.Shard.Closed() {
			// Room in the log would be for events of executors only, whose checkpoints have none.
			if err := p.rest(ctx, fullLookMax/4); err != nil {
				return err
			}
			continue
		}
		wait, err := p.relieve(ctx)
		if err != nil {
			return err
		}
		paused := p.deps.Shard.Paused(ctx, p.deps.Now()) // a full log does not wait
		for looked := time.Now(); !paused && time.Since(looked) < wait; paused = p.deps.Shard.Paused(ctx, p.deps.Now()) {
			e, ok := p.takeDue()
			if !ok {
				break
			}
			if _, err := p.purgeRun(ctx, e, proofBytes); err != nil {
				return err
			}
			if err := pause.For(ctx, purgePause); err != nil {
				return err
			}
		}
		if now := p.deps.Now(); now.Sub(marked) >= min(markEvery, p.cfg.After) {
			if err := p.storeMark(ctx, p.deps.Folded()); err != nil {
				if errors.Is(err, ErrSuperseded) {
					return err
				}
				p.deps.Log.Warn().Err(err).Msg("purge cursor not stored: the next start looks further back")
			}
			marked = now
		}
		if !paused {
			wait = min(wait, p.nextDue())
		}
		if err := p.rest(ctx, wait); err != nil {
			return err
		}
	}
}

// rest waits for a duration, or until there is more to gain in a log that is nearly full.
func (p *Purger) rest(ctx context.Context, d time.Duration) error {
	var more <-chan struct{}
	if p.pressed {
		more = p.sealedMore
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-more:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Counted is called when checkpoints count more segments than before.
func (p *Purger) Counted() {
	select {
	case p.sealedMore <- struct{}{}:
	default:
	}
}

// takeDue takes a run that is due out of the queue.
func (p *Purger) takeDue() (entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.queue.due(p.deps.Now())
	if ok {
		p.room()
	}
	return e, ok
}

// nextDue is the time until the next run is due.
func (p *Purger) nextDue() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(min(p.queue.wait(p.deps.Now()), purgeTick), time.Millisecond)
}

// room tells the walk that there is room. Under p.mu.
func (p *Purger) room() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// purgeRun proves and purges an entry, and returns the number of purged events. Only problems beyond this run are
// errors.
func (p *Purger) purgeRun(ctx context.Context, e entry, piece int64) (events int64, err error) {
	again, freed := false, false
	for {
		// Read before the proof: events folded by then have their checkpoint.
		folded := p.deps.Folded()
		work, cancel := context.WithTimeout(ctx, purgePatience)
		is, err := p.purgeOnce(work, e.run, e.upTo, piece)
		freed = freed || err == nil && is.events > 0
		events += is.purged
		late := work.Err() != nil
		cancel()
		var un *unproven
		switch {
		case ctx.Err() != nil:
			again = true
		case err == nil && is.more:
			continue
		case err == nil:
			again = is.sealed < e.counted || folded < e.met // its checkpoint is about to be put
		case (late || errors.Is(err, errSlowProof)) && piece > leastProofBytes:
			piece = max(piece/4, leastProofBytes)
			continue
		case errors.As(err, &un):
			p.deps.Stats.ProofsFailed.Add(1)
			p.deps.Log.Error().Err(err).Str(logkey.Run, e.run).Str("hint", un.hint(e.run)).
				Msg("sealed events could not be proven complete, run not purged")
			again, e.failed = true, true
		default:
			p.deps.Log.Debug().Err(err).Str(logkey.Run, e.run).Msg("purge postponed")
			again = true
		}
		break
	}
	if e.fruitless++; freed {
		e.fruitless = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.done(e, again, p.deps.Now())
	return events, nil
}

// errSlowProof says that a proof took so long that data may have changed in the meantime.
var errSlowProof = errors.New("the proof took too long")

// purgeOnce proves a part of a run and purges it.
func (p *Purger) purgeOnce(ctx context.Context, run string, upTo schema.StreamSequence, piece int64) (proof, error) {
	began := p.deps.Now()
	is, err := p.prove(ctx, run, upTo, piece)
	if err != nil || is.events == 0 {
		return is, err
	}
	p.mu.Lock()
	may := p.queue.mayGo(run, is.last)
	p.mu.Unlock()
	if !may {
		return is, fmt.Errorf("run %s: sealed while it was proven: %w", run, eventlog.ErrStale)
	}
	if err := p.markOnce(ctx); err != nil {
		return is, err
	}
	if is.ended {
		// Before the purge: with a single event of an ended run in the log, no purger would look at the run again.
		if err := p.deps.Shard.Checkpoints.Trim(ctx, run); err != nil {
			return is, err
		}
	}
	if took := p.deps.Now().Sub(began); took > proofTrust {
		return is, fmt.Errorf("%w: it took %s", errSlowProof, took)
	}
	if err := failpoint.Hit(ctx, failpoint.BeforePurge); err != nil {
		return is, err
	}
	n, err := p.deps.Shard.PurgeRun(ctx, run, is.last+1)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterPurge)
	}
	if err != nil {
		return is, err
	}
	is.purged = n
	p.deps.Stats.Events.Add(n)
	if n > 0 {
		p.deps.Stats.Bytes.Add(is.bytes)
		p.deps.Stats.Purges.Add(1)
	}
	p.deps.Log.Debug().Str(logkey.Run, run).Uint64("up_to", uint64(is.last)).Int64("events", n).Int64("bytes", is.bytes).Msg("purged")
	if n > is.events {
		p.deps.Log.Error().Str(logkey.Run, run).Int64("events", n).Int64("proven", is.events).Str("hint", "compare: waymark get "+run).
			Msg("the server purged more events than were proven to be sealed")
	}
	return is, nil
}
