package fold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// liveMarkAge is how long the mark of an erased entry stays, so that every watch of the index has seen it, and
	// maxLiveMarks bounds those that wait.
	liveMarkAge  = 10 * time.Second
	maxLiveMarks = 1 << 16
	// liveCheckEvery is the pace at which the whole index is compared with the checkpoints, beside the start of a term.
	liveCheckEvery = 10 * time.Minute
	// liveCheckPage is the number of checkpoints in memory for it.
	liveCheckPage = 512
	// liveReads bounds the reads of single entries under way.
	liveReads = 16
)

// liveMark is the mark of an erased entry, and when it was left.
type liveMark struct {
	kvstore.LiveAt
	at time.Time
}

// enter sets the run's entries of the live index and of that of runs beside its head: what these hold if every run's is as
// its checkpoint says, which holds unless somebody else wrote there or a crash came between, and is mended then.
func (r *run) enter() {
	r.live, r.liveRev = nil, 0
	r.index = indexedOf(&r.head)
	if r.head.InLiveIndex() {
		l := schema.LiveOf(&r.head)
		r.live = &l
	}
}

// liveIndex is the live index of a shard during a term: entries of the runs that may need an executor.
type liveIndex struct {
	cfg   Config
	shard *kvstore.Shard
	stats *Stats
	now   func() time.Time
	log   zerolog.Logger
	// caughtUp reports whether everything but the last batch or so of the log is folded.
	caughtUp func() bool
	// marks of erased entries that are yet to be purged, oldest first. They are the folding goroutine's.
	marks []liveMark
	// suspects are runs whose entry is to be compared with their checkpoint, and vanished those whose entry is gone.
	suspects *suspects
	vanished chan string
}

// put puts the entries of the runs that begin to live, or whose entry changed. It comes before their checkpoints,
// so that a crash between leaves one entry too many and never one too few. A run that comes back to life has had no
// entry, and gets one with a new revision.
func (x *liveIndex) put(ctx context.Context, runs []*run) error {
	var puts []kvstore.LivePut
	var of []*run
	for _, r := range runs {
		if !r.head.InLiveIndex() {
			continue
		}
		l := schema.LiveOf(&r.head)
		if r.live != nil && r.live.Same(&l) && !x.missing(r) {
			continue
		}
		// What this term did not put itself it puts over; what it put must still be there.
		puts = append(puts, kvstore.LivePut{Live: l, Revision: r.liveRev})
		of = append(of, r)
	}
	revisions, err := x.shard.Checkpoints.PutLive(ctx, puts...)
	for i, rev := range revisions {
		if rev != 0 {
			of[i].live, of[i].liveRev = &puts[i].Live, rev
			x.stats.LivePuts.Add(1)
		}
	}
	return lost(err)
}

// missing reports whether the index has lost the entry of a run that this term put none of.
func (x *liveIndex) missing(r *run) bool {
	return r.liveRev == 0 && x.cfg.LiveRuns != nil && x.cfg.LiveRuns.Lacks(x.cfg.Shard, r.id)
}

// end returns the entries that are to be erased once the checkpoints of the runs are put. Revisions that are not
// known are read now, before: an entry that somebody puts after the checkpoint, because the run came back to life, has
// a later one.
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

// erase erases the entries of runs that have ended.
func (x *liveIndex) erase(ctx context.Context, entries []kvstore.LiveAt) error {
	for i, res := range x.shard.Checkpoints.EraseLive(ctx, entries...) {
		switch {
		case errors.Is(res.Err, kvstore.ErrConflict):
			// Somebody put it again. If that was no worker, who compares the index with the checkpoints mends it.
			x.stats.LiveConflicts.Add(1)
			x.log.Info().Err(res.Err).Str(logkey.Run, entries[i].Run).Msg("live entry stays, it was put again")
		case res.Err != nil:
			return res.Err
		default:
			x.leaveMark(entries[i].Run, res.Revision)
		}
	}
	return nil
}

// leaveMark remembers the mark of an erased entry until it is old enough to be purged.
func (x *liveIndex) leaveMark(run string, rev schema.Revision) {
	x.marks = append(x.marks, liveMark{kvstore.LiveAt{Run: run, Revision: rev}, x.now()})
}

// purgeMarks takes old marks away.
func (x *liveIndex) purgeMarks(ctx context.Context) error {
	now, n := x.now(), 0
	for n < len(x.marks) && (now.Sub(x.marks[n].at) >= liveMarkAge || len(x.marks)-n > maxLiveMarks) {
		n++
	}
	old := make([]kvstore.LiveAt, n)
	for i := range old {
		old[i] = x.marks[i].LiveAt
	}
	if err := x.shard.Checkpoints.PurgeLive(ctx, old...); err != nil {
		return err
	}
	x.marks = append(x.marks[:0:0], x.marks[n:]...)
	return nil
}

// check compares the live index with the checkpoints of the live runs, and not with those of all runs: entries are
// put before the first checkpoint, so that none is missing that this would have to find.
func (x *liveIndex) check(ctx context.Context) error {
	cps := x.shard.Checkpoints
	entries := make(map[string]*schema.Live)
	err := cps.Live(ctx, func(e kvstore.LiveEntry) bool {
		if !errors.Is(e.Err, schema.ErrFormat) {
			entries[e.Run] = e.Live
		}
		return true
	})
	if err != nil {
		return err
	}
	for after := ""; ; {
		page, next, err := cps.ListLive(ctx, after, liveCheckPage)
		if err != nil {
			return err
		}
		for i := range page {
			c, e := page[i].Checkpoint, entries[page[i].Run]
			if c == nil || e == nil || !c.InLiveIndex() {
				continue // whatever is left in entries is looked at
			}
			if l := schema.LiveOf(&c.Head); e.Same(&l) {
				delete(entries, page[i].Run)
			}
		}
		if next == "" {
			break
		}
		after = next
	}
	for run := range entries {
		x.suspects.add(run)
	}
	return nil
}

// keep compares the index with the checkpoints when a term has caught up with the log, and from time to time: what a
// crash left between two puts, or another hand wrote, is mended.
func (x *liveIndex) keep(ctx context.Context) error {
	tick := time.NewTicker(x.cfg.SweepEvery)
	defer tick.Stop()
	var checked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if x.cfg.LiveRuns != nil {
			for _, run := range x.cfg.LiveRuns.Unreadable(x.cfg.Shard) {
				x.suspects.add(run)
			}
		}
		if x.cfg.LiveRuns != nil && x.caughtUp() {
			for _, run := range x.cfg.LiveRuns.TakeVanished(x.cfg.Shard) {
				select {
				case x.vanished <- run:
				case <-ctx.Done():
					return nil
				}
			}
		}
		if !x.caughtUp() || !checked.IsZero() && x.now().Sub(checked) < liveCheckEvery {
			continue
		}
		if err := x.check(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("compare the live index with the checkpoints: %w", err)
		}
		checked = x.now()
	}
}

// suspects are the runs whose live entry is to be compared with their checkpoint. Each is in it once, so that repeated scans do not fill it
// with the same runs: it has at most the entries of the shard's index.
type suspects struct {
	mu   sync.Mutex
	runs map[string]struct{}
	wake chan struct{} // can be received from while there are any
}

func newSuspects() *suspects {
	return &suspects{runs: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

func (s *suspects) add(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[run] = struct{}{}
	s.signal()
}

// take takes out any of them, if there is one: a wake-up may be stale.
func (s *suspects) take() (run string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for run := range s.runs {
		delete(s.runs, run)
		if len(s.runs) > 0 {
			s.signal()
		}
		return run, true
	}
	return "", false
}

func (s *suspects) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// mend makes a run's entry what its checkpoint says, and its checkpoint what the log says if that is gone or cannot be
// read: a run whose executor is dead has no next event that would. Only the goroutine that folds may, or an entry that
// was put before its checkpoint would be taken for a wrong one.
func (s *term) mend(ctx context.Context, id string) error {
	if s.parked.has(id) {
		return nil // its next try makes both
	}
	_, err := s.spare(id, s.mendRun(ctx, id))
	return err
}

func (s *term) mendRun(ctx context.Context, id string) error {
	cps := s.shard.Checkpoints
	cached := s.cache.peek(id)
	e, err := cps.LiveOf(ctx, id)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
	case err != nil:
		return err
	case errors.Is(e.Err, schema.ErrFormat):
		return nil // of a later version, which knows better
	}
	c, _, err := cps.GetFresh(ctx, id)
	var head schema.Head
	switch {
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrCorrupt):
		if cached, err = s.restore(ctx, id); err != nil {
			return err
		}
		head = cached.head
	case errors.Is(err, schema.ErrFormat):
		return nil
	case err != nil:
		return err
	case cached != nil:
		head = cached.head
	case c.Incarnation != s.incarnation:
		return nil
	default:
		head = c.Head
		if older, err := s.older(ctx, c); err != nil {
			return err
		} else if older {
			if cached, err = s.restore(ctx, id); err != nil {
				return err
			}
			head = cached.head
		}
	}
	if s.parked.has(id) {
		return nil
	}
	lives := head.Counts.Events > 0 && head.InLiveIndex()
	if lives {
		l := schema.LiveOf(&head)
		if e.Live != nil && e.Live.Same(&l) {
			return nil
		}
		revisions, err := cps.PutLive(ctx, kvstore.LivePut{Live: l, Revision: e.Revision})
		if err != nil {
			return lost(err)
		}
		if cached != nil {
			cached.live, cached.liveRev = &l, revisions[0]
		}
	} else {
		switch {
		case e.Live != nil || e.Err != nil:
			if err := s.live.erase(ctx, []kvstore.LiveAt{{Run: id, Revision: e.Revision}}); err != nil {
				return err
			}
		case e.Revision != 0:
			s.live.leaveMark(id, e.Revision) // left by a worker that did not come to purge it
			return nil
		default:
			return nil
		}
	}
	s.stats.LiveMended.Add(1)
	s.log.Info().Str(logkey.Run, id).Bool("live", lives).AnErr("was", e.Err).Msg("live entry mended")
	return nil
}

// restore folds a run again whose checkpoint is gone or cannot be read, and puts it.
func (s *term) restore(ctx context.Context, id string) (*run, error) {
	s.cache.drop(id)
	// Up to where the log is folded; what comes behind that comes by itself.
	r, err := s.load(ctx, id, &eventlog.Arrived{Record: schema.Record{Stream: s.mark.Position.Stream + 1}})
	if err != nil || r.head.Counts.Events == 0 {
		return r, err
	}
	s.log.Warn().Str(logkey.Run, id).Msg("checkpoint was gone or damaged, folded from the log")
	return r, s.store(ctx, map[string]*run{id: r})
}

// sweeper looks for the shard's silent executors while the term lasts.
func (s *term) sweeper() *liveness.Sweeper {
	return liveness.NewSweeper(s.cfg.sweeper(), liveness.Deps{
		JS: s.js, Shard: s.shard, Keys: s.keys, LiveRuns: s.cfg.LiveRuns, Heartbeats: s.cfg.Heartbeats, Stats: &s.stats.Sweep,
		Ready: s.caughtUpWithLog, Suspect: s.live.suspects.add, Parked: s.parked.has, Now: s.now, Log: s.log,
	})
}
