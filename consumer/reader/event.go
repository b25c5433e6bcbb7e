package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// frames returns a segment's description, and its records.
func (rd *Reader) frames(ctx context.Context, r *Snapshot, n int) (schema.SegmentInfo, []byte, error) {
	stored, err := r.Source.Store.Segments.GetFresh(ctx, r.Run, n)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return schema.SegmentInfo{}, nil, rd.segmentGone(n, r, err)
	case err != nil:
		return schema.SegmentInfo{}, nil, fmt.Errorf("segment %d of run %s: %w", n, r.Run, err)
	}
	info, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		return schema.SegmentInfo{}, nil, rd.segmentGone(n, r, err)
	}
	return info, frames, nil
}

// eventAt returns the run's event at a position from its head, without an id whichever event is there: from the log, or
// from the segment into which it was sealed since. It reports false if neither has it.
func (rd *Reader) eventAt(ctx context.Context, r *Snapshot, at schema.Position) (*schema.Event, bool, error) {
	rec, found, err := eventlog.At(ctx, rd.js, r.Source.Store.Names, at.Stream)
	if err != nil {
		return nil, false, err
	}
	is := func(rec *schema.Record) bool { return at.ID == "" || schema.PositionOf(rec).ID == at.ID }
	if found && is(&rec) {
		return decoded(&rec)
	}
	last, err := rd.lastSegment(ctx, r)
	if err != nil {
		return nil, false, err
	}
	// Segments are in log order, so a binary search finds the one. After damage, sequences may be used again and the
	// search may fail; then the event counts as missing.
	for lo, hi := 1, last+1; lo < hi; {
		mid := int(uint(lo+hi) >> 1) //nolint:gosec // both are numbers of segments
		n := mid
		info, frames, err := rd.frames(ctx, r, n)
		for ; errors.Is(err, kvstore.ErrNotFound) && n+1 < hi; info, frames, err = rd.frames(ctx, r, n) {
			n++ // it is lost, and the next one tells where to go on
		}
		switch {
		case errors.Is(err, kvstore.ErrNotFound), err == nil && info.First.Stream > at.Stream:
			hi = mid
			continue
		case err != nil:
			return nil, false, err
		case info.Last.Stream < at.Stream:
			lo = n + 1
			continue
		}
		var there *schema.Record
		if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
			if rec.Stream == at.Stream && is(&rec) {
				there = &rec
			}
			return there == nil
		}); err != nil {
			return nil, false, rd.segmentGone(n, r, err)
		}
		if there == nil {
			return nil, false, nil
		}
		return decoded(there)
	}
	return nil, false, nil
}

// lastSegment is the number of the run's last segment, whether its checkpoint counts it or not.
func (rd *Reader) lastSegment(ctx context.Context, r *Snapshot) (int, error) {
	for n := r.Segments.Count; ; n++ {
		_, err := r.Source.Store.Segments.GetFresh(ctx, r.Run, n+1)
		if errors.Is(err, kvstore.ErrNotFound) {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// EventAt is eventAt for an event that a fork may have taken over from its base.
func (rd *Reader) EventAt(ctx context.Context, r *Snapshot, at schema.Position) (*schema.Event, bool, error) {
	for range schema.MaxBases {
		e, found, err := rd.eventAt(ctx, r, at)
		if err != nil || found || r.Head.Base == nil {
			return e, found, err
		}
		if r, err = rd.Find(ctx, r.Head.Base.Run, Head); err != nil {
			return nil, false, err
		}
	}
	return nil, false, nil
}

// decoded is the event of a record that the fold accepted, so it is one.
func decoded(rec *schema.Record) (*schema.Event, bool, error) {
	e, err := schema.Decode(rec.Header, rec.Body)
	return e, err == nil, err
}
