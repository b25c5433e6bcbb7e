package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// removePatience bounds the removal of an unused place.
const removePatience = time.Second

// places gives runs their places in the shares of limits, before a claim takes them over. A share's places are a table that
// changes by compare-and-set only, so the runs of all replicas' claims that are at work are always in it.
type places struct {
	tables    *kvstore.Places
	liveRuns  *liveness.LiveRuns
	routing   *routing
	maxClaims int
	log       zerolog.Logger

	mu     sync.Mutex
	shares map[string]*placeTable
}

// placeTable is the table of a share as this replica last knew it. A stale one fails at its compare-and-set.
type placeTable struct {
	// busy has a value while a request uses the table.
	busy  chan struct{}
	known bool
	list  []kvstore.Place
	rev   schema.Revision
}

// fullShare says that a run waits for a place.
type fullShare struct{ err *schema.ServiceError }

func (f *fullShare) Error() string { return f.err.Error() }
func (f *fullShare) Unwrap() error { return f.err }

// take puts a run into every share that it belongs to, for a takeover at the end of a read. It returns a [*fullShare] if
// one is full; then the run has no new place in the others.
func (p *places) take(ctx context.Context, r *reader.Snapshot) error {
	live := schema.LiveOf(&r.Head)
	shares, by := p.liveRuns.SharesOf(&live), rand.Text()
	for i := range shares {
		err := p.put(ctx, &shares[i], r, by)
		if err == nil {
			continue
		}
		for _, s := range shares[:i] {
			if rerr := p.remove(ctx, s.Key, r.Run, by); rerr != nil {
				p.log.Warn().Err(rerr).Str(logkey.Run, r.Run).Msg("unused place not removed, the run keeps it for its next claim")
			}
		}
		return err
	}
	return nil
}

// put puts a run into a share, or moves its place to the end of the read.
func (p *places) put(ctx context.Context, s *liveness.Share, r *reader.Snapshot, by string) error {
	return p.change(ctx, s.Key, func(t *placeTable, fresh bool) ([]kvstore.Place, error) {
		if i := placeIn(t.list, r.Run); i >= 0 {
			// Positions only grow, so that no takeover in flight is behind the position. An attempt that finds the place of
			// another one makes it common: neither may remove it.
			is := t.list[i]
			if is.Position = max(is.Position, r.LogLast); is.By != by {
				is.By = ""
			}
			list := slices.Clone(t.list)
			list[i] = is
			return list, nil
		}
		list, left, err := p.room(ctx, t.list, s, r)
		switch {
		case err != nil:
			return nil, err
		case list == nil && !fresh:
			return nil, kvstore.ErrConflict // another replica may have made room
		case list == nil:
			placed := make(map[string]bool, len(t.list))
			for _, other := range t.list {
				placed[other.Run] = true
			}
			p.liveRuns.Full(s.Key, left, placed)
			return nil, &fullShare{schema.Fail(schema.CodeConflict, "See what its runs use: waymark limit ls",
				"run %s waits for a place: limit %s, %d at work", r.Run, s.Flags(), s.AtWork)}
		}
		return append(list, kvstore.Place{Run: r.Run, Position: r.LogLast, By: by}), nil
	})
}

// room returns the places of a share without as many that are over as a further one needs, nil if it is full. A run that is
// at work needs no room: its executor died, and it had begun by name or before the limit was set.
func (p *places) room(ctx context.Context, list []kvstore.Place, s *liveness.Share, r *reader.Snapshot) ([]kvstore.Place, uint64, error) {
	runs, left := p.liveRuns.AtWork(s.Key)
	atWork := make(map[string]bool, len(runs))
	used, kept := len(list), append(make([]kvstore.Place, 0, len(list)+1), list...)
	for _, run := range runs {
		atWork[run] = true
		if run != r.Run && placeIn(list, run) < 0 {
			used++ // it began by name, or before the limit was set
		}
	}
	live := schema.LiveOf(&r.Head)
	switch {
	case live.AtWork(p.maxClaims):
		return kept, left, nil
	case !p.liveRuns.Synced():
		return nil, left, nil // more runs may be at work
	}
	for i := 0; used >= s.AtWork && i < len(kept); {
		over := false
		if !atWork[kept[i].Run] {
			var err error
			if over, err = p.over(ctx, &kept[i]); err != nil {
				return nil, left, err
			}
		}
		if over {
			kept, used = slices.Delete(kept, i, i+1), used-1
		} else {
			i++
		}
	}
	if used >= s.AtWork {
		return nil, left, nil
	}
	return kept, left, nil
}

// over proves that a place is not needed any more: its run is not at work, and an event after its position refuses every
// takeover in flight.
func (p *places) over(ctx context.Context, place *kvstore.Place) (bool, error) {
	r, removed, err := p.routing.standing(ctx, place.Run)
	switch {
	case errors.Is(err, reader.ErrNoRun) || removed != nil:
		return true, nil
	case err != nil && ctx.Err() != nil:
		return false, err
	case err != nil:
		p.log.Warn().Err(err).Str(logkey.Run, place.Run).Msg("run with a place not read, it keeps its place")
		return false, nil
	}
	live := schema.LiveOf(&r.Head)
	return !live.AtWork(p.maxClaims) && r.LogLast > place.Position, nil
}

// remove removes a place that only one attempt has put, if its takeover was not published.
func (p *places) remove(ctx context.Context, key, run, by string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePatience)
	defer cancel()
	return p.change(ctx, key, func(t *placeTable, _ bool) ([]kvstore.Place, error) {
		return slices.DeleteFunc(slices.Clone(t.list), func(is kvstore.Place) bool { return is.Run == run && is.By == by }), nil
	})
}

// change stores what next makes of a share's table. After a conflict the table is read again; fresh says that it was.
func (p *places) change(ctx context.Context, key string, next func(t *placeTable, fresh bool) ([]kvstore.Place, error)) error {
	p.mu.Lock()
	t := p.shares[key]
	if t == nil {
		t = &placeTable{busy: make(chan struct{}, 1)}
		p.shares[key] = t
	}
	p.mu.Unlock()
	select {
	case t.busy <- struct{}{}:
		defer func() { <-t.busy }()
	case <-ctx.Done():
		return fmt.Errorf("places of share %s: %w", key, ctx.Err())
	}
	for {
		fresh := !t.known
		if fresh {
			var err error
			if t.list, t.rev, err = p.tables.Get(ctx, key); err != nil {
				return err
			}
			t.known = true
		}
		list, err := next(t, fresh)
		if err == nil && !slices.Equal(list, t.list) {
			var rev schema.Revision
			if rev, err = p.tables.Put(ctx, key, list, t.rev); err == nil {
				t.list, t.rev = list, rev
			} else {
				t.known = false // an unknown outcome, too
			}
		}
		if !errors.Is(err, kvstore.ErrConflict) {
			return err
		}
		t.known = false
	}
}

// placeIn is the index of a run's place, -1 for none.
func placeIn(list []kvstore.Place, run string) int {
	return slices.IndexFunc(list, func(is kvstore.Place) bool { return is.Run == run })
}
