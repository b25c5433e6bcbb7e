package fold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// liveCheckTime is how long a period of the worker compares the index with the checkpoints: events wait.
	liveCheckTime = time.Second
	// liveReads bounds the concurrent reads of single entries.
	liveReads = 16
)

// enter sets the run's expected entries of the two indexes from its head. They are right unless a crash came in
// between; then they are repaired.
func (r *run) enter(maxClaims int) {
	r.live, r.liveRev = nil, 0
	r.index = indexedOf(&r.head, maxClaims)
	if r.head.InLiveIndex() {
		l := schema.LiveOf(&r.head)
		r.live = &l
	}
}

// liveIndex is the live index of a shard during a term: entries of the runs that may need an executor.
type liveIndex struct {
	shard *kvstore.Shard
	log   zerolog.Logger
	// compared: the index was compared with the checkpoints, but for the runs left; nil before the first look.
	compared bool
	left     []string
	// suspects are the ids of runs whose entry must be compared with their checkpoint.
	suspects sync.Map
}

// put puts the entries of runs that became live, or whose entry changed. It comes before their checkpoints, so that a
// crash in between leaves an extra entry and never a missing one. A run that is reopened has no entry, and gets one
// with a new revision.
func (x *liveIndex) put(ctx context.Context, runs []*run) error {
	var puts []kvstore.LivePut
	var of []*run
	for _, r := range runs {
		if !r.head.InLiveIndex() {
			continue
		}
		l := schema.LiveOf(&r.head)
		if r.live != nil && r.live.Same(&l) {
			continue
		}
		// Entries of other terms are overwritten; entries of this term must still be there.
		puts = append(puts, kvstore.LivePut{Live: l, Revision: r.liveRev})
		of = append(of, r)
	}
	revisions, err := x.shard.Checkpoints.PutLive(ctx, puts...)
	for i, rev := range revisions {
		if rev != 0 {
			of[i].live, of[i].liveRev = &puts[i].Live, rev
		}
	}
	return lost(err)
}

// end returns the entries to delete once the checkpoints of the runs are put. Unknown revisions are read now, before
// that: an entry that is put after the checkpoint, because the run was reopened, has a later one.
func (x *liveIndex) end(ctx context.Context, runs []*run) ([]kvstore.LiveAt, error) {
	var ended []*run
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(liveReads)
	for _, r := range runs {
		if r.head.InLiveIndex() || r.live == nil {
			continue
		}
		ended = append(ended, r)
		if r.liveRev != 0 {
			continue
		}
		group.Go(func() error {
			e, err := x.shard.Checkpoints.LiveOf(groupCtx, r.id)
			switch {
			case errors.Is(err, kvstore.ErrNotFound):
				return nil
			case err != nil:
				return err
			case e.Live != nil || e.Err != nil:
				r.liveRev = e.Revision
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var entries []kvstore.LiveAt
	for _, r := range ended {
		if r.liveRev != 0 {
			entries = append(entries, kvstore.LiveAt{Run: r.id, Revision: r.liveRev})
		}
		r.live, r.liveRev = nil, 0
	}
	return entries, nil
}

// erase deletes the entries of ended runs.
func (x *liveIndex) erase(ctx context.Context, entries []kvstore.LiveAt) error {
	for i, res := range x.shard.Checkpoints.EraseLive(ctx, entries...) {
		switch {
		case errors.Is(res.Err, kvstore.ErrConflict):
			// Another worker put it again: this one was paused.
			x.log.Info().Err(res.Err).Str(logkey.Run, entries[i].Run).Msg("live entry stays, it was put again")
		case res.Err != nil:
			return res.Err
		}
	}
	return nil
}

// mendLive repairs the entries that a crash left: once in a term, when the log is folded (a lost connection ends the
// term), and those that the sweeper suspects. Only the folding goroutine may call it, or an entry put before its
// checkpoint would look wrong. What it could not do is left to the next period.
func (s *term) mendLive(ctx context.Context) error {
	if s.mark.RebuildTo > 0 || !s.caughtUpWithLog() {
		return nil
	}
	if !s.live.compared {
		if err := s.live.compare(ctx); err != nil {
			return fmt.Errorf("compare the live index with the checkpoints: %w", err)
		}
	}
	var failed error
	s.live.suspects.Range(func(key, _ any) bool {
		s.live.suspects.Delete(key)
		run, _ := key.(string)
		if err := s.mend(ctx, run); err != nil {
			s.cache.drop(run) // the outcome of a put is unknown
			s.live.suspect(run)
			failed = fmt.Errorf("repair the live entry of run %s: %w", run, err)
		}
		return ctx.Err() == nil && !errors.Is(failed, errSuperseded) && !errors.Is(failed, kvstore.ErrUnavailable)
	})
	return failed
}

func (x *liveIndex) suspect(run string) { x.suspects.Store(run, nil) }

// compare makes suspects of the runs whose entry differs from their checkpoint. It reads the live runs only. That is
// enough, because entries are put before the first checkpoint, so none is missing.
func (x *liveIndex) compare(ctx context.Context) (err error) {
	cps := x.shard.Checkpoints
	if x.left == nil {
		if x.left, _, err = cps.LiveRuns(ctx); err != nil {
			return err
		}
	}
	for began := time.Now(); len(x.left) > 0 && time.Since(began) < liveCheckTime; {
		list, _, err := cps.Of(ctx, x.left)
		if err != nil {
			return err
		}
		entries, _, err := cps.Live(ctx, x.left[:len(list)]...)
		if err != nil {
			return err
		}
		x.left = x.left[len(list):]
		for i := range entries {
			e := &entries[i]
			for list[0].Run != e.Run {
				list = list[1:] // its entry is gone
			}
			if c := list[0].Checkpoint; e.Live != nil && c != nil && c.InLiveIndex() {
				if l := schema.LiveOf(&c.Head); e.Live.Same(&l) {
					continue
				}
			}
			if !errors.Is(e.Err, schema.ErrFormat) {
				x.suspect(e.Run)
			}
		}
	}
	x.compared = len(x.left) == 0
	return nil
}

// mend repairs a run's entry, and a missing, unreadable or older checkpoint: a run with a dead executor has no next
// event that would do so.
func (s *term) mend(ctx context.Context, id string) error {
	e, err := s.shard.Checkpoints.LiveOf(ctx, id)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	r, err := s.restore(ctx, id)
	if err != nil {
		return err
	}
	l := schema.LiveOf(&r.head)
	lives := r.head.Counts.Events > 0 && r.head.InLiveIndex()
	switch {
	case lives && e.Live != nil && e.Live.Same(&l):
		return nil
	case lives:
		r.live, r.liveRev = nil, e.Revision
		err = s.live.put(ctx, []*run{r})
	case e.Live != nil || e.Err != nil:
		err = s.live.erase(ctx, []kvstore.LiveAt{{Run: id, Revision: e.Revision}})
	default:
		return nil
	}
	if err != nil {
		return err
	}
	s.log.Info().Str(logkey.Run, id).Bool("live", lives).AnErr("was", e.Err).Msg("live entry repaired")
	return nil
}

// restore loads a run afresh, up to the folded position, and puts its checkpoint if it had to be folded again.
func (s *term) restore(ctx context.Context, id string) (*run, error) {
	s.cache.drop(id)
	r, err := s.load(ctx, id, &eventlog.Arrived{Record: schema.Record{Stream: s.mark.Position.Stream + 1}})
	if err != nil {
		return nil, err
	}
	return r, s.store(ctx, map[string]*run{id: r})
}

// sweeper searches for the shard's silent executors during the term.
func (s *term) sweeper() *liveness.Sweeper {
	return liveness.NewSweeper(s.cfg.sweeper(), liveness.Deps{
		JS: s.js, Shard: s.shard, Keys: s.keys, LiveRuns: s.cfg.LiveRuns, Heartbeats: s.cfg.Heartbeats, Stats: &s.stats.Sweep,
		Ready: s.caughtUpWithLog, Suspect: s.live.suspect, Now: s.now, Log: s.log,
	})
}
