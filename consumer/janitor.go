package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxPurgeQueue bounds the runs that wait for their purge; what does not fit is found again by a walk through the log.
	maxPurgeQueue = 1 << 16
	// purgePause is the pause between two purges, unless the log is nearly full: executors publish meanwhile.
	purgePause = 5 * time.Millisecond
	// purgePatience bounds the proof and the purge of a run. What was proven is used within proofTrust or proven anew: a
	// process that was stopped in between must not act on what it knew.
	purgePatience = 30 * time.Second
	proofTrust    = 10 * time.Second
	// proofBytes bounds the events of one proof. A proof that took too long is begun again with a quarter, down to
	// leastProofBytes: on a slow machine a long run goes piece by piece.
	proofBytes      = 32 << 20
	leastProofBytes = 2 << 20
	// markEvery is the pace at which the janitor's mark is stored.
	markEvery = time.Minute
	// purgeTick is the longest pause before the queue is looked at again.
	purgeTick = 5 * time.Second
)

// janitor takes out of a shard's log what was sealed long enough ago. It knows which runs to look at from those who seal,
// in this reign, and from a walk through the log behind its mark for what earlier reigns left. What it deletes it
// proves anew, each time, from what is stored; what it remembers only says when and where to look.
//
//	sealing ──▶ queue ──grace──▶ prove ──▶ purge
//	walk ──────▶  ▲                │ not proven: nothing is purged, an alarm
//	              └── tried later ─┘
type janitor struct {
	*Folder
	incarnation string
	marks       *kvstore.SafeWatermarks
	// erased is told of a run that was removed and of which the log has more than the mark.
	erased func(runs ...string)
	// press asks the goroutine that folds to seal tails early, for so many bytes.
	press chan int64

	mu    sync.Mutex
	queue purgeQueue
	// mark is what is stored: everything below it was looked at. markRev is its revision.
	mark    schema.StreamSequence
	markRev schema.Revision
	// walking is where the walk that is under way began, 0 without one.
	walking schema.StreamSequence
	// purgedBefore: a janitor was at work before this reign.
	purgedBefore bool
	// wake tells the walk that there is room in the queue.
	wake chan struct{}
	// sealedMore tells who relieves a log that more of it is sealed and counted.
	sealedMore chan struct{}
	// pressed: the last look found the log nearly full. It is of the goroutine that purges.
	pressed bool
}

// newJanitor reads the mark of earlier reigns.
func (f *Folder) newJanitor(ctx context.Context, incarnation string, unclean bool) (*janitor, error) {
	j := &janitor{
		Folder: f, incarnation: incarnation, marks: kvstore.NewPurgeMarks(f.js), press: make(chan int64),
		queue: newPurgeQueue(f.cfg.PurgeAfter), wake: make(chan struct{}, 1), sealedMore: make(chan struct{}, 1),
	}
	mark, rev, err := j.marks.Get(ctx, f.names)
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt):
	case err != nil:
		return nil, err
	case mark.Incarnation == incarnation:
		j.mark = mark.Position.Stream
	}
	j.markRev, j.purgedBefore = rev, rev != 0
	if !f.cfg.purges() {
		return j, nil
	}
	if unclean && j.mark > 1 {
		// A purge may have been taken back, of runs that nothing is added to any more.
		if err := j.putMark(ctx, 1); err != nil {
			return nil, err
		}
	}
	j.walking = max(j.mark, 1)
	return j, nil
}

// sealing is told of a segment before it is stored. It returns when a crash from here on cannot hide the run from the
// next reign's walk.
func (j *janitor) sealing(ctx context.Context, run string, first, last schema.StreamSequence, bytes int64) error {
	if !j.cfg.purges() {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queue.sealed(run, first, last, bytes, j.now())
	if first >= j.mark {
		return nil
	}
	// The tail of a run that waited long begins below the mark.
	return j.putMark(ctx, first)
}

// putMark stores the mark. Under j.mu.
func (j *janitor) putMark(ctx context.Context, at schema.StreamSequence) error {
	rev, err := j.marks.Put(ctx, j.names, kvstore.Watermark{
		Incarnation: j.incarnation, Position: schema.Position{Stream: at, ID: "janitor"}, Folder: j.cfg.Holder,
		Updated: schema.FormatTime(j.now()),
	}, j.markRev)
	if errors.Is(err, kvstore.ErrConflict) {
		return fmt.Errorf("%w: %w", errYield, err)
	}
	if err != nil {
		return err
	}
	j.mark, j.markRev = at, rev
	return nil
}

// markOnce makes sure that there is a mark before anything is purged: it tells later reigns that a log which begins with
// a run's first message may have been purged all the same.
func (j *janitor) markOnce(ctx context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.markRev != 0 {
		return nil
	}
	return j.putMark(ctx, 1)
}

// storeMark stores the mark if it can be moved on: below everything that waits, and below what is not folded yet.
func (j *janitor) storeMark(ctx context.Context, folded schema.StreamSequence) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := folded
	if j.walking != 0 {
		at = min(at, j.walking)
	}
	if first, ok := j.queue.first(); ok {
		at = min(at, first)
	}
	if at <= j.mark {
		return nil
	}
	return j.putMark(ctx, at)
}

// run purges what is due until ctx ends. caughtUp says that the fold is through with what others left.
func (j *janitor) run(ctx context.Context, caughtUp func() bool) error {
	if !j.cfg.purges() {
		return nil
	}
	tick := time.NewTicker(j.cfg.SweepEvery)
	defer tick.Stop()
	for !caughtUp() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return j.walk(both) })
	group.Go(func() error { return j.purge(both) })
	if err := group.Wait(); ctx.Err() == nil || errors.Is(err, errYield) {
		return err
	}
	return nil
}

// purge works the queue off.
func (j *janitor) purge(ctx context.Context) error {
	var marked time.Time
	for {
		wait, err := j.relieve(ctx)
		if err != nil {
			return err
		}
		for looked := time.Now(); time.Since(looked) < wait; {
			e, ok := j.takeDue()
			if !ok {
				break
			}
			if err := j.purgeRun(ctx, e, proofBytes); err != nil {
				return err
			}
			if err := pause.For(ctx, purgePause); err != nil {
				return err
			}
		}
		if now := j.now(); now.Sub(marked) >= min(markEvery, j.cfg.PurgeAfter) {
			if err := j.storeMark(ctx, schema.StreamSequence(j.stats.Position.Load())); err != nil {
				if errors.Is(err, errYield) {
					return err
				}
				j.log.Warn().Err(err).Msg("the janitor's mark is not stored, the next start looks further back")
			}
			marked = now
		}
		if err := j.rest(ctx, min(wait, j.nextDue())); err != nil {
			return err
		}
	}
}

// rest waits for that long, or until there is more to gain in a log that is nearly full.
func (j *janitor) rest(ctx context.Context, d time.Duration) error {
	var more <-chan struct{}
	if j.pressed {
		more = j.sealedMore
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

// counted is told that checkpoints count more segments than before.
func (j *janitor) counted() {
	select {
	case j.sealedMore <- struct{}{}:
	default:
	}
}

// takeDue takes a run whose time has come out of the queue.
func (j *janitor) takeDue() (purgeEntry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.queue.due(j.now())
	if ok {
		j.room()
	}
	return e, ok
}

// nextDue is how long to wait for the next run.
func (j *janitor) nextDue() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(min(j.queue.wait(j.now()), purgeTick), time.Millisecond)
}

// room tells the walk that there is room. Under j.mu.
func (j *janitor) room() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// purgeRun proves and purges what an entry names. Only what concerns more than this run is an error.
func (j *janitor) purgeRun(ctx context.Context, e purgeEntry, piece int64) error {
	again, freed := false, false
	for {
		// Asked before the proof: what is folded by now has its checkpoint.
		folded := schema.StreamSequence(j.stats.Position.Load())
		work, cancel := context.WithTimeout(ctx, purgePatience)
		p, err := j.purgeOnce(work, e.run, e.upTo, piece)
		freed = freed || err == nil && p.events > 0
		late := work.Err() != nil
		cancel()
		var un *unproven
		switch {
		case ctx.Err() != nil:
			again = true
		case err == nil && p.more:
			continue
		case err == nil:
			again = p.sealed < e.counted || folded < e.met // its checkpoint is about to be put
		case (late || errors.Is(err, errSlowProof)) && piece > leastProofBytes:
			piece = max(piece/4, leastProofBytes)
			continue
		case errors.As(err, &un):
			j.stats.ProofsFailed.Add(1)
			j.log.Error().Err(err).Str(logkey.Run, e.run).Str("hint", un.hint(e.run)).
				Msg("what is sealed is not proven to be whole, nothing of the run is purged")
			again, e.failed = true, true
		default:
			j.stats.PurgesPutOff.Add(1)
			j.log.Debug().Err(err).Str(logkey.Run, e.run).Msg("purge put off")
			again = true
		}
		break
	}
	if e.fruitless++; freed {
		e.fruitless = 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queue.done(e, again, j.now())
	return nil
}

// errSlowProof says that a proof took so long that something may have changed meanwhile.
var errSlowProof = errors.New("the proof took too long")

// purgeOnce proves a stretch of a run and purges it.
func (j *janitor) purgeOnce(ctx context.Context, run string, upTo schema.StreamSequence, piece int64) (proof, error) {
	began := j.now()
	p, err := j.prove(ctx, run, upTo, piece)
	if err != nil || p.events == 0 {
		return p, err
	}
	j.mu.Lock()
	may := j.queue.mayGo(run, p.last)
	j.mu.Unlock()
	if !may {
		return p, fmt.Errorf("run %s: sealed while it was proven: %w", run, ErrStale)
	}
	if err := j.markOnce(ctx); err != nil {
		return p, err
	}
	if p.ended {
		// Before the purge: who finds one event of an ended run in the log has nothing left to do for it.
		if err := j.shard.Checkpoints.Trim(ctx, run); err != nil {
			return p, err
		}
	}
	if took := j.now().Sub(began); took > proofTrust {
		return p, fmt.Errorf("%w: it took %s", errSlowProof, took)
	}
	if err := failpoint.Hit(ctx, failpoint.BeforePurge); err != nil {
		return p, err
	}
	n, err := j.shard.PurgeRun(ctx, run, p.last+1)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterPurge)
	}
	if err != nil {
		return p, err
	}
	j.stats.PurgedEvents.Add(n)
	if n > 0 {
		j.stats.PurgedBytes.Add(p.bytes)
		j.stats.Purges.Add(1)
	}
	j.log.Debug().Str(logkey.Run, run).Uint64("up_to", uint64(p.last)).Int64("events", n).Int64("bytes", p.bytes).Msg("purged")
	if n > p.events {
		j.log.Error().Str(logkey.Run, run).Int64("events", n).Int64("proven", p.events).Str("hint", "compare: waymark get "+run).
			Msg("the server purged more events than were proven to be sealed")
	}
	return p, nil
}
