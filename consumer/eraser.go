package consumer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// eraseBatch is the number of runs whose blobs are looked for at once, and erasesAtOnce how many are removed side by side.
	eraseBatch   = 512
	erasesAtOnce = 4
	// eraseRetry is the pause before a removal is tried again that failed, or whose mark is not folded yet.
	eraseRetry = time.Second
	// erasePatience bounds the removal of one run; what is left of a very long one is left to the next try.
	erasePatience = time.Minute
	// eraseTick is the longest pause before the queue is looked at again.
	eraseTick = time.Second
)

// eraser takes out what is stored of runs that were removed: what the folder marked in this reign, and what earlier ones
// left, for the orders say what is not done. Each step may be repeated, and a crash between two only means that.
//
//	mark folded ──checkpoint "erased" put──▶ count ──▶ take out ──▶ count again ──nothing──▶ receipt ──▶ settling ──▶ done
//	                                                      └── tried later ◀── something left
//
// Orders are listed from time to time: whoever gave one may have died. One that is decided is given its mark, or withdrawn when the
// run went on; one that is not, and stays so, is withdrawn.
type eraser struct {
	*Folder
	mu sync.Mutex
	// due are the runs to look at, and when.
	due  map[string]time.Time
	wake chan struct{}
	// stale are runs that the fold is to look at: their checkpoint and the records of their removal do not agree.
	stale chan string
	// undecided are orders that nobody decided, since when, as listed last.
	undecided map[string]waitingOrder
}

// waitingOrder is an order that is not decided, as it was first met.
type waitingOrder struct {
	rev   schema.Revision
	since time.Time
}

func newEraser(f *Folder) *eraser {
	return &eraser{
		Folder: f, due: make(map[string]time.Time), wake: make(chan struct{}, 1), stale: make(chan string, eraseBatch), undecided: make(map[string]waitingOrder),
	}
}

// look asks the fold to look at a run. It does not wait: what is left out is asked again.
func (e *eraser) look(run string) {
	select {
	case e.stale <- run:
	default:
	}
}

// add asks for a look at runs, now.
func (e *eraser) add(runs ...string) {
	if len(runs) == 0 {
		return
	}
	now := e.now()
	e.mu.Lock()
	for _, run := range runs {
		e.due[run] = now
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *eraser) later(run string, after time.Duration) {
	at := e.now().Add(after)
	e.mu.Lock()
	defer e.mu.Unlock()
	if was, ok := e.due[run]; !ok || at.Before(was) {
		e.due[run] = at
	}
}

// take takes what is due out of the queue.
func (e *eraser) take() map[string]struct{} {
	now := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	runs := make(map[string]struct{})
	for run, at := range e.due {
		if at.After(now) {
			continue
		}
		delete(e.due, run)
		if runs[run] = struct{}{}; len(runs) == eraseBatch {
			break
		}
	}
	return runs
}

// run removes until ctx ends. What fails is tried again: it must not end the fold.
func (e *eraser) run(ctx context.Context) error {
	var listed time.Time
	tick := time.NewTicker(eraseTick)
	defer tick.Stop()
	for ctx.Err() == nil {
		if now := e.now(); listed.IsZero() || now.Sub(listed) >= e.cfg.OrderPatience {
			if err := e.list(ctx, listed.IsZero()); err == nil {
				listed = now
			} else if ctx.Err() == nil {
				e.log.Warn().Err(err).Msg("what is to be removed cannot be listed, trying again")
			}
		}
		if runs := e.take(); len(runs) > 0 {
			e.removeAll(ctx, runs)
			continue
		}
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-tick.C:
		}
	}
	return nil
}

// list looks for orders, and in the beginning for removals that are young.
func (e *eraser) list(ctx context.Context, first bool) error {
	ordered := make(map[string]bool)
	err := e.shard.Erasures.Pending(ctx, func(run string, settling bool) bool {
		if settling && !first {
			return false // those come last, and are in the queue
		}
		ordered[run] = true
		e.later(run, 0)
		return true
	})
	if err == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		maps.DeleteFunc(e.undecided, func(run string, _ waitingOrder) bool { return !ordered[run] })
	}
	return err
}

// removeAll removes some runs.
func (e *eraser) removeAll(ctx context.Context, runs map[string]struct{}) {
	blobs, err := kvstore.BlobsOf(ctx, e.js, e.cfg.Fleet, runs)
	if err != nil {
		e.putOff(ctx, err, runs)
		return
	}
	var group errgroup.Group
	group.SetLimit(erasesAtOnce)
	for run := range runs {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, erasePatience)
			defer cancel()
			if err := e.remove(ctx, run, blobs[run]); err != nil {
				e.putOff(ctx, err, map[string]struct{}{run: {}})
			}
			return nil
		})
	}
	_ = group.Wait() // each puts itself off
}

func (e *eraser) putOff(ctx context.Context, err error, runs map[string]struct{}) {
	for run := range runs {
		e.later(run, eraseRetry)
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.stats.ErasuresPutOff.Add(1)
		e.log.Warn().Err(err).Int("runs", len(runs)).Msg("removal put off")
	}
}

// remove brings the removal of one run on as far as it goes.
func (e *eraser) remove(ctx context.Context, run string, blobs []kvstore.Blob) error {
	// It is read before anything is looked at: what is stored of the run later asks for another look.
	settling, settlingRev, settlingErr := e.shard.Erasures.Settling(ctx, run)
	if settlingErr != nil && settlingRev == 0 && !errors.Is(settlingErr, kvstore.ErrNotFound) {
		return settlingErr
	}
	record, rev, done, err := e.shard.Erasures.Get(ctx, run)
	if errors.Is(err, kvstore.ErrNotFound) {
		e.look(run)                                            // its checkpoint may say that it was removed
		return e.shard.Erasures.Settled(ctx, run, settlingRev) // a crash brought the key back
	}
	if err != nil {
		return err
	}
	ready, err := e.ready(ctx, record, rev, settlingRev, done)
	if err != nil || !ready {
		return err
	}
	for _, nuid := range record.Chunks {
		blobs = append(blobs, kvstore.Blob{NUID: nuid, Deleted: true})
	}
	if done {
		if err := e.again(ctx, record, blobs); err != nil {
			return err
		}
		return e.settle(ctx, settling, settlingRev, settlingErr)
	}
	if record.Removed == nil {
		if err := e.count(ctx, record, rev, blobs); err != nil {
			return err
		}
	}
	if err := e.takeOut(ctx, record, blobs); err != nil {
		return err
	}
	record.RemovedAt = schema.FormatTime(e.now())
	if err := e.shard.Erasures.Finish(ctx, record); err != nil {
		return err
	}
	e.stats.Erased.Add(1)
	e.later(run, e.cfg.SafeAfter)
	e.log.Info().Str(logkey.Run, run).Str("by", record.By).Str("erasure", record.ID).Int64("bytes", record.Removed.Bytes()).Msg("run is removed")
	return nil
}

// ready reports whether the run's content may be taken out: its checkpoint says that it was removed, and its last message
// is the mark.
func (e *eraser) ready(ctx context.Context, record *schema.Erasure, rev, settlingRev schema.Revision, done bool) (bool, error) {
	run := record.Run
	c, _, err := e.shard.Checkpoints.GetFresh(ctx, run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return false, err
	}
	last, lerr := e.shard.LastOfRun(ctx, run)
	if lerr != nil {
		return false, lerr
	}
	erased := err == nil && c.Status == schema.StatusErased
	switch {
	case !done && !erased:
		return false, e.carry(ctx, record, rev)
	case last == nil:
		// The log lost it, or a backup has the receipt alone: with the mark its id is never used again.
		if _, err := control.Publish(ctx, e.js, e.shard, schema.NewErased(e.cfg.Fleet, e.cfg.Holder, run, record.ID+"."+rand.Text(), e.now()), 0); err != nil {
			return false, err
		}
		e.later(run, eraseRetry)
		return false, nil
	case !erased && !schema.IsErasedMark(last):
		e.log.Error().Str(logkey.Run, run).Str("erasure", record.ID).Str("hint", "the log lost the mark of its removal; remove it by another cleanup, or keep it").
			Msg("a run that was removed has events again, they are kept")
		return false, e.shard.Erasures.Settled(ctx, run, settlingRev)
	case !erased:
		e.look(run)
		e.later(run, eraseRetry)
		return false, nil
	case schema.IsErasedMark(last):
		return true, nil
	}
	// Somebody without compare-and-set wrote behind the mark. It was refused, and goes, too.
	mark := schema.NewErased(e.cfg.Fleet, e.cfg.Holder, run, record.ID+"."+rand.Text(), e.now())
	if _, err := control.Publish(ctx, e.js, e.shard, mark, last.Stream); err != nil {
		return false, err
	}
	e.later(run, 0)
	return false, nil
}

// carry goes on with an order of which the fold knows nothing yet.
func (e *eraser) carry(ctx context.Context, record *schema.Erasure, rev schema.Revision) error {
	run := record.Run
	if !record.Decided() {
		if e.now().Sub(e.waits(run, rev)) < e.cfg.OrderPatience {
			return nil // it is looked at when orders are listed
		}
	} else {
		marked, err := markErased(ctx, e.js, e.shard, e.cfg.Holder, record, e.now())
		if err != nil {
			return err
		}
		if marked {
			e.look(run) // which has come by the mark, perhaps, when it did not count yet
			e.later(run, eraseRetry)
			return nil
		}
	}
	there, err := e.shard.Erasures.Withdraw(ctx, run, rev)
	if there {
		e.log.Warn().Str(logkey.Run, run).Str("by", record.By).Str("erasure", record.ID).Bool("decided", record.Decided()).
			Str("hint", "the run is what it was; ask for its removal once more").Msg("order to remove a run was not carried out, it is withdrawn")
	}
	return err
}

// waits returns since when an order is known to wait for its decision.
func (e *eraser) waits(run string, rev schema.Revision) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	met, ok := e.undecided[run]
	if !ok || met.rev != rev {
		met = waitingOrder{rev, e.now()}
		e.undecided[run] = met
	}
	return met.since
}

// count stores what there is before anything is taken out: what a later try finds is less.
func (e *eraser) count(ctx context.Context, record *schema.Erasure, rev schema.Revision, blobs []kvstore.Blob) error {
	parts, err := e.shard.Stored(ctx, record.Run, record.Keys, blobs)
	if err != nil {
		return err
	}
	parts.SegmentBytes, parts.LogBytes = record.Segments.Bytes, record.TailBytes
	record.Removed = &parts
	for _, b := range blobs {
		if schema.ValidName(b.NUID) && len(record.Chunks) < schema.MaxErasedChunks {
			record.Chunks = append(record.Chunks, b.NUID)
		}
	}
	_, err = e.shard.Erasures.Order(ctx, record, rev)
	return err
}

// takeOut takes out what there is, and makes sure that nothing is left.
func (e *eraser) takeOut(ctx context.Context, record *schema.Erasure, blobs []kvstore.Blob) error {
	if err := e.shard.Remove(ctx, record.Run, record.Keys, blobs, false); err != nil {
		return err
	}
	for i := range blobs {
		blobs[i].Deleted = true
	}
	left, err := e.shard.Left(ctx, record.Run, record.Keys, blobs, false)
	if err != nil {
		return err
	}
	if !left.None() {
		return fmt.Errorf("run %s: something is left of it: %+v: %w", record.Run, left, eventlog.ErrStale)
	}
	return nil
}

// again looks at a run that was removed before: a crash may have brought something back, or somebody wrote to it.
func (e *eraser) again(ctx context.Context, record *schema.Erasure, blobs []kvstore.Blob) error {
	left, err := e.shard.Left(ctx, record.Run, record.Keys, blobs, false)
	if err != nil {
		return err
	}
	if !left.None() {
		e.log.Warn().Str(logkey.Run, record.Run).Interface("left", left).Msg("something came back of a run that was removed")
		if err := e.takeOut(ctx, record, blobs); err != nil {
			return err
		}
	}
	return e.shard.Erasures.EndOrder(ctx, record.Run)
}

// settle ends the time in which a removal is looked at again once it is over, by the record that was there before the look.
func (e *eraser) settle(ctx context.Context, settling *schema.Erasure, rev schema.Revision, err error) error {
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	removed, err := time.Parse(time.RFC3339Nano, settling.RemovedAt)
	if age := e.now().Sub(removed); err == nil && age < e.cfg.SafeAfter {
		e.later(settling.Run, e.cfg.SafeAfter-age)
		return nil
	}
	return e.shard.Erasures.Settled(ctx, settling.Run, rev)
}
