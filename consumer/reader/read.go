package reader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxReadTries bounds how often a read starts over because data changed during it.
	maxReadTries = 6
	// checkpointPatience bounds the wait for a checkpoint: without it, segments and log are enough.
	checkpointPatience = 2 * time.Second
)

// Reader reads runs: from a checkpoint of any age and the log after it, or from segments and log alone.
type Reader struct {
	js    jetstream.JetStream
	fleet string
	// keys check the fleet's control events.
	keys  *keyring.Ring
	log   zerolog.Logger
	stats *Stats
	// shard is that of a run.
	shard func(run string) *Source
	bases knownBases
}

// New returns a reader of a fleet's runs. shard returns the source of a run.
func New(js jetstream.JetStream, fleet string, keys *keyring.Ring, shard func(run string) *Source, stats *Stats,
	log zerolog.Logger,
) *Reader {
	return &Reader{js: js, fleet: fleet, keys: keys, shard: shard, stats: stats, log: log}
}

// Source is where the runs of one shard are read.
type Source struct {
	Store   *kvstore.Shard
	Barrier *Barrier
}

// start is the beginning of a read.
type start int

const (
	// anyCheckpoint is the run's checkpoint from any replica.
	anyCheckpoint start = iota
	// leaderCheckpoint is the run's checkpoint from the leader.
	leaderCheckpoint
	// rebuild uses no checkpoint: the run is folded from segments and log.
	rebuild
)

// readOptions control where a read begins and what it trusts. Each disturbance moves it to the next step:
//
//	anyCheckpoint ──▶ leaderCheckpoint ──▶ rebuild
//	log of any replica ──▶ log of the leader ──▶ gaps accepted
type readOptions struct {
	// content: read the events, not only the head.
	content bool
	start   start
	// last is the run's last record, if that is known. A checkpoint at it needs no read of the log, for which the server
	// walks the block behind the record: what other runs wrote since.
	last *schema.Record
	// fromLeader: read the log from the leader, record by record.
	fromLeader bool
	// acceptGaps: the leader confirmed a gap, and the fold records gaps.
	acceptGaps bool
}

// withLeaderCheckpoint uses only a checkpoint from the leader.
func (o readOptions) withLeaderCheckpoint() readOptions {
	o.start = max(o.start, leaderCheckpoint)
	return o
}

// withoutCheckpoint rebuilds the run, and forgets gaps found before.
func (o readOptions) withoutCheckpoint() readOptions {
	o.start, o.acceptGaps = rebuild, false
	return o
}

// read returns the run as the answering servers show it. The leader confirmed its gaps.
func (rd *Reader) read(ctx context.Context, src *Source, run string, o readOptions) (*Snapshot, error) {
	for range maxReadTries {
		r, err := rd.attempt(ctx, src, run, o)
		var gap *gapError
		switch {
		case err == nil:
			return r, nil
		case errors.As(err, &gap):
			if o, err = rd.afterGap(ctx, src, run, o, gap); err != nil {
				return nil, err
			}
		case errors.Is(err, errSealedDuringRead):
			o = o.withoutCheckpoint()
		case errors.Is(err, errPurged), contradictsCheckpoint(err) && o.start == anyCheckpoint:
			o = o.withLeaderCheckpoint()
		case contradictsCheckpoint(err):
			if r, err = rd.rebuildAgainst(ctx, src, run, o, err); !errors.Is(err, errSealedDuringRead) {
				return r, err
			}
		default:
			return nil, err
		}
	}
	return nil, fmt.Errorf("run %s: the log changed during %d reads: %w", run, maxReadTries, eventlog.ErrStale)
}

// contradictsCheckpoint reports whether the log does not match the checkpoint.
func contradictsCheckpoint(err error) bool {
	return errors.Is(err, errAbsent) || errors.Is(err, errOtherThere) || errors.Is(err, errPrefix)
}

// checkPurges ensures that no event of the run was purged during the read. The log is read in pieces, and a piece may
// begin after events that were sealed and purged since the piece before. A gap in sequences reveals most of these;
// control events, and the events of plain executors, have no sequence.
func (rd *Reader) checkPurges(ctx context.Context, r *Snapshot, o readOptions) error {
	switch {
	case o.acceptGaps, r.rebuilt && !r.Empty():
		return rd.unmoved(ctx, r)
	case r.rebuilt || r.logFirst == r.LogLast:
		return nil // there is nothing in between
	}
	// A purge removes a run's events from the first on: while the first exists, so do the others.
	rec, found, err := eventlog.Next(ctx, rd.js, r.Source.Store.Names, r.Run, r.logFirst)
	switch {
	case err != nil:
		return err
	case !found || rec.Stream != r.logFirst:
		return fmt.Errorf("run %s: the event at %d: %w", r.Run, r.logFirst, errPurged)
	default:
		return nil
	}
}

// unmoved ensures that events missing from a snapshot were not sealed and purged during the read: then there would be
// segments that it does not know. Only after that may events be reported as lost.
func (rd *Reader) unmoved(ctx context.Context, r *Snapshot) error {
	if r.unusable {
		return nil // it has them for another reason
	}
	_, err := r.Source.Store.Segments.GetFresh(ctx, r.Run, r.Segments.Count+1)
	switch {
	case err == nil:
		return errSealedDuringRead
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrStreamMissing):
		return nil
	default:
		return err
	}
}

// attempt reads once, and ensures that nothing was purged during the read.
func (rd *Reader) attempt(ctx context.Context, src *Source, run string, o readOptions) (*Snapshot, error) {
	var r *Snapshot
	var err error
	if o.start == rebuild {
		r, err = rd.rebuilt(ctx, src, run, o)
	} else {
		r, err = rd.continued(ctx, src, run, o)
	}
	if err != nil {
		return nil, err
	}
	return r, rd.checkPurges(ctx, r, o)
}

// rebuilt reads from segments and log. The checkpoint only shows which events were missing before it.
func (rd *Reader) rebuilt(ctx context.Context, src *Source, run string, o readOptions) (*Snapshot, error) {
	r, err := rd.fromSegments(ctx, src, run, o)
	if err != nil {
		return nil, err
	}
	if c, _ := rd.checkpoint(ctx, src, run, leaderCheckpoint); c != nil {
		r.carried = c.Lost
	}
	return r, nil
}

// continued reads from the checkpoint and the log after it, or from segments and log without a usable checkpoint.
func (rd *Reader) continued(ctx context.Context, src *Source, run string, o readOptions) (*Snapshot, error) {
	c, damage := rd.checkpoint(ctx, src, run, o.start)
	read := func() (*Snapshot, error) { return rd.fromSegments(ctx, src, run, o) }
	if c != nil {
		read = func() (*Snapshot, error) { return rd.fromCheckpoint(ctx, src, run, c, o) }
	}
	r, err := read()
	if err == nil && damage != nil {
		r.Damage = append(r.Damage, *damage)
	}
	return r, err
}

// checkpoint returns the run's checkpoint, and nil if there is no usable one. That is never an error: it only costs
// time. Unreadable checkpoints are logged.
func (rd *Reader) checkpoint(ctx context.Context, src *Source, run string, from start) (*schema.Checkpoint, *schema.Damage) {
	ctx, cancel := context.WithTimeout(ctx, checkpointPatience)
	defer cancel()
	get := src.Store.Checkpoints.Get
	if from != anyCheckpoint {
		get = src.Store.Checkpoints.GetFresh
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
		said := rd.log.Error().Err(err).Str(logkey.Run, run)
		if errors.Is(err, schema.ErrFormat) {
			said.Msg("checkpoint is of a newer version: upgrade this daemon")
		} else {
			said.Msg("checkpoint is corrupt")
		}
		return nil, damage
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		rd.log.Warn().Err(err).Str(logkey.Run, run).Msg("checkpoint cannot be used, reading segments and log")
	}
	return nil, nil
}

// fromCheckpoint folds the log from the checkpoint's position on, which must still be there.
func (rd *Reader) fromCheckpoint(ctx context.Context, src *Source, run string, c *schema.Checkpoint, o readOptions) (*Snapshot, error) {
	r := &Snapshot{Source: src, Run: run, Head: c.Head, Segments: c.Segments, carried: c.Lost}
	at, sealed := c.Position, c.Segments.Last.Stream
	if c.Status == schema.StatusErased {
		o.content = false // there is none, and the rest of the log is being removed
	}
	r.tail.from = at.Stream
	if o.content {
		if sealed > at.Stream {
			// Sequences were used again after damage: the position does not distinguish tail and sealed part.
			return nil, errPrefix
		}
		r.tail.from = min(at.Stream, sealed+1)
	} else {
		r.tail.events, r.tail.bytes = c.TailEvents, c.TailBytes
	}
	var prefix tailbuffer
	seen := false
	take := func(rec schema.Record) error {
		if r.logFirst == 0 {
			r.logFirst = rec.Stream
		}
		r.LogLast = rec.Stream
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
			if err := rd.fold(ctx, r, &rec, o.acceptGaps); err != nil {
				return err
			}
			r.tail.add(&rec, o.content)
			return nil
		}
		if o.content && rec.Stream > sealed {
			prefix.add(&rec, false)
			r.tail.add(&rec, true)
		}
		return nil
	}
	var err error
	if o.last != nil && !o.content && !o.fromLeader && schema.PositionOf(o.last) == at {
		err = take(*o.last)
	} else {
		err = rd.records(ctx, src, run, r.tail.from, o.fromLeader, take)
	}
	switch {
	case err != nil:
		return nil, r.placed(err)
	case !seen:
		return nil, errAbsent
	case o.content && (prefix.events != c.TailEvents || prefix.bytes != c.TailBytes):
		return nil, errPrefix
	}
	return r, nil
}

// fold applies a record. A gap is an error unless gaps are accepted.
func (rd *Reader) fold(ctx context.Context, r *Snapshot, rec *schema.Record, acceptGaps bool) error {
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return err
	}
	after := r.Head.Position.Stream
	gaps := r.Head.Counts.Gaps
	v := r.Head.Apply(keys, rec)
	r.carried = replay.StillLost(r.carried, &r.Head)
	reason, tells := v.Reason, replay.ShowsGap(&v)
	if !tells && r.Head.Counts.Gaps > gaps {
		reason, tells = schema.ReasonLost, true
	}
	if tells && !acceptGaps {
		return &gapError{after: after, at: rec.Stream, reason: reason}
	}
	r.Doubtful = r.Doubtful || tells
	return nil
}

// records reads the log by direct get, or record by record from the leader.
func (rd *Reader) records(ctx context.Context, src *Source, run string, from schema.StreamSequence, fromLeader bool,
	yield func(schema.Record) error,
) error {
	if !fromLeader {
		return eventlog.Read(ctx, rd.js, src.Store.Names, run, from, yield)
	}
	for {
		rec, found, err := eventlog.Next(ctx, rd.js, src.Store.Names, run, from)
		if err != nil || !found {
			return err
		}
		if err := yield(rec); err != nil {
			return err
		}
		from = rec.Stream + 1
	}
}

// afterGap asks the leader about a gap, and returns how to read on: only one replica may lack the events, or they
// were sealed and purged during the read, or they are gone.
func (rd *Reader) afterGap(ctx context.Context, src *Source, run string, o readOptions, gap *gapError) (readOptions, error) {
	if !o.fromLeader {
		rec, found, err := eventlog.Next(ctx, rd.js, src.Store.Names, run, gap.after+1)
		if err != nil {
			return o, err
		}
		if !found || rec.Stream != gap.at {
			o.fromLeader = true
			return o, nil
		}
	}
	if o.start == anyCheckpoint {
		// There may be a newer checkpoint after the gap, or newer segments with the missing events.
		return o.withLeaderCheckpoint(), nil
	}
	switch err := rd.unmoved(ctx, gap.snapshot); {
	case errors.Is(err, errSealedDuringRead):
		return o.withoutCheckpoint(), nil
	case err != nil:
		return o, err
	}
	rd.stats.Holes.Add(1)
	rd.log.Error().Str(logkey.Run, run).Uint64("after", uint64(gap.after)).Uint64("at", uint64(gap.at)).Str(logkey.Reason, string(gap.reason)).
		Msg("the leader confirms a gap in the log")
	o.acceptGaps = true
	return o, nil
}

// rebuildAgainst reads the run without a checkpoint that contradicts the log, and records the events that only the
// checkpoint has.
func (rd *Reader) rebuildAgainst(ctx context.Context, src *Source, run string, o readOptions, cause error) (*Snapshot, error) {
	c, damage := rd.checkpoint(ctx, src, run, leaderCheckpoint)
	o.acceptGaps = true
	r, err := rd.fromSegments(ctx, src, run, o)
	if err == nil && damage != nil {
		r.Damage = append(r.Damage, *damage)
	}
	if err == nil {
		err = rd.unmoved(ctx, r)
	}
	if err != nil || c == nil {
		return r, err
	}
	r.carried = c.Lost
	if errors.Is(cause, errPrefix) {
		return rd.reconcilePrefix(ctx, r, c, o)
	}
	if errors.Is(cause, errAbsent) && r.Segments.Last.Stream >= c.Position.Stream && r.Head.Counts.Events >= c.Counts.Events {
		// The checkpoint is older than the purge: a power cut can undo puts of an asynchronous bucket. The segments
		// have the events in between.
		rd.log.Warn().Str(logkey.Run, run).Uint64(logkey.Position, uint64(c.Position.Stream)).Msg("checkpoint is older than the log's beginning, segments read")
		return r, nil
	}
	rec, found, err := eventlog.Next(ctx, rd.js, src.Store.Names, run, c.Position.Stream)
	if err != nil {
		return nil, err
	}
	if found && rec.Stream == c.Position.Stream && schema.PositionOf(&rec).ID == c.Position.ID {
		// The leader has it: only the answering replica lags.
		return nil, fmt.Errorf("run %s: a replica does not have the checkpoint's position %d: %w", run, c.Position.Stream, eventlog.ErrStale)
	}
	rd.stats.Regressions.Add(1)
	rd.log.Error().Err(cause).Str(logkey.Run, run).Uint64(logkey.Position, uint64(c.Position.Stream)).
		Msg("the log went back behind the checkpoint, read again from its beginning")
	r.noteLost(&c.Head)
	return r, nil
}

// reconcilePrefix compares a run read from segments and log with a checkpoint that counted other events in its tail.
// If events are missing before the checkpoint, the checkpoint's head is used: it includes them, as the fold worker
// had folded them.
func (rd *Reader) reconcilePrefix(ctx context.Context, r *Snapshot, c *schema.Checkpoint, o readOptions) (*Snapshot, error) {
	o.content = false
	short, err := rd.fromCheckpoint(ctx, r.Source, r.Run, c, o)
	switch {
	case err != nil:
		return nil, err
	case short.LogLast != r.LogLast:
		return nil, fmt.Errorf("run %s grew from %d to %d: %w", r.Run, r.LogLast, short.LogLast, errSealedDuringRead)
	case short.Head.Digest == r.Head.Digest:
		return r, nil
	}
	gaps := r.Head.Gaps
	if len(gaps) == 0 && len(r.Lost) == 0 {
		gaps = []schema.Gap{{Epoch: c.Epoch, From: 1, To: c.Sequence, At: c.Position}}
	}
	for _, g := range gaps {
		g.Reason = schema.ReasonLost
		r.Lost = append(r.Lost, g)
	}
	r.Head, r.Doubtful, r.LogLast = short.Head, short.Doubtful, max(short.LogLast, r.LogLast)
	return r, nil
}
