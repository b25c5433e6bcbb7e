package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fromSegments folds the run from its segments and the log after them. Segments that no checkpoint counts yet are
// used too: their events may already be purged.
func (rd *Reader) fromSegments(ctx context.Context, src *Source, run string, o readOptions) (*Snapshot, error) {
	r := &Snapshot{Source: src, Run: run, Head: schema.NewHead(rd.fleet, run), rebuilt: true}
	// A lost bucket counts as no segments: the log may still have everything, and shows it if not.
	get := func(ctx context.Context, run string, n int) ([]byte, error) {
		stored, err := src.Store.Segments.Get(ctx, run, n)
		if errors.Is(err, kvstore.ErrStreamMissing) {
			err = kvstore.ErrNotFound
		}
		return stored, err
	}
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	r.Segments, err = replay.Segments(ctx, keys, get, &r.Head, nil, run, nil, func(n int, err error) {
		// The log may still have its events; if not, the gap is found and reported there.
		r.unusable = true
		rd.stats.CorruptSegments.Add(1)
		rd.log.Error().Err(err).Str(logkey.Run, run).Int(logkey.Segment, n).Msg("segment cannot be used")
	})
	if err != nil {
		return nil, err
	}
	err = rd.foldLog(ctx, r, o)
	if errors.Is(err, errOtherThere) {
		rd.stats.Regressions.Add(1)
		rd.log.Error().Str(logkey.Run, run).Uint64(logkey.Position, uint64(r.Segments.Last.Stream)).
			Msg("the log went back behind the last segment, read from its beginning")
		err = rd.foldRegressedLog(ctx, r, o)
	}
	if err != nil {
		return nil, r.placed(err)
	}
	if !r.Empty() {
		rd.stats.FoldsFromScratch.Add(1)
	}
	return r, nil
}

// foldLog folds the log after the last segment. errOtherThere says that the log went back.
func (rd *Reader) foldLog(ctx context.Context, r *Snapshot, o readOptions) error {
	sealed := r.Segments.Last
	r.tail.from = sealed.Stream + 1
	err := rd.records(ctx, r.Source, r.Run, max(sealed.Stream, 1), o.fromLeader, func(rec schema.Record) error {
		r.LogLast = rec.Stream
		if rec.Stream == sealed.Stream {
			if schema.PositionOf(&rec).ID != sealed.ID {
				return errOtherThere
			}
			return nil
		}
		if err := rd.fold(ctx, r, &rec, o.acceptGaps); err != nil {
			return err
		}
		r.tail.add(&rec, o.content)
		return nil
	})
	if err != nil || r.LogLast != 0 || r.Segments.Count == 0 {
		return err
	}
	// There is no event at or after the last sealed one, which as the run's last would have stayed: either this
	// replica lags, or the log went back, or it was purged by hand.
	last, found, err := eventlog.Last(ctx, rd.js, r.Source.Store.Names, r.Run)
	switch {
	case err != nil:
		return err
	case !found:
		// Purged by hand. The sealed events are complete; only a checkpoint can show what else there was.
		return nil
	case last.Stream < sealed.Stream:
		return errOtherThere
	default:
		return fmt.Errorf("run %s: a replica has nothing from %d on, the leader has %d: %w", r.Run, sealed.Stream, last.Stream, eventlog.ErrStale)
	}
}

// foldRegressedLog folds a log that begins again below the sealed position. Epoch and sequence identify the events
// that the segments already have; the fold judges the others.
func (rd *Reader) foldRegressedLog(ctx context.Context, r *Snapshot, o readOptions) error {
	r.Head.Position = schema.Position{}
	r.LogLast = 0
	r.tail = tailbuffer{from: 1, dropped: true}
	epoch, sequence := r.Head.Epoch, r.Head.Sequence
	r.Segments.Last.Stream = 0
	return rd.records(ctx, r.Source, r.Run, 1, o.fromLeader, func(rec schema.Record) error {
		r.LogLast = rec.Stream
		e, err := schema.Decode(rec.Header, rec.Body)
		if err == nil && e.Sequence != 0 && (e.Epoch < epoch || e.Epoch == epoch && e.Sequence <= sequence) {
			r.Head.Position = schema.Position{Stream: rec.Stream, ID: e.ID}
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
