package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// placingFresh is how old a reading of the fleet's settings may be when a run is begun by it.
	placingFresh = 3 * time.Second
	// startPatience bounds a start from then on. Both together, and the time for which an isolated leader may answer with
	// old settings, are well below the minute for which a new generation of shards is being opened.
	startPatience = 30 * time.Second
	// lateStart is the age of the reading, when the start was acknowledged, from which on it says nothing any more.
	lateStart = placingFresh + startPatience
	// placingTries bounds how often a start is begun anew because the settings change under it.
	placingTries = 8
)

// placing is where the fleet's runs are, as its settings said. It is never changed: another takes its place.
type placing struct {
	// generations are the numbers of shards that runs were spread over, oldest first.
	generations []int
	// change counts their changes; opening says that the last of them is not over.
	change  int
	opening bool
	// read is when the reading began; zero when it is known to be outdated.
	read time.Time
}

// before is the shard in which the generation before the current one begins a run.
func (p *placing) before(run string) int {
	return schema.ShardOf(run, p.generations[max(len(p.generations)-2, 0)])
}

// placed returns a reading of the settings that is fresh enough to begin a run by. However many ask, one reads.
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

// insistOnPlacing reads the settings, and reads them again while their leader is away, as long as ctx lasts: whoever begins a run
// may do so while servers are restarted.
func (f *Fleet) insistOnPlacing(ctx context.Context) (*placing, error) {
	var p *placing
	err := f.insist(ctx, f.cfg.TryTimeout, func(try context.Context) (err error) {
		p, err = f.readPlacing(try)
		return err
	})
	return p, err
}

// readPlacing reads the settings from their leader.
func (f *Fleet) readPlacing(ctx context.Context) (*placing, error) {
	read := time.Now()
	settings, err := f.settings(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.keys.Set(settings.Keys, read); err != nil {
		return nil, err
	}
	p := &placing{
		generations: settings.Generations, read: read, change: settings.Change,
		opening: settings.Opening && len(settings.Generations) > 1,
	}
	f.placing.Store(p)
	return p, nil
}

// outdated makes the next start read the settings anew.
func (f *Fleet) outdated() {
	p := f.placing.Load()
	old := *p
	old.read = time.Time{}
	f.placing.CompareAndSwap(p, &old) // or another reading came just now
}

// look asks the leader of a shard for a run: whether it has an event of it, and which message is its last, with the change
// of the settings that its latest mark belongs to, -1 for none.
func (f *Fleet) look(ctx context.Context, names schema.Names, run string) (found bool, last schema.StreamSequence, change int, err error) {
	change = -1
	for {
		rec, there, err := eventlog.Next(ctx, f.js, names, run, last+1)
		if err != nil {
			return false, 0, 0, fmt.Errorf("looking run %s up: %w: %w", run, ErrUnavailable, err)
		}
		if !there {
			return false, last, change, nil
		}
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			e = nil
		}
		mark, ok := schema.PlacedOf(e)
		if !ok {
			return true, rec.Stream, change, nil
		}
		last, change = rec.Stream, mark.Change
	}
}

// claimPlace makes sure that a run which is about to begin in the first of its shards is in no other, and, while that
// shard's generation is being opened, that nobody can begin it by the generation before. It reports the shard that has
// the run, or false.
func (f *Fleet) claimPlace(ctx context.Context, p *placing, run string) (schema.Names, bool, error) {
	list := schema.ShardsOf(run, p.generations)
	for _, i := range list[1:] {
		names := schema.NamesOf(f.cfg.Fleet, i)
		find := f.seek
		if p.opening && i == p.before(run) {
			find = func(ctx context.Context, names schema.Names, run string) (bool, error) {
				return f.mark(ctx, names, run, schema.Placed{Shard: list[0], Change: p.change})
			}
		}
		if found, err := find(ctx, names, run); err != nil || found {
			return names, found, err
		}
	}
	return schema.NamesOf(f.cfg.Fleet, list[0]), false, nil
}

func (f *Fleet) seek(ctx context.Context, names schema.Names, run string) (bool, error) {
	found, _, _, err := f.look(ctx, names, run)
	return found, err
}

// mark leaves a mark on the run's subject in a shard in which it must not be begun any more, by compare-and-set behind
// older marks. It reports whether the run is there, in which case there is none to leave.
func (f *Fleet) mark(ctx context.Context, names schema.Names, run string, placed schema.Placed) (found bool, err error) {
	e, err := schema.NewPlaced(f.cfg.Fleet, f.cfg.Executor, run, rand.Text(), placed, f.cfg.Now())
	if err != nil {
		return false, fmt.Errorf("mark of run %s: %w", run, err)
	}
	header, body := e.Encode()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	wait, last := f.backoff(), schema.StreamSequence(0)
	var room roomWait
	for {
		m := &nats.Msg{Subject: names.EventSubject(run), Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(uint64(last), 10)}}, Data: body}
		maps.Copy(m.Header, header)
		// Nothing else tells a mark that was stored from one that was not: no answer is looked up like a refusal.
		a := f.send(ctx, m)
		switch a.kind {
		case acked:
			return false, nil
		case full:
			if err := f.awaitRoom(ctx, &room, names.EventStream(), a.err); err != nil {
				return false, err
			}
			continue
		case refused, oversized, denying, deaf:
			return false, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, a.err)
		case notSent:
			if f.nc.IsClosed() {
				return false, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, a.err)
			}
		case wrongLast, silent, inFlight:
			var change int
			if found, last, change, err = f.look(ctx, names, run); err == nil && (found || change == placed.Change) {
				return found, nil
			}
		}
		if !wait.wait(ctx) {
			return false, fmt.Errorf("run %s: publishing %s: %w: %w", run, e.ID, ErrUnavailable, errors.Join(a.err, err, context.Cause(ctx)))
		}
	}
}

// movedError says that a run must be begun in another shard than was tried, by settings that are at least so new.
type movedError struct{ change int }

func (e *movedError) Error() string {
	return fmt.Sprintf("the run is placed by change %d of the fleet's shards", e.change)
}

// begin starts a run in the shard that the settings name, which may change meanwhile.
func (f *Fleet) begin(ctx context.Context, run string, start func(context.Context, *placing, schema.Names) (*Run, error)) (*Run, error) {
	wait := f.backoff()
	for try := 1; ; try++ {
		r, err := f.beginOnce(ctx, run, start)
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			return r, err
		}
		f.outdated()
		if try == placingTries || !wait.wait(ctx) {
			return nil, fmt.Errorf("start of run %s: %w: %w", run, ErrUnavailable, moved)
		}
	}
}

// beginOnce starts a run by one reading of the settings, unless it turns out to be too old.
func (f *Fleet) beginOnce(ctx context.Context, run string, start func(context.Context, *placing, schema.Names) (*Run, error)) (*Run, error) {
	p, err := f.placed(ctx)
	if err != nil {
		return nil, fmt.Errorf("start of run %s: %w", run, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	names, found, err := f.claimPlace(ctx, p, run)
	if err != nil {
		return nil, fmt.Errorf("start of run %s: %w", run, err)
	}
	if found {
		return nil, fmt.Errorf("start of run %s: %w: it is in shard %d", run, ErrRunExists, names.Shard)
	}
	r, err := start(ctx, p, names)
	if err != nil || !f.late(p) {
		return r, err
	}
	if err := f.placedStill(ctx, r); err != nil {
		return nil, err
	}
	return r, nil
}

// late reports whether a reading of the settings is so old that a change of the shards can have come and be over since: the
// process was stopped between that reading and the acknowledgement of its start. Either clock may have stood still meanwhile.
func (f *Fleet) late(p *placing) bool {
	return time.Since(p.read) > f.lateStart || time.Now().Round(0).Sub(p.read.Round(0)) > f.lateStart
}

// placedStill makes sure that a run which was begun late is begun nowhere else, and by nobody any more. While a change was under
// way, who began the run by the new settings would have left a mark in its place, or met it; once it is over nobody does. So a
// mark is left now where the run would begin by the settings as they are. It is of the change to come: who began the run by
// today's settings looks it up anew when it meets that mark, and finds it.
func (f *Fleet) placedStill(ctx context.Context, r *Run) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	p, err := f.readPlacing(ctx)
	if err != nil || p.change == r.placedBy {
		return f.unsure(ctx, r, err)
	}
	list := schema.ShardsOf(r.id, p.generations)
	for n, i := range list {
		if i == r.names.Shard {
			continue
		}
		names := schema.NamesOf(f.cfg.Fleet, i)
		find := f.seek
		if n == 0 {
			find = func(ctx context.Context, names schema.Names, run string) (bool, error) {
				return f.mark(ctx, names, run, schema.Placed{Shard: r.names.Shard, Change: p.change + 1})
			}
		}
		found, err := find(ctx, names, r.id)
		if err != nil {
			return f.unsure(ctx, r, err)
		}
		if found {
			return f.dropStray(ctx, r, fmt.Errorf("start of run %s: %w: it is in shard %d, and was begun in shard %d before this process heard of the fleet's new shards",
				r.id, ErrRunExists, i, r.names.Shard))
		}
	}
	return nil
}

// unsure gives a run that was begun late up if nobody can say whether it was begun elsewhere.
func (f *Fleet) unsure(ctx context.Context, r *Run, err error) error {
	if err == nil {
		return nil
	}
	return f.dropStray(ctx, r, fmt.Errorf("start of run %s: %w: whether it is in another shard by now cannot be told: %w", r.id, ErrUnavailable, err))
}

// dropStray ends a run that must not go on, so that nobody takes it for one that has an executor.
func (f *Fleet) dropStray(ctx context.Context, r *Run, why error) error {
	err := r.publishLast(ctx, why, draft{data: &schema.RunEndedData{Status: string(schema.StatusCancelled), Error: &schema.Error{Type: "begun_elsewhere", Message: why.Error()}}})
	if err != nil {
		return errors.Join(why, fmt.Errorf("ending it: %w", err))
	}
	return why
}
