package fold

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/consumer/purge"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// sealer makes segments from the tails of runs, for several runs at once.
type sealer struct {
	shard  *kvstore.Shard
	js     jetstream.JetStream
	names  schema.Names
	purger *purge.Purger
	stats  *Stats
	log    zerolog.Logger
	// refold folds a run again from its segments and the log, up to the record before stream until.
	refold func(ctx context.Context, r *run, until schema.StreamSequence) error
}

// seal turns the cut part of a run's tail into segments. A full or failing bucket stops sealing, never folding: the
// cuts stay and are tried again with the next batch.
func (x *sealer) seal(ctx context.Context, r *run) error {
	if len(r.cuts) == 0 {
		return nil
	}
	err := x.sealCuts(ctx, r)
	if errors.Is(err, errTailChanged) {
		// Another worker may have sealed it, and the purger purged it.
		switch beyond, berr := x.sealedBeyond(ctx, r.id, r.segments.Count); {
		case berr != nil:
			return fmt.Errorf("run %s: %w", r.id, berr)
		case beyond:
			err = errRecut
		}
	}
	if errors.Is(err, errRecut) {
		// Folding again finds the cuts after it, and includes it.
		if err := x.refold(ctx, r, r.head.Position.Stream+1); err != nil {
			return fmt.Errorf("run %s: fold again to adopt a segment: %w", r.id, err)
		}
		err = x.sealCuts(ctx, r)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errSuperseded):
		return err
	case errors.Is(err, errTailChanged):
		return fmt.Errorf("%w: run %s: %w", errRegressed, r.id, err)
	}
	x.stats.SealsRefused.Add(1)
	x.log.Warn().Err(err).Str(logkey.Run, r.id).Msg("tail not sealed, it stays in the log")
	return nil
}

// errTailChanged says that the log does not have the events that were folded from it.
var errTailChanged = errors.New("the log's tail is not what was folded")

// sealCuts stores a segment for each cut.
func (x *sealer) sealCuts(ctx context.Context, r *run) error {
	for len(r.cuts) > 0 {
		k := &r.cuts[0]
		if !k.frames.kept() {
			if err := x.sealFromLog(ctx, r); err != nil {
				return err
			}
			continue
		}
		if err := x.storeSegment(ctx, r, k.first, k, k.frames.parts...); err != nil {
			return err
		}
		k.frames.drop()
		r.cuts = r.cuts[1:]
	}
	r.cuts = nil
	return nil
}

// sealFromLog reads the part of the tail that is not in memory from the log, and stores a segment for each cut up to
// one whose frames are in memory.
func (x *sealer) sealFromLog(ctx context.Context, r *run) error {
	var raw []byte
	var first schema.Position
	events := int64(0)
	err := eventlog.Read(ctx, x.js, x.names, r.id, r.segments.Last.Stream+1, func(rec schema.Record) error {
		if events == 0 {
			first = schema.PositionOf(&rec)
		}
		events++
		raw = schema.AppendFrame(raw, &rec)
		k := &r.cuts[0]
		if rec.Stream < k.last.Stream {
			return nil
		}
		if at := schema.PositionOf(&rec); at != k.last || events != k.events {
			return fmt.Errorf("%w: %d events up to %s at %d, folded %d up to %s at %d",
				errTailChanged, events, at.ID, at.Stream, k.events, k.last.ID, k.last.Stream)
		}
		if err := x.storeSegment(ctx, r, first, k, raw); err != nil {
			return err
		}
		x.stats.SealedFromLog.Add(1)
		r.cuts = r.cuts[1:]
		raw, events = raw[:0], 0
		if len(r.cuts) == 0 || r.cuts[0].frames.kept() {
			return eventlog.ErrStop
		}
		return nil
	})
	switch {
	case errors.Is(err, eventlog.ErrStop):
		return nil
	case err != nil:
		return err
	}
	// The answering replica lags, or the end of the log is gone; the reconciler finds out.
	return fmt.Errorf("the log ends before the cut at %d", r.cuts[0].last.Stream)
}

// sealedBeyond reports whether a run has more than n segments: then its known state is older than what may be purged.
func (x *sealer) sealedBeyond(ctx context.Context, run string, n int) (bool, error) {
	_, err := x.shard.Segments.GetFresh(ctx, run, n+1)
	if errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// storeSegment stores one segment and counts it.
func (x *sealer) storeSegment(ctx context.Context, r *run, first schema.Position, k *cut, frames ...[]byte) error {
	info := schema.SegmentInfo{
		Fleet: x.names.Fleet, Run: r.id, Number: r.segments.Count + 1, Events: int(k.events), First: first, Last: k.last,
		DigestBefore: r.segments.Digest, DigestAfter: k.head.Digest,
	}
	stored, err := schema.EncodeSegment(info, &k.head, frames...)
	if err != nil {
		return err
	}
	if r.refolded {
		if err := x.keepsNext(ctx, r.id, info.Number+1, info.DigestAfter); err != nil {
			return err
		}
	}
	if err := x.purger.Sealing(ctx, r.id, first.Stream, k.last.Stream, k.bytes); err != nil {
		return supersededOr(err)
	}
	err = x.createSegment(ctx, r, info, stored)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterSegmentPut)
	}
	if err != nil {
		return fmt.Errorf("segment %d of run %s: %w", info.Number, r.id, err)
	}
	r.segments = replay.Count(r.segments, &info, len(stored))
	r.dirty = true
	x.stats.Segments.Add(1)
	x.stats.SegmentBytes.Add(int64(len(stored)))
	x.log.Debug().Str(logkey.Run, r.id).Int(logkey.Segment, info.Number).Int("bytes", len(stored)).Msg("sealed")
	return nil
}

// createSegment stores a segment, or adopts an existing one.
func (x *sealer) createSegment(ctx context.Context, r *run, info schema.SegmentInfo, stored []byte) error {
	if err := failpoint.Hit(ctx, failpoint.BeforeSegmentPut); err != nil {
		return err
	}
	err := x.shard.Segments.Create(ctx, r.id, info.Number, stored)
	if errors.Is(err, kvstore.ErrExists) {
		return x.adopt(ctx, r, info, stored)
	}
	return err
}

// errRecut says that another range is sealed already.
var errRecut = errors.New("another range is sealed already")

// adopt handles a segment that no checkpoint counts yet, or that another worker counted in the meantime. A segment
// that continues the run is used unchanged, whatever its range: it may be counted, and its events may be purged. Only
// an unusable segment is replaced by the log's events; a readable one that does not continue the run, only while the
// log has all of it. The replacement names the examined revision: a paused worker must not replace a segment that its
// successor has put and counted, and after which it purged the log.
func (x *sealer) adopt(ctx context.Context, r *run, want schema.SegmentInfo, stored []byte) error {
	existing, rev, err := x.shard.Segments.Examine(ctx, r.id, want.Number)
	if err != nil {
		return err
	}
	if bytes.Equal(existing, stored) {
		return nil
	}
	info, err := schema.DecodeSegmentInfo(existing)
	if err == nil {
		err = replay.Continues(&info, r.id, want.Number, want.DigestBefore)
	}
	if err == nil {
		if info.Last.Stream > r.head.Position.Stream {
			return fmt.Errorf("segment %d is there already, up to %d, which was not folded yet", want.Number, info.Last.Stream)
		}
		x.log.Info().Str(logkey.Run, r.id).Int(logkey.Segment, want.Number).Msg("uncounted segment of another range adopted")
		return errRecut
	}
	if kept := x.stillInLog(ctx, r.id, want.Number, existing); kept != nil {
		return kept
	}
	x.log.Warn().Err(err).Str(logkey.Run, r.id).Int(logkey.Segment, want.Number).Msg("replacing a segment that cannot be used")
	return lost(x.shard.Segments.Replace(ctx, r.id, want.Number, stored, rev))
}

// errOnlyCopy says that a segment after a damaged or lost one has events that the log no longer has.
var errOnlyCopy = errors.New("the segment has events that the log no longer has, and one before it is damaged or lost: restore that from a backup")

// keepsNext refuses to store a segment of a run that was folded again if the next one already exists and continues
// another: the one in between was lost, and the next may be the only copy of its events.
func (x *sealer) keepsNext(ctx context.Context, run string, next int, digest string) error {
	stored, err := x.shard.Segments.GetFresh(ctx, run, next)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if info, err := schema.DecodeSegmentInfo(stored); err == nil && replay.Continues(&info, run, next, digest) == nil {
		return nil
	}
	return x.stillInLog(ctx, run, next, stored)
}

// stillInLog returns [errOnlyCopy] if a readable segment of a run has an event that the log does not have unchanged.
// A damaged segment has nothing to lose.
func (x *sealer) stillInLog(ctx context.Context, run string, number int, stored []byte) error {
	info, frames, err := schema.DecodeSegment(stored)
	if err != nil || info.Fleet != x.names.Fleet || info.Run != run || info.Number != number {
		return nil //nolint:nilerr // it cannot be used
	}
	sums := make(map[schema.StreamSequence]replay.Sum, info.Events)
	var scratch []byte
	last := schema.StreamSequence(0)
	if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		sums[rec.Stream], scratch = replay.SumOf(scratch, &rec)
		last = max(last, rec.Stream)
		return true
	}); err != nil {
		return nil //nolint:nilerr // it cannot be used
	}
	err = eventlog.Read(ctx, x.js, x.names, run, info.First.Stream, func(rec schema.Record) error {
		if rec.Stream > last {
			return eventlog.ErrStop
		}
		var got replay.Sum
		if got, scratch = replay.SumOf(scratch, &rec); sums[rec.Stream] == got {
			delete(sums, rec.Stream)
		}
		return nil
	})
	if err != nil && !errors.Is(err, eventlog.ErrStop) {
		return err
	}
	if len(sums) > 0 {
		return fmt.Errorf("segment %d: %w", number, errOnlyCopy)
	}
	return nil
}

// refold makes a run's head again from its segments and the log, up to the record before stream until, if its
// checkpoint is missing, corrupt or of another log.
func (s *term) refold(ctx context.Context, r *run, until schema.StreamSequence) error {
	s.stats.Rebuilds.Add(1)
	fresh := &run{id: r.id, head: schema.NewHead(s.cfg.Fleet, r.id), revision: r.revision, live: r.live, liveRev: r.liveRev, index: r.index, quarantined: r.quarantined, dirty: true, touched: r.touched, refolded: true}
	fresh.tail.room = r.tail.room
	fresh.sealed = make(map[schema.StreamSequence]string)
	keys, err := s.keys.Keys(ctx)
	if err != nil {
		return err
	}
	fresh.segments, err = replay.Segments(ctx, keys, s.shard.Segments.GetFresh, &fresh.head, &fresh.overview, r.id,
		func(rec *schema.Record) { fresh.sealed[rec.Stream] = schema.PositionOf(rec).ID },
		func(n int, err error) {
			// It is refused: recovery reports what is missing, and the log may still have the range.
			s.log.Error().Err(err).Str(logkey.Run, r.id).Int(logkey.Segment, n).Msg("segment cannot be used")
		})
	if err != nil {
		return err
	}
	// The segments have the end of such a gap.
	fresh.lost = slices.DeleteFunc(slices.Clone(r.lost), func(g schema.Gap) bool {
		return g.At.Stream <= fresh.segments.Last.Stream && fresh.sealed[g.At.Stream] == g.At.ID
	})
	if err := s.refoldLog(ctx, fresh, until); err != nil {
		return err
	}
	for at := range fresh.sealed {
		if at < s.passed { // not until, which may be ahead of the reader
			delete(fresh.sealed, at)
		}
	}
	r.forget()
	*r = *fresh
	if r.head.Status == schema.StatusErased {
		s.remover.Add(r.id)
	}
	return nil
}

// refoldLog folds a run's log before stream until. Any server may answer, and it may lag; the leader confirms the
// end, because a gap here would be folded into the checkpoint.
func (s *term) refoldLog(ctx context.Context, fresh *run, until schema.StreamSequence) error {
	from := schema.StreamSequence(1)
	for {
		next, found, err := eventlog.Next(ctx, s.js, s.names, fresh.id, from)
		if err != nil {
			return err
		}
		if !found || next.Stream >= until {
			return nil
		}
		if err := s.observe(ctx, fresh, &next); err != nil {
			return err
		}
		from = next.Stream + 1
		err = eventlog.Read(ctx, s.js, s.names, fresh.id, from, func(rec schema.Record) error {
			if rec.Stream >= until {
				return eventlog.ErrStop
			}
			from = rec.Stream + 1
			return s.observe(ctx, fresh, &rec)
		})
		if err != nil && !errors.Is(err, eventlog.ErrStop) {
			return err
		}
	}
}

// sealPressed seals the largest tails in memory that are worth a segment, for a number of bytes. They are purged
// next.
func (s *term) sealPressed(ctx context.Context, need int64) error {
	var tails []*run
	s.cache.each(func(r *run) bool {
		if r.tailBytes >= s.cfg.IdleSealBytes || len(r.cuts) > 0 {
			tails = append(tails, r)
		}
		return true
	})
	slices.SortFunc(tails, func(a, b *run) int { return cmp.Compare(b.tailBytes, a.tailBytes) })
	sealed := make(map[string]*run)
	for _, r := range tails {
		if need <= 0 || len(sealed) == s.cfg.BatchEvents {
			break
		}
		need -= r.tailBytes
		r.cut()
		if err := s.sealer.seal(ctx, r); err != nil {
			return err
		}
		if len(r.cuts) > 0 {
			break // the bucket is full or fails, so the other tails would be refused, too
		}
		sealed[r.id] = r
	}
	if len(sealed) == 0 {
		return nil // the purger presses again in its time
	}
	if err := s.store(ctx, sealed); err != nil {
		return err
	}
	s.purger.Counted()
	return nil
}
