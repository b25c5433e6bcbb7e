package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fromScratch folds the run from its segments and the log behind them. Segments nobody counted yet are taken too: they
// hold what may be purged from the log already.
func (rd *reader) fromScratch(ctx context.Context, src *shardSource, run string, m mode) (*reading, error) {
	r := &reading{src: src, run: run, head: schema.NewHead(rd.fleet, run), scratch: true}
	// Segments whose bucket is lost are no segments: the log may still have everything, and says so if not.
	get := func(ctx context.Context, run string, n int) ([]byte, error) {
		stored, err := src.store.Segments.Get(ctx, run, n)
		if errors.Is(err, kvstore.ErrStreamMissing) {
			err = kvstore.ErrNotFound
		}
		return stored, err
	}
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	r.index, err = foldSegments(ctx, keys, get, &r.head, run, nil, func(n int, err error) {
		// The log may still hold its events; if not, the hole is found there and named.
		r.unusable = true
		rd.stats.CorruptSegments.Add(1)
		rd.log.Error().Err(err).Str(keyRun, run).Int(keySegment, n).Msg("segment cannot be used")
	})
	if err != nil {
		return nil, err
	}
	err = rd.foldLog(ctx, r, m)
	if errors.Is(err, errOtherThere) {
		rd.stats.Regressions.Add(1)
		rd.log.Error().Str(keyRun, run).Uint64(keyPosition, uint64(r.index.Last.Stream)).
			Msg("the log went back behind the last segment, read from its beginning")
		err = rd.foldRegressedLog(ctx, r, m)
	}
	if err != nil {
		return nil, r.placed(err)
	}
	if !r.empty() {
		rd.stats.FoldsFromScratch.Add(1)
	}
	return r, nil
}

// foldSegments folds every segment that continues the run onto a head, and stops at the first that does not: bad is told
// of one that is there and cannot be used. each, if not nil, sees every record; of a segment that turns out bad, too.
func foldSegments(ctx context.Context, keys *schema.Keys, get func(ctx context.Context, run string, n int) ([]byte, error), head *schema.Head, run string,
	each func(*schema.Record), bad func(n int, err error),
) (schema.SegmentIndex, error) {
	var index schema.SegmentIndex
	for n := 1; ; n++ {
		stored, err := get(ctx, run, n)
		if errors.Is(err, kvstore.ErrNotFound) {
			return index, nil
		}
		if err != nil {
			return index, fmt.Errorf("fold segment %d of run %s: %w", n, run, err)
		}
		before := head.Clone()
		info, err := foldSegment(keys, head, run, n, stored, each)
		if err != nil {
			*head = before
			bad(n, err)
			return index, nil
		}
		index = schema.SegmentIndex{
			Count: n, Bytes: index.Bytes + int64(len(stored)), Events: index.Events + int64(info.Events),
			Last: info.Last, Digest: head.Digest,
		}
	}
}

// foldSegment folds one segment onto a head, which is of no use after an error. each, if not nil, sees every record.
func foldSegment(keys *schema.Keys, head *schema.Head, run string, n int, stored []byte, each func(*schema.Record)) (schema.SegmentInfo, error) {
	info, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		return info, err
	}
	if err := continues(&info, run, n, head.Digest); err != nil {
		return info, err
	}
	if info.First.Stream <= head.Position.Stream {
		head.Position = schema.Position{} // sequences that damage freed were used again
	}
	if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		head.Apply(keys, &rec)
		if each != nil {
			each(&rec)
		}
		return true
	}); err != nil {
		return info, err
	}
	if head.Digest != info.DigestAfter {
		return info, fmt.Errorf("folds to digest %.16s…, described as %.16s…: %w", head.Digest, info.DigestAfter, schema.ErrCorrupt)
	}
	return info, nil
}

// continues checks that a segment is the run's and follows from the digest before it.
func continues(info *schema.SegmentInfo, run string, n int, digest string) error {
	if info.Run != run || info.Number != n {
		return fmt.Errorf("it is segment %d of run %.64s: %w", info.Number, info.Run, schema.ErrCorrupt)
	}
	if info.DigestBefore != digest {
		return fmt.Errorf("follows digest %.16s…, the run is at %.16s…: %w", info.DigestBefore, digest, schema.ErrCorrupt)
	}
	return nil
}

// foldLog folds the log behind the last segment. errOtherThere says that the log went back.
func (rd *reader) foldLog(ctx context.Context, r *reading, m mode) error {
	sealed := r.index.Last
	r.tail.from = sealed.Stream + 1
	err := rd.records(ctx, r.src, r.run, max(sealed.Stream, 1), m.walk, func(rec schema.Record) error {
		r.logLast = rec.Stream
		if rec.Stream == sealed.Stream {
			if schema.PositionOf(&rec).ID != sealed.ID {
				return errOtherThere
			}
			return nil
		}
		if err := rd.fold(ctx, r, &rec, m.accept); err != nil {
			return err
		}
		r.tail.add(&rec, m.content)
		return nil
	})
	if err != nil || r.logLast != 0 || r.index.Count == 0 {
		return err
	}
	// Nothing at or behind the last sealed event, which as the run's last would have stayed: either this replica is
	// behind, or the log went back, or it was purged by hand.
	last, found, err := runlog.Last(ctx, rd.js, r.src.store.Names, r.run)
	switch {
	case err != nil:
		return err
	case !found:
		// Purged by hand. What was sealed is whole; what else there was, only a checkpoint can tell.
		return nil
	case last.Stream < sealed.Stream:
		return errOtherThere
	default:
		return fmt.Errorf("run %s: a replica has nothing from %d on, the leader has %d: %w", r.run, sealed.Stream, last.Stream, ErrStale)
	}
}

// foldRegressedLog folds a log that begins again below what was sealed. What the segments hold already is told by epoch
// and sequence; the rest is judged by the fold as it comes.
func (rd *reader) foldRegressedLog(ctx context.Context, r *reading, m mode) error {
	r.head.Position = schema.Position{}
	r.logLast = 0
	r.tail = tail{from: 1, dropped: true}
	epoch, sequence := r.head.Epoch, r.head.Sequence
	r.index.Last.Stream = 0
	return rd.records(ctx, r.src, r.run, 1, m.walk, func(rec schema.Record) error {
		r.logLast = rec.Stream
		e, err := schema.Decode(rec.Header, rec.Body)
		if err == nil && e.Sequence != 0 && (e.Epoch < epoch || e.Epoch == epoch && e.Sequence <= sequence) {
			r.head.Position = schema.Position{Stream: rec.Stream, ID: e.ID}
			r.tail.add(&rec, false)
			return nil
		}
		if err := rd.fold(ctx, r, &rec, true); err != nil {
			return err
		}
		r.tail.add(&rec, false)
		return nil
	})
}
