package retention

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// eraseBatch is the number of runs whose blobs are searched together, and erasesAtOnce the number of concurrent
	// removals.
	eraseBatch   = 512
	erasesAtOnce = 4
	// eraseRetry is the pause before a removal is tried again that failed, or whose tombstone is not folded yet.
	eraseRetry = time.Second
	// erasePatience bounds the removal of one run; the next try continues a very long one.
	erasePatience = time.Minute
	// eraseTick is the longest pause between two looks at the queue.
	eraseTick = time.Second
)

// Config sets the timing of removals. All fields are required.
type Config struct {
	// Holder names the daemon in its tombstones.
	Holder string
	// Patience is the interval at which orders are listed; an order that stays undecided for so long is withdrawn.
	Patience time.Duration
	// SafeAfter is how long a removal is checked again: two sync intervals of the server.
	SafeAfter time.Duration
}

// Deps are the dependencies of a remover. All are required.
type Deps struct {
	JS    jetstream.JetStream
	Shard *kvstore.Shard
	Now   func() time.Time
	Log   zerolog.Logger
}

// Remover deletes the stored data of removed runs: runs whose tombstone was folded in this term, and unfinished
// orders of earlier terms. Each step may be repeated, so a crash between two steps is harmless.
//
//	tombstone folded ──checkpoint "erased" put──▶ count ──▶ remove ──▶ count again ──nothing──▶ receipt ──▶ settling ──▶ done
//	                                                           └── tried later ◀── something left
//
// Orders are listed from time to time, because the service that wrote one may have died. A decided order gets its
// tombstone, or is withdrawn if the run changed; an order that stays undecided is withdrawn.
type Remover struct {
	cfg  Config
	deps Deps

	mu sync.Mutex
	// due are the runs to check, and when.
	due   map[string]time.Time
	wake  chan struct{}
	stale chan string
	// undecided are the undecided orders of the last listing, and since when.
	undecided map[string]waitingOrder
}

// waitingOrder is an undecided order when it was first seen.
type waitingOrder struct {
	rev   schema.Revision
	since time.Time
}

// New returns the remover of a shard's leader. Call Run to start it.
func New(cfg Config, deps Deps) *Remover {
	return &Remover{
		cfg: cfg, deps: deps, due: make(map[string]time.Time), wake: make(chan struct{}, 1), stale: make(chan string, eraseBatch),
		undecided: make(map[string]waitingOrder),
	}
}

// Stale are runs for the fold worker to check: their checkpoint and the records of their removal do not agree.
func (r *Remover) Stale() <-chan string { return r.stale }

// look asks the fold worker to check a run. It does not wait: a skipped run is asked for again.
func (r *Remover) look(run string) {
	select {
	case r.stale <- run:
	default:
	}
}

// Add schedules runs for a check now.
func (r *Remover) Add(runs ...string) {
	if len(runs) == 0 {
		return
	}
	now := r.deps.Now()
	r.mu.Lock()
	for _, run := range runs {
		r.due[run] = now
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Remover) later(run string, after time.Duration) {
	at := r.deps.Now().Add(after)
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.due[run]; !ok || at.Before(was) {
		r.due[run] = at
	}
}

// take takes the due runs out of the queue.
func (r *Remover) take() map[string]struct{} {
	now := r.deps.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	runs := make(map[string]struct{})
	for run, at := range r.due {
		if at.After(now) {
			continue
		}
		delete(r.due, run)
		if runs[run] = struct{}{}; len(runs) == eraseBatch {
			break
		}
	}
	return runs
}

// Run removes until ctx ends. Failed removals are tried again: they must not end the fold.
func (r *Remover) Run(ctx context.Context) error {
	var listed time.Time
	tick := time.NewTicker(eraseTick)
	defer tick.Stop()
	for ctx.Err() == nil {
		if now := r.deps.Now(); listed.IsZero() || now.Sub(listed) >= r.cfg.Patience {
			if err := r.list(ctx, listed.IsZero()); err == nil {
				listed = now
			} else if ctx.Err() == nil {
				r.deps.Log.Warn().Err(err).Msg("could not list removals, trying again")
			}
		}
		if runs := r.take(); len(runs) > 0 {
			r.removeAll(ctx, runs)
			continue
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-tick.C:
		}
	}
	return nil
}

// list looks for orders, and at the start also for recent removals.
func (r *Remover) list(ctx context.Context, first bool) error {
	ordered := make(map[string]bool)
	err := r.deps.Shard.Erasures.Pending(ctx, func(run string, settling bool) bool {
		if settling && !first {
			return false // those come last, and are in the queue
		}
		ordered[run] = true
		r.later(run, 0)
		return true
	})
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		maps.DeleteFunc(r.undecided, func(run string, _ waitingOrder) bool { return !ordered[run] })
	}
	return err
}

// removeAll removes some runs.
func (r *Remover) removeAll(ctx context.Context, runs map[string]struct{}) {
	blobs, err := kvstore.BlobsOf(ctx, r.deps.JS, r.deps.Shard.Names.Fleet, runs)
	if err != nil {
		r.putOff(ctx, err, runs)
		return
	}
	var group errgroup.Group
	group.SetLimit(erasesAtOnce)
	for run := range runs {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, erasePatience)
			defer cancel()
			if err := r.remove(ctx, run, blobs[run]); err != nil {
				r.putOff(ctx, err, map[string]struct{}{run: {}})
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is scheduled again
}

func (r *Remover) putOff(ctx context.Context, err error, runs map[string]struct{}) {
	for run := range runs {
		r.later(run, eraseRetry)
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.deps.Log.Warn().Err(err).Int("runs", len(runs)).Msg("removal postponed")
	}
}

// remove continues the removal of one run as far as possible.
func (r *Remover) remove(ctx context.Context, run string, blobs []kvstore.Blob) error {
	// Read before the check: data of the run that is stored later must cause another check.
	settling, settlingRev, settlingErr := r.deps.Shard.Erasures.Settling(ctx, run)
	if settlingErr != nil && settlingRev == 0 && !errors.Is(settlingErr, kvstore.ErrNotFound) {
		return settlingErr
	}
	record, rev, done, err := r.deps.Shard.Erasures.Get(ctx, run)
	if errors.Is(err, kvstore.ErrNotFound) {
		r.look(run)                                                 // its checkpoint may say that it was removed
		return r.deps.Shard.Erasures.Settled(ctx, run, settlingRev) // a crash brought the key back
	}
	if err != nil {
		return err
	}
	ready, err := r.ready(ctx, record, rev, settlingRev, done)
	if err != nil || !ready {
		return err
	}
	for _, nuid := range record.Chunks {
		blobs = append(blobs, kvstore.Blob{NUID: nuid, Deleted: true})
	}
	if done {
		if err := r.again(ctx, record, blobs); err != nil {
			return err
		}
		return r.settle(ctx, settling, settlingRev, settlingErr)
	}
	if record.Removed == nil {
		if err := r.count(ctx, record, rev, blobs); err != nil {
			return err
		}
	}
	if err := r.takeOut(ctx, record, blobs); err != nil {
		return err
	}
	record.RemovedAt = schema.FormatTime(r.deps.Now())
	if err := r.deps.Shard.Erasures.Finish(ctx, record); err != nil {
		return err
	}
	r.later(run, r.cfg.SafeAfter)
	r.deps.Log.Info().Str(logkey.Run, run).Str("by", record.By).Str("erasure", record.ID).Int64("bytes", record.Removed.Bytes()).Msg("run is removed")
	return nil
}

// ready reports whether the run's content may be deleted: its checkpoint says that it was removed, and its last
// message is the tombstone.
func (r *Remover) ready(ctx context.Context, record *schema.Erasure, rev, settlingRev schema.Revision, done bool) (bool, error) {
	run := record.Run
	c, _, err := r.deps.Shard.Checkpoints.GetFresh(ctx, run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return false, err
	}
	last, lerr := r.deps.Shard.LastOfRun(ctx, run)
	if lerr != nil {
		return false, lerr
	}
	erased := err == nil && c.Status == schema.StatusErased
	switch {
	case !done && !erased:
		return false, r.carry(ctx, record, rev)
	case last == nil:
		// The log lost it, or a backup has only the receipt: with the tombstone its id is never used again.
		if _, err := control.Publish(ctx, r.deps.JS, r.deps.Shard, schema.NewErased(r.deps.Shard.Names.Fleet, r.cfg.Holder, run, record.ID+"."+rand.Text(), r.deps.Now()), 0); err != nil {
			return false, err
		}
		r.later(run, eraseRetry)
		return false, nil
	case !erased && !schema.IsErasedMark(last):
		r.deps.Log.Error().Str(logkey.Run, run).Str("erasure", record.ID).Str("hint", "the log lost the tombstone of its removal; remove it by another cleanup, or keep it").
			Msg("a run that was removed has events again, they are kept")
		return false, r.deps.Shard.Erasures.Settled(ctx, run, settlingRev)
	case !erased:
		r.look(run)
		r.later(run, eraseRetry)
		return false, nil
	case schema.IsErasedMark(last):
		return true, nil
	}
	// A client without compare-and-set wrote after the tombstone. The event was refused, and is removed as well.
	mark := schema.NewErased(r.deps.Shard.Names.Fleet, r.cfg.Holder, run, record.ID+"."+rand.Text(), r.deps.Now())
	if _, err := control.Publish(ctx, r.deps.JS, r.deps.Shard, mark, last.Stream); err != nil {
		return false, err
	}
	r.later(run, 0)
	return false, nil
}

// carry continues an order that the fold does not know yet.
func (r *Remover) carry(ctx context.Context, record *schema.Erasure, rev schema.Revision) error {
	run := record.Run
	if !record.Decided() {
		if r.deps.Now().Sub(r.waits(run, rev)) < r.cfg.Patience {
			return nil // the next listing of orders checks it
		}
	} else {
		marked, err := Mark(ctx, r.deps.JS, r.deps.Shard, r.cfg.Holder, record, r.deps.Now())
		if err != nil {
			return err
		}
		if marked {
			r.look(run) // which may have passed the tombstone when it did not count yet
			r.later(run, eraseRetry)
			return nil
		}
	}
	there, err := r.deps.Shard.Erasures.Withdraw(ctx, run, rev)
	if there {
		r.deps.Log.Warn().Str(logkey.Run, run).Str("by", record.By).Str("erasure", record.ID).Bool("decided", record.Decided()).
			Str("hint", "the run is unchanged; request its removal again").Msg("removal order was not executed, withdrawn")
	}
	return err
}

// waits returns since when an order is known to wait for its decision.
func (r *Remover) waits(run string, rev schema.Revision) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	met, ok := r.undecided[run]
	if !ok || met.rev != rev {
		met = waitingOrder{rev, r.deps.Now()}
		r.undecided[run] = met
	}
	return met.since
}

// count stores the numbers before anything is deleted: a later try finds less.
func (r *Remover) count(ctx context.Context, record *schema.Erasure, rev schema.Revision, blobs []kvstore.Blob) error {
	parts, err := r.deps.Shard.Stored(ctx, record.Run, record.Keys, blobs)
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
	_, err = r.deps.Shard.Erasures.Order(ctx, record, rev)
	return err
}

// takeOut deletes the stored data, and ensures that nothing is left.
func (r *Remover) takeOut(ctx context.Context, record *schema.Erasure, blobs []kvstore.Blob) error {
	if err := r.deps.Shard.Remove(ctx, record.Run, record.Keys, blobs, false); err != nil {
		return err
	}
	for i := range blobs {
		blobs[i].Deleted = true
	}
	left, err := r.deps.Shard.Left(ctx, record.Run, record.Keys, blobs, false)
	if err != nil {
		return err
	}
	if !left.None() {
		return fmt.Errorf("run %s: something is left of it: %+v: %w", record.Run, left, eventlog.ErrStale)
	}
	return nil
}

// again checks a removed run: a crash may have brought data back, or a client wrote to it.
func (r *Remover) again(ctx context.Context, record *schema.Erasure, blobs []kvstore.Blob) error {
	left, err := r.deps.Shard.Left(ctx, record.Run, record.Keys, blobs, false)
	if err != nil {
		return err
	}
	if !left.None() {
		r.deps.Log.Warn().Str(logkey.Run, record.Run).Interface("left", left).Msg("data of a removed run came back")
		if err := r.takeOut(ctx, record, blobs); err != nil {
			return err
		}
	}
	return r.deps.Shard.Erasures.EndOrder(ctx, record.Run)
}

// settle ends the time in which a removal is checked again, using the record that was read before the check.
func (r *Remover) settle(ctx context.Context, settling *schema.Erasure, rev schema.Revision, err error) error {
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	removed, err := time.Parse(time.RFC3339Nano, settling.RemovedAt)
	if age := r.deps.Now().Sub(removed); err == nil && age < r.cfg.SafeAfter {
		r.later(settling.Run, r.cfg.SafeAfter-age)
		return nil
	}
	return r.deps.Shard.Erasures.Settled(ctx, settling.Run, rev)
}
