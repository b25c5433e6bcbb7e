package retention

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// removeBatch is the number of runs whose blobs are searched together, and removesAtOnce the number of concurrent
	// removals.
	removeBatch   = 512
	removesAtOnce = 4
	// removeRetry is the pause before a removal is tried again that failed, or whose event is not folded yet.
	removeRetry = time.Second
	// turnRetry is the pause before streams are turned again that are full, or lack a replica.
	turnRetry = 10 * time.Second
	// removePatience bounds the removal of one run; the next try continues a very long one.
	removePatience = time.Minute
	// removeTick is the longest pause between two looks at the queue.
	removeTick = time.Second
)

// Config sets the timing of removals. All fields are required.
type Config struct {
	// Holder names the daemon in its events.
	Holder string
	// SafeAfter is how long a removal is checked again: two sync intervals of the server.
	SafeAfter time.Duration
}

// Deps are the dependencies of a remover. All are required.
type Deps struct {
	JS    jetstream.JetStream
	Shard *kvstore.Shard
	Keys  *keyring.Ring
	// Folded is the position up to which all events are folded and stored.
	Folded func() schema.StreamSequence
	Now    func() time.Time
	Log    zerolog.Logger
}

// Remover deletes the stored data of removed runs: those that the fold listed in this term, and those that earlier
// terms left in the list. Each step may be repeated, so a crash between two steps is harmless.
//
//	run.erased folded ──listed, checkpoint "erased" put──▶ delete ──▶ count ──nothing──▶ checked again ──▶ not listed
//	                                                          ▲         │ something left       │
//	                                                          └─────────┴──────────────────────┘
type Remover struct {
	cfg  Config
	deps Deps

	mu sync.Mutex
	// due are the runs to check, and when.
	due  map[string]time.Time
	wake chan struct{}
}

// New returns the remover of a shard's leader. Call Run to start it.
func New(cfg Config, deps Deps) *Remover {
	return &Remover{cfg: cfg, deps: deps, due: make(map[string]time.Time), wake: make(chan struct{}, 1)}
}

// Add schedules a run for a check now.
func (r *Remover) Add(run string) {
	r.later(run, 0)
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
		if runs[run] = struct{}{}; len(runs) == removeBatch {
			break
		}
	}
	return runs
}

// Run removes until ctx ends. Failed removals are tried again: they must not end the fold.
func (r *Remover) Run(ctx context.Context) error {
	tick := time.NewTicker(removeTick)
	defer tick.Stop()
	for listed := false; ctx.Err() == nil; {
		if !listed {
			runs, err := r.deps.Shard.Removals.Runs(ctx)
			if listed = err == nil; !listed && ctx.Err() == nil {
				r.deps.Log.Warn().Err(err).Msg("could not list removals, trying again")
			}
			for _, run := range runs {
				r.later(run, 0)
			}
		}
		if !r.deps.Shard.Paused(ctx, r.deps.Now()) {
			if runs := r.take(); len(runs) > 0 {
				r.removeAll(ctx, runs)
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-tick.C:
		}
	}
	return nil
}

// removeAll removes some runs.
func (r *Remover) removeAll(ctx context.Context, runs map[string]struct{}) {
	blobs, err := kvstore.BlobsOf(ctx, r.deps.JS, r.deps.Shard.Names.Fleet, runs)
	if err != nil {
		r.putOff(ctx, err, runs)
		return
	}
	var mu sync.Mutex
	var bare []*removed
	var group errgroup.Group
	group.SetLimit(removesAtOnce)
	for run := range runs {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, removePatience)
			defer cancel()
			done, err := r.remove(ctx, run, blobs[run])
			if err != nil {
				r.putOff(ctx, err, map[string]struct{}{run: {}})
			}
			mu.Lock()
			defer mu.Unlock()
			if done != nil && done.rev != 0 {
				bare = append(bare, done)
			}
			return nil
		})
	}
	_ = group.Wait() // each failure is scheduled again
	r.settleAll(ctx, bare)
}

// removed is a run of which nothing is left, with its entry in the list.
type removed struct {
	*schema.Removal
	entry kvstore.Removal
	rev   schema.Revision
}

// settleAll settles runs. One turn of the streams is enough for all whose bytes are to be overwritten.
func (r *Remover) settleAll(ctx context.Context, runs []*removed) {
	var turned error
	if slices.ContainsFunc(runs, (*removed).turns) {
		patient, cancel := context.WithTimeout(ctx, removePatience)
		if turned = r.deps.Shard.Turn(patient, r.cfg.Holder, r.deps.Now()); turned != nil && ctx.Err() == nil {
			r.deps.Log.Warn().Err(turned).Msg("bytes of removed runs are not overwritten yet, trying again")
		}
		cancel()
	}
	for _, run := range runs {
		var err error
		if turned == nil || !run.turns() {
			err = r.settle(ctx, run)
		} else if r.later(run.Run, turnRetry); run.entry.Waits != turned.Error() { // for the receipt
			run.entry.Waits = turned.Error()
			err = r.deps.Shard.Removals.Put(ctx, run.Run, run.entry, run.rev)
		}
		if err != nil {
			r.putOff(ctx, err, map[string]struct{}{run.Run: {}})
		}
	}
}

// turns reports whether superseded data of the run may be in the streams' last blocks.
func (r *removed) turns() bool { return r.Overwrite && r.entry.GoneBy == "" }

func (r *Remover) putOff(ctx context.Context, err error, runs map[string]struct{}) {
	for run := range runs {
		r.later(run, removeRetry)
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.deps.Log.Warn().Err(err).Int("runs", len(runs)).Msg("removal postponed")
	}
}

// remove continues the removal of one run as far as possible. It returns the run if nothing is left of it.
func (r *Remover) remove(ctx context.Context, run string, blobs []kvstore.Blob) (*removed, error) {
	// Read before the check: data of the run that is stored later must cause another check.
	entry, rev, err := r.deps.Shard.Removals.Get(ctx, run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	folded := r.deps.Folded() // read before the checkpoint
	c, _, err := r.deps.Shard.Checkpoints.GetFresh(ctx, run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	erased := err == nil && c.Status == schema.StatusErased
	if !erased && rev != 0 && folded < entry.Stream {
		r.later(run, removeRetry) // the fold is about to come to run.erased, again
		return nil, nil
	}
	keys, err := r.deps.Keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	last, inLog, err := r.deps.Shard.LastRemoval(ctx, keys, run)
	switch {
	case err != nil:
		return nil, err
	case erased && (c.Erased == nil || inLog == nil):
		return nil, r.restore(ctx, keys, run, c.Erased, &last, rev)
	case erased:
	case inLog == nil:
		return nil, r.deps.Shard.Removals.Done(ctx, run, rev) // the log went back to before the removal
	case folded < last.Stream:
		r.later(run, removeRetry)
		return nil, nil
	default:
		// A crash of the server undid the checkpoint: with another event the fold comes to the run again.
		return nil, r.again(ctx, inLog, &last)
	}
	if err := r.takeOut(ctx, keys, c.Erased, blobs); err != nil {
		return nil, err
	}
	return &removed{c.Erased, entry, rev}, nil
}

// errNoEvent says that a checkpoint shows a removal, and the log has no run.erased for it.
var errNoEvent = errors.New("its log has events, and none removes it")

// restore writes run.erased of a checkpoint again if the log lost it, or if a client without compare-and-set wrote
// after it: that event was refused, and is removed as well. A checkpoint alone removes nothing.
func (r *Remover) restore(ctx context.Context, keys *schema.Keys, run string, removal *schema.Removal, last *schema.Record, rev schema.Revision) error {
	ordered := removal != nil
	if ordered && last.Stream != 0 {
		first, found, err := eventlog.Next(ctx, r.deps.JS, r.deps.Shard.Names, run, removal.Position.Stream+1)
		if err != nil {
			return err
		}
		ordered = found && schema.Removes(keys, &first) != nil
	}
	if !ordered {
		r.deps.Log.Error().Err(errNoEvent).Str(logkey.Run, run).Str("hint", "a checkpoint alone removes nothing: compare with waymark verify "+run).Msg("run was not removed")
		return r.deps.Shard.Removals.Done(ctx, run, rev)
	}
	return r.again(ctx, removal, last)
}

// again writes run.erased after the last message of a run, and schedules a check.
func (r *Remover) again(ctx context.Context, removal *schema.Removal, last *schema.Record) error {
	order := *removal
	order.Position = schema.PositionOf(last) // the zero position if the log has nothing
	r.later(removal.Run, removeRetry)
	return Publish(ctx, r.deps.JS, r.deps.Shard, r.deps.Keys, r.cfg.Holder, &order, r.deps.Now())
}

// Publish stores run.erased after the position of a removal. It returns [control.ErrRefused] if another event came
// first.
func Publish(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, keys *keyring.Ring, daemon string, removal *schema.Removal, now time.Time) error {
	e, err := schema.NewErased(daemon, removal, rand.Text(), now)
	if err != nil {
		return err
	}
	if err := keys.Sign(ctx, e, removal.Digest); err != nil {
		return err
	}
	_, err = control.Publish(ctx, js, shard, e, removal.Position.Stream)
	return err
}

// takeOut deletes the stored data, and ensures that nothing is left.
func (r *Remover) takeOut(ctx context.Context, keys *schema.Keys, removal *schema.Removal, blobs []kvstore.Blob) error {
	if err := r.deps.Shard.Remove(ctx, keys, removal, blobs); err != nil {
		return err
	}
	for i := range blobs {
		blobs[i].Deleted = true
	}
	left, err := r.deps.Shard.Left(ctx, keys, removal.Run, removal.Keys, blobs, false)
	if err != nil {
		return err
	}
	if !left.None() {
		return fmt.Errorf("run %s: something is left of it: %+v: %w", removal.Run, left, eventlog.ErrStale)
	}
	return nil
}

// settle notes that nothing is left, and ends the removal once a crash of the server could not bring anything back.
func (r *Remover) settle(ctx context.Context, run *removed) error {
	if run.entry.GoneBy == "" {
		run.entry.GoneBy, run.entry.Waits = schema.FormatTime(r.deps.Now().Add(r.cfg.SafeAfter)), ""
		if err := r.deps.Shard.Removals.Put(ctx, run.Run, run.entry, run.rev); err != nil {
			return err
		}
		r.later(run.Run, r.cfg.SafeAfter)
		r.deps.Log.Info().Str(logkey.Run, run.Run).Str("by", run.By).Str("removal", run.ID).Msg("run is removed")
		return nil
	}
	if left := schema.ParseTime(run.entry.GoneBy).Sub(r.deps.Now()); left > 0 {
		r.later(run.Run, left)
		return nil
	}
	return r.deps.Shard.Removals.Done(ctx, run.Run, run.rev)
}
