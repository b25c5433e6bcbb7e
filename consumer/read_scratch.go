package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/eventlog"
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
	r.index, err = replay.Segments(ctx, keys, get, &r.head, run, nil, func(n int, err error) {
		// The log may still hold its events; if not, the hole is found there and named.
		r.unusable = true
		rd.stats.CorruptSegments.Add(1)
		rd.log.Error().Err(err).Str(logkey.Run, run).Int(logkey.Segment, n).Msg("segment cannot be used")
	})
	if err != nil {
		return nil, err
	}
	err = rd.foldLog(ctx, r, m)
	if errors.Is(err, errOtherThere) {
		rd.stats.Regressions.Add(1)
		rd.log.Error().Str(logkey.Run, run).Uint64(logkey.Position, uint64(r.index.Last.Stream)).
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
	last, found, err := eventlog.Last(ctx, rd.js, r.src.store.Names, r.run)
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
