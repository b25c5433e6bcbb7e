package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxReadTries bounds how often a read begins again because something moved beneath it.
	maxReadTries = 6
	// checkpointPatience bounds the wait for a checkpoint: without it there are still segments and the log.
	checkpointPatience = 2 * time.Second
	// maxTailBuffer is how much of a tail is kept in memory between folding and sending; a longer one is read
	// again. A sealed run's tail is below it.
	maxTailBuffer = 1 << 20
)

// reader reads runs: from a checkpoint of any age and the log after it, or from segments and log alone.
type reader struct {
	js    jetstream.JetStream
	fleet string
	// keys are those that the fleet's control events are checked by.
	keys  *keyring.Ring
	log   zerolog.Logger
	stats *ServiceStats
	// shards are those that can hold a run.
	shards  func(run string) []*shardSource
	grounds grounds
}

// shardSource is where the runs of one shard are read.
type shardSource struct {
	store   *kvstore.Shard
	barrier *barrier
}

// reading is a run as it was read: folded up to the last event seen in the log. Whether that is the run's last event
// is for the caller to prove.
type reading struct {
	src  *shardSource
	run  string
	head schema.Head
	// index counts the segments that hold the run's older part.
	index schema.SegmentIndex
	// lost are events that were stored once and are missing; what the fold itself missed is in head.Gaps.
	lost []schema.Gap
	// carried are those that the checkpoint says were lost before it.
	carried []schema.Gap
	// logFirst and logLast are the stream sequences of the first record of the run that was read from the log, and of the last
	// one; 0 when the log has none.
	logFirst, logLast schema.StreamSequence
	// scratch: no checkpoint was used.
	scratch bool
	// damage was met and survived.
	damage []schema.Damage
	// marked: the log has a mark that the run was removed. Whether it was, the record in the segment bucket says.
	marked bool
	// doubtful: the log misses events behind all that the folder is known to have folded. It may have folded them before they were lost.
	doubtful bool
	// unusable: the segment behind those of the index is there, and damaged.
	unusable bool
	tail     tail
}

// empty reports whether nothing was found of the run. A mark that it is begun elsewhere is nothing of it.
func (r *reading) empty() bool {
	c := &r.head.Counts
	return !r.marked && r.index.Count == 0 && c.Events == 0 && c.DeadLetters == 0 && c.Duplicates == 0
}

// gaps are all places where events of the run are known to be missing.
func (r *reading) gaps() []schema.Gap {
	all := slices.Concat([]schema.Gap{}, r.head.Gaps, r.carried)
	for _, g := range r.lost {
		if !slices.Contains(all, g) { // read anew, what a checkpoint says is met again
			all = append(all, g)
		}
	}
	return all
}

func (r *reading) complete() bool {
	return r.head.Complete() && len(r.lost) == 0 && len(r.carried) == 0
}

// tail is the part of a run's log behind its last segment.
type tail struct {
	// from is where a read of the log begins; records up to and including the last segment's are no part.
	from schema.StreamSequence
	// first is the place of its first record.
	first  schema.StreamSequence
	events int64
	bytes  int64
	// chunks are the tail's frames in pieces that fit a reply; nil when the tail was too long to keep, or only the
	// head was asked for.
	chunks  [][]byte
	dropped bool
}

// add counts a record and keeps its frame as long as the tail is short.
func (t *tail) add(rec *schema.Record, keep bool) {
	if t.events == 0 {
		t.first = rec.Stream
	}
	t.events++
	t.bytes += int64(rec.Size())
	if !keep || t.dropped {
		return
	}
	if t.bytes > maxTailBuffer {
		t.chunks, t.dropped = nil, true
		return
	}
	n := len(t.chunks)
	if n == 0 || len(t.chunks[n-1])+rec.Size() > maxFramesReply {
		t.chunks = append(t.chunks, nil)
		n++
	}
	t.chunks[n-1] = schema.AppendFrame(t.chunks[n-1], rec)
}

// mode says what a read may rely on.
type mode struct {
	// content: the events are wanted, not only the head.
	content bool
	// fresh: the checkpoint is asked of the leader.
	fresh bool
	// scratch: no checkpoint is used.
	scratch bool
	// walk: the log is asked of the leader, record by record.
	walk bool
	// accept: holes were confirmed and are folded as what they are.
	accept bool
}

// read returns the run as the servers that happened to answer show it. Holes were confirmed by the leader.
func (rd *reader) read(ctx context.Context, src *shardSource, run string, m mode) (*reading, error) {
	for range maxReadTries {
		r, err := rd.attempt(ctx, src, run, m)
		if err == nil {
			err = rd.undisturbed(ctx, r, m)
		}
		var h *hole
		switch {
		case err == nil:
			return r, nil
		case errors.As(err, &h):
			m, err = rd.confirm(ctx, src, run, h, m)
			if err != nil {
				return nil, err
			}
		case errors.Is(err, errMoved):
			m.scratch, m.accept = true, false
		case errors.Is(err, errPurged):
			m.fresh = true
		case errors.Is(err, errAbsent), errors.Is(err, errOtherThere), errors.Is(err, errPrefix):
			if !m.fresh {
				m.fresh = true
				continue
			}
			if r, err = rd.distrust(ctx, src, run, m, err); !errors.Is(err, errMoved) {
				return r, err
			}
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("run %s: the log changed during %d reads: %w", run, maxReadTries, ErrStale)
}

// undisturbed makes sure that nothing of the run was purged behind the reading's back: its log was read piece by piece, and a piece
// may have begun behind events that were sealed and purged since the one before. A gap in sequences tells most of it; control
// events, and those of plain executors, have none.
func (rd *reader) undisturbed(ctx context.Context, r *reading, m mode) error {
	switch {
	case m.accept, r.scratch && !r.empty():
		return rd.unmoved(ctx, r)
	case r.scratch || r.logFirst == r.logLast:
		return nil // there is nothing between
	}
	// A purge takes a run's events from the first on: as long as that is there, so are the others.
	rec, found, err := eventlog.Next(ctx, rd.js, r.src.store.Names, r.run, r.logFirst)
	switch {
	case err != nil:
		return err
	case !found || rec.Stream != r.logFirst:
		return fmt.Errorf("run %s: the event at %d: %w", r.run, r.logFirst, errPurged)
	default:
		return nil
	}
}

// unmoved makes sure that what a reading misses was not sealed and purged while it was read: then there are segments that
// it does not know. Only after that may something be called lost.
func (rd *reader) unmoved(ctx context.Context, r *reading) error {
	if r.unusable {
		return nil // what is in it is missing from the reading for another reason
	}
	_, err := r.src.store.Segments.GetFresh(ctx, r.run, r.index.Count+1)
	switch {
	case err == nil:
		return errMoved
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrStreamMissing):
		return nil
	default:
		return err
	}
}

// attempt reads once.
func (rd *reader) attempt(ctx context.Context, src *shardSource, run string, m mode) (*reading, error) {
	if m.scratch {
		r, err := rd.fromScratch(ctx, src, run, m)
		if err == nil {
			if c, _ := rd.checkpoint(ctx, src, run, true); c != nil {
				r.carried = c.Lost
			}
		}
		return r, err
	}
	c, damage := rd.checkpoint(ctx, src, run, m.fresh)
	var r *reading
	var err error
	if c != nil {
		r, err = rd.fromCheckpoint(ctx, src, run, c, m)
	} else {
		r, err = rd.fromScratch(ctx, src, run, m)
	}
	if err == nil && damage != nil {
		r.damage = append(r.damage, *damage)
	}
	return r, err
}

// checkpoint returns the run's checkpoint, an earlier one when it cannot be read, and nil when there is none to be used. That
// is never an error: it only costs time. What could not be read is told.
func (rd *reader) checkpoint(ctx context.Context, src *shardSource, run string, fresh bool) (*schema.Checkpoint, *schema.Damage) {
	ctx, cancel := context.WithTimeout(ctx, checkpointPatience)
	defer cancel()
	get := src.store.Checkpoints.Get
	if fresh {
		get = src.store.Checkpoints.GetFresh
	}
	c, rev, err := get(ctx, run)
	switch {
	case err == nil && c.Position.Stream != 0:
		return c, nil
	case err == nil, errors.Is(err, kvstore.ErrNotFound):
		return nil, nil
	case errors.Is(err, kvstore.ErrCorrupt), errors.Is(err, schema.ErrFormat):
		rd.stats.CorruptCheckpoints.Add(1)
		damage := &schema.Damage{What: schema.DamagedCheckpoint, Revision: rev, Detail: err.Error(), Instead: "segments and log"}
		earlier := rd.earlier(ctx, src, run, rev)
		if earlier != nil {
			damage.Instead = fmt.Sprintf("checkpoint %d and the log behind it", earlier.Revision)
			c = earlier.Checkpoint
		}
		rd.log.Error().Err(err).Str(logkey.Run, run).Str("instead", damage.Instead).Msg("checkpoint is corrupt")
		return c, damage
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		rd.log.Warn().Err(err).Str(logkey.Run, run).Msg("checkpoint cannot be used, reading segments and log")
	}
	return nil, nil
}

// earlier returns the newest readable checkpoint before a revision, or nil.
func (rd *reader) earlier(ctx context.Context, src *shardSource, run string, before schema.Revision) *kvstore.Stored {
	list, err := src.store.Checkpoints.History(ctx, run)
	if err != nil {
		return nil // without it there are still segments and the log
	}
	for i := range list {
		if s := &list[i]; s.Err == nil && s.Revision < before && s.Checkpoint.Position.Stream != 0 {
			return s
		}
	}
	return nil
}

// fromCheckpoint folds the log from the checkpoint's position on, which must still be there.
func (rd *reader) fromCheckpoint(ctx context.Context, src *shardSource, run string, c *schema.Checkpoint, m mode) (*reading, error) {
	r := &reading{src: src, run: run, head: c.Head, index: c.Segments, carried: c.Lost}
	at, sealed := c.Position, c.Segments.Last.Stream
	if c.Status == schema.StatusErased {
		m.content = false // there is none, and what the log still has is being taken out
	}
	r.tail.from = at.Stream
	if m.content {
		if sealed > at.Stream {
			// Sequences were re-used after damage: the tail cannot be told from the sealed part by its place.
			return nil, errPrefix
		}
		r.tail.from = min(at.Stream, sealed+1)
	} else {
		r.tail.events, r.tail.bytes = c.TailEvents, c.TailBytes
	}
	var prefix tail
	seen := false
	err := rd.records(ctx, src, run, r.tail.from, m.walk, func(rec schema.Record) error {
		if r.logFirst == 0 {
			r.logFirst = rec.Stream
		}
		r.logLast = rec.Stream
		switch {
		case rec.Stream < at.Stream:
		case rec.Stream == at.Stream:
			if schema.PositionOf(&rec).ID != at.ID {
				return errOtherThere
			}
			seen = true
		case !seen:
			return errAbsent
		default:
			if err := rd.fold(ctx, r, &rec, m.accept); err != nil {
				return err
			}
			r.tail.add(&rec, m.content)
			return nil
		}
		if m.content && rec.Stream > sealed {
			prefix.add(&rec, false)
			r.tail.add(&rec, true)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, r.placed(err)
	case !seen:
		return nil, errAbsent
	case m.content && (prefix.events != c.TailEvents || prefix.bytes != c.TailBytes):
		return nil, errPrefix
	}
	return r, nil
}

// placed adds to a hole which reading met it.
func (r *reading) placed(err error) error {
	if h, ok := errors.AsType[*hole](err); ok {
		h.of = r
	}
	return err
}

// fold applies a record. A hole is an error unless holes were confirmed.
func (rd *reader) fold(ctx context.Context, r *reading, rec *schema.Record, accept bool) error {
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return err
	}
	after := r.head.Position.Stream
	gaps := r.head.Counts.Gaps
	v := r.head.Apply(keys, rec)
	r.carried = replay.StillLost(r.carried, &r.head)
	if v.Kind == schema.Skipped && schema.ErasedMark(v.Event) {
		r.marked = true
	}
	reason, tells := v.Reason, replay.ShowsGap(&v)
	if !tells && r.head.Counts.Gaps > gaps {
		reason, tells = schema.ReasonLost, true
	}
	if tells && !accept {
		return &hole{after: after, at: rec.Stream, reason: reason}
	}
	r.doubtful = r.doubtful || tells
	return nil
}

// records reads the log by direct get, or record by record from the leader.
func (rd *reader) records(ctx context.Context, src *shardSource, run string, from schema.StreamSequence, walk bool,
	yield func(schema.Record) error,
) error {
	if !walk {
		return eventlog.Read(ctx, rd.js, src.store.Names, run, from, yield)
	}
	for {
		rec, found, err := eventlog.Next(ctx, rd.js, src.store.Names, run, from)
		if err != nil || !found {
			return err
		}
		if err := yield(rec); err != nil {
			return err
		}
		from = rec.Stream + 1
	}
}

// confirm asks the leader about a hole, and returns how to read on: the events may only be missing from one replica, or
// they were sealed and purged meanwhile, or they are gone.
func (rd *reader) confirm(ctx context.Context, src *shardSource, run string, h *hole, m mode) (mode, error) {
	if !m.walk {
		rec, found, err := eventlog.Next(ctx, rd.js, src.store.Names, run, h.after+1)
		if err != nil {
			return m, err
		}
		if !found || rec.Stream != h.at {
			m.walk = true
			return m, nil
		}
	}
	if !m.fresh {
		// A newer checkpoint may stand behind it, newer segments may hold what is missing.
		m.fresh = true
		return m, nil
	}
	switch err := rd.unmoved(ctx, h.of); {
	case errors.Is(err, errMoved):
		m.scratch = true
		return m, nil
	case err != nil:
		return m, err
	}
	rd.stats.Holes.Add(1)
	rd.log.Error().Str(logkey.Run, run).Uint64("after", uint64(h.after)).Uint64("at", uint64(h.at)).Str(logkey.Reason, string(h.reason)).
		Msg("the leader confirms a hole in the log")
	m.accept = true
	return m, nil
}

// distrust reads the run anew without its checkpoint, whose place in the log is not what it was, and says what the
// checkpoint knew and the log does not.
func (rd *reader) distrust(ctx context.Context, src *shardSource, run string, m mode, cause error) (*reading, error) {
	c, damage := rd.checkpoint(ctx, src, run, true)
	m.scratch, m.accept = true, true
	r, err := rd.fromScratch(ctx, src, run, m)
	if err == nil && damage != nil {
		damage.Instead = "segments and log"
		r.damage = append(r.damage, *damage)
	}
	if err == nil {
		err = rd.unmoved(ctx, r)
	}
	if err != nil || c == nil {
		return r, err
	}
	r.carried = c.Lost
	if errors.Is(cause, errPrefix) {
		return rd.reconcilePrefix(ctx, r, c, m)
	}
	if errors.Is(cause, errAbsent) && r.index.Last.Stream >= c.Position.Stream && r.head.Counts.Events >= c.Counts.Events {
		// The checkpoint is older than what was purged: a power cut can take puts of an asynchronous bucket back. The
		// segments have what is between.
		rd.log.Warn().Str(logkey.Run, run).Uint64(logkey.Position, uint64(c.Position.Stream)).Msg("checkpoint is older than the log's beginning, segments read")
		return r, nil
	}
	rec, found, err := eventlog.Next(ctx, rd.js, src.store.Names, run, c.Position.Stream)
	if err != nil {
		return nil, err
	}
	if found && rec.Stream == c.Position.Stream && schema.PositionOf(&rec).ID == c.Position.ID {
		// The leader has it: only the replica that answered was behind.
		return nil, fmt.Errorf("run %s: a replica does not have the checkpoint's position %d: %w", run, c.Position.Stream, ErrStale)
	}
	rd.stats.Regressions.Add(1)
	rd.log.Error().Err(cause).Str(logkey.Run, run).Uint64(logkey.Position, uint64(c.Position.Stream)).
		Msg("the log went back behind the checkpoint, read anew from its beginning")
	r.noteLost(&c.Head)
	return r, nil
}

// noteLost names the events that a checkpoint had folded and that this reading does not have.
func (r *reading) noteLost(was *schema.Head) {
	r.lost = append(r.lost, replay.LostSince(was, &r.head)...)
}

// reconcilePrefix compares a run read from segments and log with a checkpoint that counted other events in its tail. If
// events are missing before the checkpoint, the checkpoint's head stands: it folded them, as the folder did.
func (rd *reader) reconcilePrefix(ctx context.Context, r *reading, c *schema.Checkpoint, m mode) (*reading, error) {
	m.content, m.scratch = false, false
	short, err := rd.fromCheckpoint(ctx, r.src, r.run, c, m)
	switch {
	case err != nil:
		return nil, err
	case short.logLast != r.logLast:
		return nil, fmt.Errorf("run %s went on from %d to %d: %w", r.run, r.logLast, short.logLast, errMoved)
	case short.head.Digest == r.head.Digest:
		return r, nil
	}
	gaps := r.head.Gaps
	if len(gaps) == 0 && len(r.lost) == 0 {
		gaps = []schema.Gap{{Epoch: c.Epoch, From: 1, To: c.Sequence, At: c.Position}}
	}
	for _, g := range gaps {
		g.Reason = schema.ReasonLost
		r.lost = append(r.lost, g)
	}
	r.head, r.doubtful, r.logLast = short.head, short.doubtful, max(short.logLast, r.logLast)
	return r, nil
}
