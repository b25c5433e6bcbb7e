package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// placingFresh is how long a snapshot of the fleet's settings is used to start runs. A new number of shards takes
// effect within this time.
const placingFresh = 3 * time.Second

// placing is a snapshot of the fleet's settings. It is never changed, only replaced.
type placing struct {
	schema.FleetSettings
	// read is when the read began; zero when the snapshot is known to be outdated.
	read time.Time
}

// shard is the shard in which a run starts, unless a tombstone names another one.
func (p *placing) shard(run string) int { return schema.ShardsOf(run, p.Generations)[0] }

// home is the shard of a run under the first number of shards. That number never changes, so all executors agree on the
// home. An executor that starts the run in another shard first leaves a tombstone in the home.
func (p *placing) home(run string) int { return schema.ShardOf(run, p.Mapped()) }

// placed returns a snapshot that is recent enough to start a run. Concurrent callers share one read.
func (f *Fleet) placed(ctx context.Context) (*placing, error) {
	p := f.placing.Load()
	if time.Since(p.read) < placingFresh {
		return p, nil
	}
	select {
	case f.placingTurn <- struct{}{}:
		defer func() { <-f.placingTurn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("settings of fleet %s: %w: %w", f.cfg.Fleet, ErrUnavailable, context.Cause(ctx))
	}
	if p = f.placing.Load(); time.Since(p.read) < placingFresh {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	return f.insistOnPlacing(ctx)
}

// insistOnPlacing reads the settings, and retries until ctx ends while their leader is unavailable: runs may be started
// while servers restart.
func (f *Fleet) insistOnPlacing(ctx context.Context) (*placing, error) {
	var p *placing
	err := f.insist(ctx, f.cfg.TryTimeout, func(try context.Context) (err error) {
		p, err = f.readPlacing(try)
		return err
	})
	if err == nil {
		f.placing.Store(p)
	}
	return p, err
}

// outdated makes the next start read the settings again.
func (f *Fleet) outdated() {
	p := f.placing.Load()
	old := *p
	old.read = time.Time{}
	f.placing.CompareAndSwap(p, &old) // a newer snapshot stays
}

// look asks the leader of a run's home what the home has of the run: a tombstone that names its shard, or an event.
func (f *Fleet) look(ctx context.Context, home schema.Names, run string) (mark *schema.Placed, found bool, err error) {
	rec, found, err := eventlog.Next(ctx, f.js, home, run, 1)
	if err != nil {
		return nil, false, fmt.Errorf("looking run %s up: %w: %w", run, ErrUnavailable, err)
	}
	if placed, ok := schema.PlacedOfRecord(&rec); ok {
		return &placed, false, nil
	}
	return nil, found, nil
}

// reserve leaves a tombstone in a run's home that names the shard where the run starts, by compare-and-set on an empty
// subject. It returns the shard of the first tombstone there, which may be another executor's, or [ErrRunExists].
func (f *Fleet) reserve(ctx context.Context, home schema.Names, run string, shard int) (int, error) {
	e, err := schema.NewPlaced(f.cfg.Fleet, f.cfg.Executor, run, rand.Text(), schema.Placed{Shard: shard}, f.cfg.Now())
	if err != nil {
		return 0, fmt.Errorf("mark of run %s: %w", run, err)
	}
	m := eventlog.Message(home, e)
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	wait := f.cfg.pause()
	var room quotaWait
	for {
		a := f.sender.Append(ctx, m, 0)
		switch a.Outcome {
		case eventlog.Stored:
			return shard, nil
		case eventlog.Full:
			if err := f.quotas.await(ctx, &room, home.EventStream(), a.Err); err != nil {
				return 0, err
			}
			continue
		case eventlog.Refused, eventlog.Oversized, eventlog.Denied, eventlog.AnswerDenied:
			return 0, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, a.Err)
		case eventlog.Unsent:
			if f.nc.IsClosed() {
				return 0, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, a.Err)
			}
		case eventlog.Outdated, eventlog.Unanswered, eventlog.InFlight, eventlog.Contended:
			var mark *schema.Placed
			var found bool
			switch mark, found, err = f.look(ctx, home, run); {
			case mark != nil:
				return mark.Shard, nil
			case found:
				return 0, fmt.Errorf("start of run %s: %w: it is in shard %d", run, ErrRunExists, home.Shard)
			}
		}
		if !wait.Wait(ctx) {
			return 0, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, errors.Join(a.Err, err, context.Cause(ctx)))
		}
	}
}

// movedError says that a run starts in another shard than the one tried: a tombstone names it.
type movedError struct{ shard int }

func (e *movedError) Error() string {
	return fmt.Sprintf("a tombstone says that it starts in shard %d", e.shard)
}

// begin starts a run in the shard that the settings name, or in the one that a tombstone in the run's home names. The
// first tombstone wins, however old the settings of its executor or of this one are.
func (f *Fleet) begin(ctx context.Context, spec RunSpec) (*Run, error) {
	run := spec.ID
	p, err := f.placed(ctx)
	if err != nil {
		return nil, fmt.Errorf("start of run %s: %w", run, err)
	}
	home, shard := schema.NamesOf(f.cfg.Fleet, p.home(run)), p.shard(run)
	if shard == home.Shard {
		r, err := f.startIn(ctx, home, spec)
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			return r, err
		}
		shard = moved.shard
	} else if shard, err = f.reserve(ctx, home, run, shard); err != nil {
		return nil, err
	}
	if !p.Holds(run, shard) {
		// The tombstone uses a newer number of shards.
		f.outdated()
		if p, err = f.placed(ctx); err != nil {
			return nil, fmt.Errorf("start of run %s: %w", run, err)
		}
		if !p.Holds(run, shard) {
			return nil, fmt.Errorf("start of run %s: %w: the tombstone in shard %d names shard %d, which fits no number of shards of this fleet: choose another id",
				run, ErrRunExists, home.Shard, shard)
		}
	}
	r, err := f.startIn(ctx, schema.NamesOf(f.cfg.Fleet, shard), spec)
	if moved, ok := errors.AsType[*movedError](err); ok {
		return nil, fmt.Errorf("start of run %s: %w: two tombstones contradict each other, the second names shard %d: choose another id", run, ErrRunExists, moved.shard)
	}
	return r, err
}
