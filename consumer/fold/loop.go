package fold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// loop reads the log from the watermark, inclusive, and folds it batch by batch.
func (s *term) loop(ctx context.Context) error {
	reader, err := eventlog.Follow(ctx, s.nc, s.js, s.names, eventlog.FollowFrom{Stream: s.mark.Position.Stream})
	if err != nil {
		return err
	}
	defer reader.Close(ctx, s.js)
	s.behind.Store(reader.Pending())
	wait := s.throttle(ctx) // before the first put, which may find a full bucket
	in := newPrefetcher(reader, s.names, s.cfg.BatchEvents, s.awaitKeys)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return in.run(ctx) })
	group.Go(func() error { return s.fold(ctx, in.chunks) })
	if s.cfg.LiveRuns != nil && s.cfg.Heartbeats != nil {
		group.Go(func() error {
			s.sweeper().Run(ctx)
			return nil
		})
	}
	group.Go(func() error { return supersededOr(s.purger.Run(ctx, s.caughtUpWithLog)) })
	group.Go(func() error { return s.remover.Run(ctx) })
	group.Go(func() error {
		for pause.For(ctx, wait) == nil {
			wait = s.throttle(ctx)
		}
		return nil
	})
	if s.names.Shard == 0 {
		group.Go(func() error {
			s.collectBlobs(ctx)
			return nil
		})
	}
	err = group.Wait()
	if err == nil && ctx.Err() == nil {
		return errors.New("event stream ended")
	}
	return err
}

// fold gathers batches and commits them. A batch has the events available now, within a count, a size, and a linger.
func (s *term) fold(ctx context.Context, in <-chan *chunk) error {
	tick := time.NewTicker(s.cfg.ReconcileEvery)
	defer tick.Stop()
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	quiet := false
	defer s.letters.sayDropped()
	// A worker that is told to stop may have skipped a chunk, and must not fold the next one.
	for ctx.Err() == nil {
		s.beat()
		if err := s.endRebuild(ctx); err != nil {
			return err
		}
		b := batch{touched: make(map[string]*run), erased: make(map[string]schema.StreamSequence), limits: s.cfg.Limits()}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.letters.sayDropped()
			if err := s.reconcile(ctx); err != nil {
				return err
			}
			// Messages counted as waiting may have been purged before they were read.
			if quiet && len(in) == 0 {
				s.behind.Store(0)
			}
			quiet = true
			continue
		case need := <-s.purger.Press():
			if err := s.sealPressed(ctx, need); err != nil {
				return err
			}
			continue
		case l, ok := <-in:
			if !ok {
				return nil
			}
			if told, err := s.takeChunk(ctx, &b, l); err != nil || told {
				return err
			}
		}
		quiet = false
		if err := s.gather(ctx, &b, in, linger); err != nil {
			return err
		}
		began := time.Now()
		if err := s.finish(ctx, &b); err != nil {
			return err
		}
		s.pace.committed(cost{time.Since(began), len(b.touched)})
		s.behind.Store(b.behind)
	}
	return nil
}

// Bounds on how often a worker commits.
const (
	// pacedLinger is the ratio of the time to gather a batch to the time of a commit: puts take a fifth of a busy
	// worker's time, and the server has the rest for publishers.
	pacedLinger = 4
	// lingerPerPut bounds the linger by the number of puts: a short batch that took long met a slow disk, and waiting does not help.
	lingerPerPut = 400 * time.Microsecond
	// maxPacedLinger is the longest such linger.
	maxPacedLinger = 200 * time.Millisecond
)

// pace derives from the cost of commits how long to gather the next batch. Each batch puts a checkpoint of each of
// its runs: with many active runs on a busy server, a batch of a few milliseconds has one event per run, and its puts
// compete with the executors' events. If commits are short or have few runs, so is the linger.
type pace struct{ last, before cost }

// cost is how long a commit took, and its number of checkpoints.
type cost struct {
	took time.Duration
	puts int
}

func (p *pace) committed(c cost) { p.last, p.before = c, p.last }

// linger returns how long to gather. It uses the cheaper of two commits: one that sealed a segment is not typical.
func (p *pace) linger() time.Duration {
	took := pacedLinger * min(p.last.took, p.before.took)
	puts := lingerPerPut * time.Duration(min(p.last.puts, p.before.puts))
	return min(took, puts, maxPacedLinger)
}

const (
	// catchUpLinger is how many lingers a batch waits for messages that the log is known to have.
	catchUpLinger = 2
	// farBehindLinger and farBehindEvents use larger batches while the worker is more than a batch behind: how many
	// lingers to wait, and how many batches' events to put into one. No checkpoint is fresh before the worker has
	// caught up, and larger batches need fewer puts.
	farBehindLinger = 5
	farBehindEvents = 4
)

// farBehind reports whether there is more than another batch after this one.
func (s *term) farBehind(b *batch) bool {
	return b.behind > uint64(s.cfg.BatchEvents) //nolint:gosec // at least 1
}

// full reports whether a batch is full. Its bytes are bounded however far it is behind.
func (s *term) full(b *batch) bool {
	most := s.cfg.BatchEvents
	if s.farBehind(b) {
		most *= farBehindEvents
	}
	return b.events >= most || b.bytes >= s.cfg.BatchBytes
}

// gather fills a batch that has its first message. It uses larger batches while catching up: each batch costs one put
// of every run in it.
func (s *term) gather(ctx context.Context, b *batch, in <-chan *chunk, linger *time.Timer) error {
	linger.Reset(max(s.cfg.Linger, s.pace.linger()))
	late := false
	for !s.full(b) && (!late || b.behind > 0) {
		select {
		case l, ok := <-in:
			if !ok {
				return nil
			}
			if told, err := s.takeChunk(ctx, b, l); err != nil || told {
				return err
			}
		case <-linger.C:
			if late || b.behind == 0 {
				return nil
			}
			late = true
			lingers := catchUpLinger
			if s.farBehind(b) {
				lingers = farBehindLinger
			}
			linger.Reset(time.Duration(lingers-1) * s.cfg.Linger)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// caughtUpWithLog reports whether all but about the last batch of the log is folded.
func (s *term) caughtUpWithLog() bool { return s.behind.Load() <= uint64(s.cfg.BatchEvents) } //nolint:gosec // at least 1

// commitGrace is how long the current batch may take once the worker is told to stop.
const commitGrace = 5 * time.Second

// finish commits a batch even if the worker is told to stop, or its events would be folded twice.
func (s *term) finish(ctx context.Context, b *batch) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(commitGrace, cancel) })
	defer stop()
	return s.commit(work, b)
}

// batch is the events folded between two puts of the watermark.
type batch struct {
	events, bytes int
	last          schema.Position
	touched       map[string]*run
	dead          []kvstore.DeadLetter
	dropped       droppedLetters
	accepted      []accepted
	// notices to executors.
	notices []notice
	// erased are removed runs that may have remaining data, with the position of their last event; removals are those
	// removed by this batch.
	erased   map[string]schema.StreamSequence
	removals []*schema.Removal
	// limits of the fleet.
	limits []schema.Limit
	// behind is the number of messages after the last one.
	behind uint64
}

// accepted is an event to announce after its checkpoint is put.
type accepted struct {
	run string
	rec schema.Record
	e   *schema.Event
	// begun: it begins a call that was announced with its answer.
	begun bool
	// answer is its data if it is an answer, and calls are the requested calls.
	answer *schema.TurnAnsweredData
	calls  []schema.CallKey
	// turns are its changes of turns.
	turns []schema.TurnNotice
}

// takeChunk folds a prepared chunk into the batch. A worker told to stop skips it, and must not fold later chunks.
func (s *term) takeChunk(ctx context.Context, b *batch, l *chunk) (told bool, err error) {
	select {
	case <-l.ready:
	case <-ctx.Done():
		return true, nil
	}
	if err := failpoint.Hit(ctx, failpoint.AfterFetch); err != nil {
		return false, err
	}
	for i := range l.messages {
		if err := s.take(ctx, b, &l.messages[i]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// take folds one message into the batch.
func (s *term) take(ctx context.Context, b *batch, a *message) error {
	id := a.run
	b.behind = a.Pending
	s.passed = a.Record.Stream
	if id == schema.BarrierRun {
		return nil
	}
	b.events++
	b.bytes += a.size
	if !schema.ValidName(id) {
		// Such a run cannot be owned or recovered: the message is kept as a dead letter and has no head.
		b.last = a.prepared.Position()
		s.letters.reject(b, a, "", &a.Record, schema.ReasonInvalidAttribute, fmt.Sprintf("the subject's last token %.80q is no run id", id))
		return nil
	}
	if shard := schema.ShardOf(id, s.cfg.Shards); s.cfg.Shards > 0 && shard != s.names.Shard {
		b.last = a.prepared.Position()
		s.letters.reject(b, a, "", &a.Record, schema.ReasonWrongShard, fmt.Sprintf("run %s belongs to shard %d: publish its events on %s", id, shard, schema.NamesOf(s.names.Fleet, shard).EventSubject(id)))
		return nil
	}
	r, err := s.load(ctx, id, &a.Arrived)
	if err != nil {
		return err
	}
	if err := s.follow(ctx, r, a); err != nil {
		return fmt.Errorf("run %s at %d: %w", id, a.Record.Stream, err)
	}
	if err := s.fillGap(ctx, r, a, func(missed *message) error { return s.takeOf(b, r, missed) }); err != nil {
		return err
	}
	return s.takeOf(b, r, a)
}

// takeOf folds a message of a run into the batch.
func (s *term) takeOf(b *batch, r *run, a *message) error {
	id, had, was := r.id, r.head.Executor, r.head.Status
	fresh := a.Record.Stream > s.doubted // otherwise an earlier term counted it
	s.watch.Before(&r.head, &r.overview)
	used := r.head.Usage.Tokens()
	v := r.take(&a.prepared, a.size, &s.cfg)
	switch v.Kind {
	case schema.Replayed:
		s.stats.Replayed.Add(1)
		b.last = a.prepared.Position()
		if r.dirty {
			b.touched[id] = r // folded again, from segments with this event
		}
		return nil
	case schema.Regressed:
		return fmt.Errorf("%w: run %s at %d", errRegressed, id, a.Record.Stream)
	case schema.Rejected:
		rec := &a.Record
		if v.Reason == schema.ReasonErased {
			// The content of the event is not kept, here or in the log.
			rec = &schema.Record{Stream: rec.Stream}
			s.removed(b, r, was, a.Record.Stream)
		}
		s.letters.reject(b, a, had, rec, v.Reason, v.Detail)
	case schema.Applied, schema.Evidence:
		s.stats.Applied.Add(1)
		s.spend(b.limits, &r.head, used, &v, &a.Record)
		answer, _ := v.Data.(*schema.TurnAnsweredData)
		b.accepted = append(b.accepted, accepted{id, a.Record, v.Event, v.Begun, answer, v.Calls, r.turns})
		b.observe(r, had, &v)
		if fresh {
			s.watch.Accepted(&r.did, &r.head, &v, r.turns, &r.alone)
		}
		if v.Boundary && fresh {
			s.stats.Boundaries.Add(1)
			r.uncovered++
			if end, ok := v.Data.(*schema.RunEndedData); ok {
				s.stats.measureEnd(&r.head, end)
			}
		}
	case schema.Duplicate:
	case schema.Skipped:
		if r.head.Status == schema.StatusErased && was != schema.StatusErased {
			s.removed(b, r, was, a.Record.Stream)
		}
	}
	if fresh {
		s.stats.measure(&a.Arrived)
	}
	r.touched = s.now()
	b.touched[id] = r
	b.last = r.head.Position
	return nil
}

// sealsAtOnce bounds the runs that are sealed concurrently; each has its own tail in memory, below 1 MiB.
const sealsAtOnce = 16

// commit stores a batch in the order that makes a crash between any two steps harmless: dead letters, tokens,
// segments, checkpoints, watermark, and only then the announcements.
func (s *term) commit(ctx context.Context, b *batch) error {
	if b.events == 0 || b.last.Stream == 0 {
		return nil
	}
	if err := failpoint.Hit(ctx, failpoint.AfterApply); err != nil {
		return err
	}
	if err := s.letters.put(ctx, b); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.AfterDeadLetters); err != nil {
		return err
	}
	if err := s.putSpent(ctx, b); err != nil {
		return err
	}
	sealing, sealCtx := errgroup.WithContext(ctx)
	sealing.SetLimit(sealsAtOnce)
	var sealed atomic.Bool
	for _, r := range b.touched {
		if len(r.cuts) > 0 {
			sealing.Go(func() error {
				had := r.segments.Count
				err := s.sealer.seal(sealCtx, r)
				if r.segments.Count != had {
					sealed.Store(true)
				}
				return err
			})
		}
	}
	if err := sealing.Wait(); err != nil {
		return err
	}
	if err := s.listRemoved(ctx, b); err != nil {
		return err
	}
	if err := s.store(ctx, b.touched); err != nil {
		return err
	}
	if sealed.Load() {
		s.purger.Counted()
	}
	if err := s.pass(ctx, b); err != nil {
		return err
	}
	s.letters.countDropped(b)
	s.stats.Batches.Add(1)
	s.setCommitted()
	s.settleDoubt()
	s.announcer.announce(b.accepted)
	s.announcer.quarantine(b.touched)
	s.announcer.notify(b.notices)
	s.announcer.removed(b.removals)
	for run := range b.erased {
		s.remover.Add(run)
	}
	s.cache.evict()
	return nil
}

// putCheckpoints puts the checkpoints of runs. A checkpoint is bounded by construction (schema.MaxCheckpoint): one that
// fits no message shows a defect, which must not stop the shard. Such a run stays as after a power cut that undid the
// put: reads begin at the checkpoint before, and the next event, or a fixed daemon, folds the run again.
func (s *term) putCheckpoints(ctx context.Context, runs []*run) error {
	items := make([]kvstore.Item, len(runs))
	for i, r := range runs {
		items[i] = kvstore.Item{Checkpoint: r.checkpoint(s.incarnation, s.cfg.MaxClaims), Revision: r.revision}
	}
	var failed error
	for i, res := range s.shard.Checkpoints.PutBatch(ctx, items) {
		r := runs[i]
		if res.Err != nil {
			if errors.Is(res.Err, kvstore.ErrTooLarge) || errors.Is(res.Err, kvstore.ErrCorrupt) {
				s.noteUnstored(r, res.Err)
			} else {
				failed = cmp.Or(failed, lost(fmt.Errorf("checkpoint of run %s: %w", r.id, res.Err)))
			}
			continue
		}
		r.revision, r.dirty, r.unstored = res.Revision, false, false
		s.stats.measurePut(res.Bytes)
		s.stats.Covered.Add(r.uncovered)
		r.uncovered = 0
		s.cfg.Activity.Add(&r.did)
	}
	return failed
}

// noteUnstored records that a run's checkpoint cannot be stored.
func (s *term) noteUnstored(r *run, err error) {
	s.stats.Unstored.Add(1)
	event := s.log.Debug()
	if !r.unstored {
		event = s.log.Error()
	}
	r.unstored = true
	event.Err(err).Str(logkey.Run, r.id).Str("hint", "no event is lost, and recoveries return all of them; report this as a bug of Waymark").
		Msg("checkpoint cannot be stored")
}

// pass puts the watermark after a batch whose checkpoints are put.
func (s *term) pass(ctx context.Context, b *batch) error {
	if b.last.Stream <= s.mark.Position.Stream {
		return nil
	}
	return s.putMark(ctx, b.last)
}

// putMark puts the watermark.
func (s *term) putMark(ctx context.Context, at schema.Position) error {
	next := s.mark
	next.Position, next.Worker, next.Updated = at, s.cfg.Holder, schema.FormatTime(s.now())
	next.Safe = s.safeMark.position(s.now())
	next.Totals = s.totals.with(s.stats.totals())
	rev, err := s.shard.Checkpoints.PutWatermark(ctx, next, s.markRev)
	if err != nil {
		return lost(fmt.Errorf("watermark: %w", err))
	}
	s.mark, s.markRev, s.folded = next, rev, next
	return failpoint.Hit(ctx, failpoint.AfterWatermark)
}

// settleDoubt reports once that everything affected by an unclean start was folded again.
func (s *term) settleDoubt() {
	if !s.unclean || s.mark.Position.Stream < s.doubted {
		return // if a term fails before, the next one does this
	}
	s.unclean = false
	if s.cfg.AfterUnclean != nil {
		s.cfg.AfterUnclean()
	}
}

// store puts the checkpoints of the changed runs, all at once, each by compare-and-set on its own key.
func (s *term) store(ctx context.Context, touched map[string]*run) error {
	var runs []*run
	for _, r := range touched {
		// A run without an accepted event has no checkpoint: garbage on a subject creates no run. It need not be kept
		// in memory either, because the log has it.
		if r.head.Counts.Events == 0 {
			r.dirty = false
		}
		if !r.dirty {
			continue
		}
		runs = append(runs, r)
	}
	// The index names every run that may be live: it is written before the first checkpoint and removed after the
	// last, so that a crash in between leaves an extra name and never a missing one.
	if err := s.live.put(ctx, runs); err != nil {
		return err
	}
	if err := s.putIndex(ctx, runs); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.AfterIndexPut); err != nil {
		return err
	}
	ended, err := s.live.end(ctx, runs)
	if err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.BeforeCheckpointPut); err != nil {
		return err
	}
	if err := s.putCheckpoints(ctx, runs); err != nil {
		return err
	}
	ended = slices.DeleteFunc(ended, func(e kvstore.LiveAt) bool { return touched[e.Run].dirty })
	if err := failpoint.Hit(ctx, failpoint.AfterCheckpointPut); err != nil {
		return err
	}
	return s.live.erase(ctx, ended)
}
