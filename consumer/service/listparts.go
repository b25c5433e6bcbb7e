package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// candidate is a run that may belong to the first part of a list: it is live, or has ended since the list began.
type candidate struct {
	run     string
	shard   int
	started int64
	// line is what is known without its checkpoint.
	line schema.RunSummary
	// both: only the live index has offered it, and it is in the index of ended runs, too.
	both bool
}

func liveCandidate(e *schema.Live, shard int, started time.Time) candidate {
	return candidate{
		run: e.Run, shard: shard, started: nanos(started), line: schema.SummaryOfLive(e), both: e.Status.Terminal() && len(e.Offers) == 0,
	}
}

// nanos is a time as a sortable number, 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// compareRuns compares two runs in the order of the first part: the last started is first.
func compareRuns(aStarted int64, aRun string, bStarted int64, bRun string) int {
	return cmp.Or(cmp.Compare(bStarted, aStarted), strings.Compare(aRun, bRun))
}

// newestFirst keeps the first runs, in a list's order, of many.
type newestFirst struct {
	limit int
	list  []candidate
}

// offer adds a run if it belongs to the first ones. Of a run that is offered twice the first offer is kept.
func (n *newestFirst) offer(c candidate) {
	at, found := slices.BinarySearchFunc(n.list, c, func(a, b candidate) int { return compareRuns(a.started, a.run, b.started, b.run) })
	if found {
		n.list[at].both = n.list[at].both && c.both
		return
	}
	if at >= n.limit {
		return
	}
	n.list = slices.Insert(n.list, at, c)
	if len(n.list) > n.limit {
		n.list = n.list[:n.limit]
	}
}

// readLive reads the lines of the page in the list's first part.
func (l *listing) readLive(ctx context.Context) error {
	newest := newestFirst{limit: l.req.Limit}
	offer := func(c candidate) {
		if l.place.Run == "" || compareRuns(c.started, c.run, l.place.Started, l.place.Run) > 0 {
			newest.offer(c)
		}
	}
	// Live runs are read before ended ones: a run is added to the second index before it is removed from the first.
	if err := l.offerLive(ctx, offer); err != nil {
		return err
	}
	if l.wantsEnded() {
		if err := l.offerEnded(ctx, offer); err != nil {
			return err
		}
	}
	stored, err := l.stored(ctx, len(newest.list), func(i int) runIn { return runIn{newest.list[i].run, newest.list[i].shard} })
	if err != nil {
		return err
	}
	for _, c := range newest.list {
		s := stored[runIn{c.run, c.shard}]
		if s == nil {
			return nil
		}
		l.place.Started, l.place.Run = c.started, c.run
		switch {
		case errors.Is(s.Err, kvstore.ErrNotFound):
			// The index named it before its first checkpoint, or it was removed.
		case s.Err != nil && c.both && l.wantsEnded():
			// It belongs to the second part.
		case s.Err != nil:
			l.lines = append(l.lines, listLine{RunSummary: c.line, started: c.started})
		case !s.Checkpoint.Live() && s.Checkpoint.Position.Stream <= l.place.Shards[c.shard].Top:
			// It belongs to the second part.
		case l.matchesHead(&s.Checkpoint.Head):
			l.lines = append(l.lines, listLine{RunSummary: l.svc.summary(&s.Checkpoint.Head), started: c.started})
		}
	}
	l.place.Ended = len(newest.list) < l.req.Limit
	return nil
}

// offerLive offers the live runs, as soon as all of them are in memory.
func (l *listing) offerLive(ctx context.Context, offer func(candidate)) error {
	for !l.svc.liveRuns.Each(func(shard int, e *schema.Live, started time.Time) {
		if l.matchesLive(e, started) {
			offer(liveCandidate(e, shard, started))
		}
	}) {
		if err := pause.For(ctx, staleWait); err != nil {
			return fmt.Errorf("live runs of fleet %s are not all read: %w: %w", l.svc.cfg.Fleet, kvstore.ErrUnavailable, err)
		}
	}
	l.incomplete = l.incomplete || l.svc.liveRuns.Counts().Unreadable > 0
	return nil
}

// offerEnded offers the runs that have ended since the list began.
func (l *listing) offerEnded(ctx context.Context, offer func(candidate)) error {
	for i, src := range l.shards {
		q := l.query(&l.place.Shards[i])
		q.From, q.Before, q.Limit = l.place.Shards[i].Mark, math.MaxInt64, maxEndedSince
		for n := 0; q.Before > 0; {
			page, err := src.Store.Checkpoints.Ended(ctx, q)
			if err != nil {
				return err
			}
			for _, e := range page.Runs {
				offer(candidate{run: e.Run, shard: i, started: nanos(schema.ParseTime(e.StartedAt)), line: e.RunSummary})
			}
			if n += len(page.Runs); n > maxEndedSince {
				return schema.Fail(schema.CodeConflict, "Begin the list again.", "more than %d runs have ended since this list began", maxEndedSince)
			}
			q.Before = page.Next
		}
	}
	return nil
}

// query is for the ended runs of a shard that pass the filter. The server filters by agent, and by a single status.
func (l *listing) query(p *shardPlace) kvstore.EndedQuery {
	q := kvstore.EndedQuery{
		Before: p.Before, Agent: l.req.Agent, Limit: l.req.Limit,
		Match: func(e *schema.Ended) bool {
			return e.Position >= p.Floor && (p.Until == 0 || e.Position < p.Until) && l.matches(&e.RunSummary)
		},
	}
	if !l.since.IsZero() {
		q.Since = kvstore.EndedClock(l.since)
	}
	wanted := slices.DeleteFunc(slices.Clone(l.req.Status), func(s schema.Status) bool { return !s.Terminal() })
	if len(l.req.Completion) > 0 {
		wanted = l.completing()
	}
	if len(wanted) == 1 {
		q.Status = wanted[0]
	}
	return q
}

// endedRun is a run of the second part.
type endedRun struct {
	kvstore.EndedRun
	shard int
}

// readEnded reads the lines of the page in the list's second part: those of all shards, each in its own order, and
// the last ended first among shards.
func (l *listing) readEnded(ctx context.Context) error {
	limit := l.req.Limit - len(l.lines)
	pages := make([]kvstore.EndedPage, len(l.place.Shards))
	for i := range l.place.Shards {
		p := &l.place.Shards[i]
		if p.over() {
			continue
		}
		q := l.query(p)
		q.Limit = limit
		var err error
		if pages[i], err = l.shards[i].Store.Checkpoints.Ended(ctx, q); err != nil {
			return err
		}
	}
	began := slices.Clone(l.place.Shards)
	merged := l.merge(pages, limit)
	stored, err := l.stored(ctx, len(merged), func(k int) runIn { return runIn{merged[k].Run, merged[k].shard} })
	if err != nil {
		return err
	}
	for k := range merged {
		e := &merged[k]
		s := stored[runIn{e.Run, e.shard}]
		if s == nil {
			l.place.Shards = began
			break
		}
		began[e.shard].Before = e.Revision
		if l.settle(e, s); e.Run != "" {
			l.lines = append(l.lines, listLine{RunSummary: e.RunSummary, shard: e.shard, revision: e.Revision})
		}
	}
	return nil
}

// settle completes an entry from the run's checkpoint, and clears it if the run does not belong there.
func (l *listing) settle(e *endedRun, s *kvstore.Stored) {
	switch {
	case errors.Is(s.Err, kvstore.ErrNotFound):
		e.Run = "" // removed
	case s.Err != nil:
		// The index entry is used.
	case s.Checkpoint.Live(), s.Checkpoint.Status != e.Status, !l.matchesHead(&s.Checkpoint.Head):
		e.Run = "" // it is live again, or has another entry
	case s.Checkpoint.Position.Stream > max(e.Position, l.place.Shards[e.shard].Top):
		e.Run = "" // written to since the list began
	default:
		e.RunSummary = l.svc.summary(&s.Checkpoint.Head)
	}
}

// merge takes the first entries of the shards' pages, and moves each shard's place after its last one.
func (l *listing) merge(pages []kvstore.EndedPage, limit int) []endedRun {
	var merged []endedRun
	next := make([]int, len(pages))
	for i := range pages {
		if len(pages[i].Runs) > 0 {
			continue
		}
		// Nothing is known after the position where a shard's read ended, so the page ends there, too.
		if l.place.Shards[i].Before = pages[i].Next; !l.place.Shards[i].over() {
			return nil
		}
	}
	for {
		best := -1
		var bestAt int64
		for i := range pages {
			if next[i] == len(pages[i].Runs) {
				continue
			}
			if at := nanos(schema.ParseTime(pages[i].Runs[next[i]].UpdatedAt)); best < 0 || at > bestAt {
				best, bestAt = i, at
			}
		}
		if best < 0 {
			return merged
		}
		if len(merged) == limit {
			return merged
		}
		e := pages[best].Runs[next[best]]
		merged = append(merged, endedRun{EndedRun: e, shard: best})
		next[best]++
		l.place.Shards[best].Before = e.Revision
		if next[best] < len(pages[best].Runs) {
			continue
		}
		l.place.Shards[best].Before = pages[best].Next
		if !l.place.Shards[best].over() {
			return merged
		}
	}
}
