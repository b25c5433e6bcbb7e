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
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxQueue bounds the runs that wait for their purge; what does not fit is found again by a walk through the log.
	maxQueue = 1 << 16
	// purgePause is the pause between two purges, unless the log is nearly full: executors publish meanwhile.
	purgePause = 5 * time.Millisecond
	// purgePatience bounds the proof and the purge of a run. What was proven is used within proofTrust or proven again: a
	// process that was stopped in between must not act on what it knew.
	purgePatience = 30 * time.Second
	proofTrust    = 10 * time.Second
	// proofBytes bounds the events of one proof. A proof that took too long is begun again with a quarter, down to
	// leastProofBytes: on a slow machine a long run goes piece by piece.
	proofBytes      = 32 << 20
	leastProofBytes = 2 << 20
	// markEvery is the pace at which the purge mark is stored.
	markEvery = time.Minute
	// purgeTick is the longest pause before the queue is looked at again.
	purgeTick = 5 * time.Second
)

// ErrSuperseded ends a purger whose mark another one has moved: another fold worker has the shard.
var ErrSuperseded = errors.New("another purger moved the purge mark")

// Config sets when what is sealed leaves the log.
type Config struct {
	// Holder names the daemon in the purge mark. Required.
	Holder string
	// After is how long events stay in the log after they were sealed; 0 or less is for ever.
	After time.Duration
	// Least is how long they stay even in a log that is nearly full. 0 means that a full log does not wait.
	Least time.Duration
	// Every is the pace at which a purger without work looks for some. Required, above 0.
	Every time.Duration
}

// purges reports whether sealed events are ever purged.
func (c *Config) purges() bool { return c.After > 0 }

// Stats counts what a purger did. Every field may be read at any time.
type Stats struct {
	// Purges of a run, the events that they took out of the log, and their bytes (headers and data).
	Purges, Events, Bytes atomic.Int64
	// ProofsFailed counts the times that what was to be purged was not proven to be sealed; PutOff those that were tried again;
	// Relieved those that the log was nearly full and was relieved without waiting.
	ProofsFailed, PutOff, Relieved atomic.Int64
}

// Deps are what a purger works with. All are required.
type Deps struct {
	Conn  *nats.Conn
	JS    jetstream.JetStream
	Shard *kvstore.Shard
	Stats *Stats
	Now   func() time.Time
	Log   zerolog.Logger
	// Folded is the position up to which all is folded and stored.
	Folded func() schema.StreamSequence
	// Erased is told of a run that was removed and of which the log has more than the mark.
	Erased func(run string)
}

// Purger takes out of a shard's log what was sealed long enough ago. It knows which runs to look at from the fold that seals,
// in this term, and from a walk through the log behind its mark for what earlier terms left. What it deletes it
// proves again, each time, from what is stored; what it remembers only says when and where to look.
//
//	sealing ──▶ queue ──grace──▶ prove ──▶ purge
//	walk ──────▶  ▲                │ not proven: nothing is purged, an alarm
//	              └── tried later ─┘
type Purger struct {
	cfg         Config
	deps        Deps
	incarnation string
	marks       *kvstore.SafeWatermarks
	// press asks the goroutine that folds to seal tails early, for so many bytes.
	press chan int64

	mu    sync.Mutex
	queue queue
	// mark is what is stored: everything below it was looked at. markRev is its revision.
	mark    schema.StreamSequence
	markRev schema.Revision
	// walking is where the walk that is under way began, 0 without one.
	walking schema.StreamSequence
	// purgedBefore: a purger was at work before this term.
	purgedBefore bool
	// wake tells the walk that there is room in the queue.
	wake chan struct{}
	// sealedMore tells the purge of a full log that more of it is sealed and counted.
	sealedMore chan struct{}
	// pressed: the last look found the log nearly full. It is of the goroutine that purges.
	pressed bool
}

// New reads the mark of earlier terms. incarnation is the event stream's. unclean says that the server may have taken purges back.
func New(ctx context.Context, cfg Config, deps Deps, incarnation string, unclean bool) (*Purger, error) {
	p := &Purger{
		cfg: cfg, deps: deps, incarnation: incarnation, marks: kvstore.NewPurgeMarks(deps.JS), press: make(chan int64),
		queue: newQueue(cfg.After), wake: make(chan struct{}, 1), sealedMore: make(chan struct{}, 1),
	}
	mark, rev, err := p.marks.Get(ctx, deps.Shard.Names)
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
		// A purge may have been taken back, of runs that nothing is added to any more.
		if err := p.putMark(ctx, 1); err != nil {
			return nil, err
		}
	}
	p.walking = max(p.mark, 1)
	return p, nil
}

// PurgedBefore reports whether a purger was at work before this term.
func (p *Purger) PurgedBefore() bool { return p.purgedBefore }

// Press is how many bytes of tails the fold is to seal early, as the log is nearly full.
func (p *Purger) Press() <-chan int64 { return p.press }

// Sealing is told of a segment before it is stored. It returns when a crash from here on cannot hide the run from the
// next term's walk.
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
	// The tail of a run that waited long begins below the mark.
	return p.putMark(ctx, first)
}

// putMark stores the mark. Under p.mu.
func (p *Purger) putMark(ctx context.Context, at schema.StreamSequence) error {
	rev, err := p.marks.Put(ctx, p.deps.Shard.Names, kvstore.Watermark{
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

// markOnce makes sure that there is a mark before anything is purged: it tells later terms that a log which begins with
// a run's first message may have been purged all the same.
func (p *Purger) markOnce(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.markRev != 0 {
		return nil
	}
	return p.putMark(ctx, 1)
}

// storeMark stores the mark if it can be moved on: below everything that waits, and below what is not folded yet.
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

// Run purges what is due until ctx ends. caughtUp says that the fold is through with what others left.
func (p *Purger) Run(ctx context.Context, caughtUp func() bool) error {
	if !p.cfg.purges() {
		return nil
	}
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for !caughtUp() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return p.walk(both) })
	group.Go(func() error { return p.purge(both) })
	if err := group.Wait(); ctx.Err() == nil || errors.Is(err, ErrSuperseded) {
		return err
	}
	return nil
}

// purge works the queue off.
func (p *Purger) purge(ctx context.Context) error {
	var marked time.Time
	for {
		wait, err := p.relieve(ctx)
		if err != nil {
			return err
		}
		for looked := time.Now(); time.Since(looked) < wait; {
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
				p.deps.Log.Warn().Err(err).Msg("purge mark not stored: the next start looks further back")
			}
			marked = now
		}
		if err := p.rest(ctx, min(wait, p.nextDue())); err != nil {
			return err
		}
	}
}

// rest waits for that long, or until there is more to gain in a log that is nearly full.
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

// Counted is told that checkpoints count more segments than before.
func (p *Purger) Counted() {
	select {
	case p.sealedMore <- struct{}{}:
	default:
	}
}

// takeDue takes a run whose time has come out of the queue.
func (p *Purger) takeDue() (entry, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.queue.due(p.deps.Now())
	if ok {
		p.room()
	}
	return e, ok
}

// nextDue is how long to wait for the next run.
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

// purgeRun proves and purges what an entry names, and returns how many events went. Only what concerns more than this run is an error.
func (p *Purger) purgeRun(ctx context.Context, e entry, piece int64) (events int64, err error) {
	again, freed := false, false
	for {
		// Asked before the proof: what is folded by now has its checkpoint.
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
				Msg("what is sealed is not proven to be whole, nothing of the run is purged")
			again, e.failed = true, true
		default:
			p.deps.Stats.PutOff.Add(1)
			p.deps.Log.Debug().Err(err).Str(logkey.Run, e.run).Msg("purge put off")
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

// errSlowProof says that a proof took so long that something may have changed meanwhile.
var errSlowProof = errors.New("the proof took too long")

// purgeOnce proves a stretch of a run and purges it.
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
		// Before the purge: who finds one event of an ended run in the log has nothing left to do for it.
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
