package reader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// lateSegments is how many of a run's latest segments are searched for an earlier try of a request.
const lateSegments = 2

// byOf returns By of a control event.
func byOf(e *schema.Event) string {
	if e == nil {
		return ""
	}
	data, err := schema.ParseData(e)
	if err != nil {
		return "" // the fold refused it, too
	}
	by, _ := schema.DecidedBy(data)
	return by
}

// LatestEvent searches for the latest event of the run that matches, in the log and the latest segments. It returns
// nil for none. match gets the event's id, and the event, nil if the message is no event.
func (rd *Reader) LatestEvent(ctx context.Context, r *Snapshot, match func(id string, e *schema.Event) bool) (*schema.ControlReply, error) {
	var found *schema.ControlReply
	look := func(rec *schema.Record) {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			e = nil
		}
		if id := schema.RecordID(rec, e); match(id, e) {
			found = &schema.ControlReply{EventID: id, Stream: rec.Stream, By: byOf(e)}
		}
	}
	for from := schema.StreamSequence(1); from <= r.LogLast; {
		err := eventlog.Read(ctx, rd.js, r.Source.Store.Names, r.Run, from, func(rec schema.Record) error {
			from = rec.Stream + 1
			if rec.Stream > r.LogLast {
				return eventlog.ErrStop
			}
			look(&rec)
			return nil
		})
		switch {
		case err != nil && !errors.Is(err, eventlog.ErrStop):
			return nil, err
		case from > r.LogLast:
		default: // a replica that is behind
			if err := pause.For(ctx, staleBackoff); err != nil {
				return nil, err
			}
		}
	}
	if found != nil {
		return found, nil
	}
	numbers, err := r.Source.Store.Segments.List(ctx, r.Run)
	if err != nil {
		return nil, err
	}
	slices.Sort(numbers)
	for i := len(numbers) - 1; i >= max(0, len(numbers)-lateSegments) && found == nil; i-- {
		_, frames, err := rd.frames(ctx, r, numbers[i])
		if err != nil {
			return nil, err
		}
		if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
			look(&rec)
			return true
		}); err != nil {
			return nil, rd.segmentGone(numbers[i], r, err)
		}
	}
	return found, nil
}

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

// eventAt returns the run's event at a position from its head: from the log, or from the segment into which it was
// sealed since. It reports false if neither has it.
func (rd *Reader) eventAt(ctx context.Context, r *Snapshot, at schema.Position) (*schema.Event, bool, error) {
	rec, found, err := eventlog.At(ctx, rd.js, r.Source.Store.Names, at.Stream)
	if err != nil {
		return nil, false, err
	}
	if found && schema.PositionOf(&rec).ID == at.ID {
		return decoded(&rec)
	}
	numbers, err := r.Source.Store.Segments.List(ctx, r.Run)
	if err != nil {
		return nil, false, err
	}
	// Segments are in log order, so a binary search finds the one. After damage, sequences may be used again and the
	// search may fail; then the event counts as missing.
	slices.Sort(numbers)
	for lo, hi := 0, len(numbers); lo < hi; {
		mid := int(uint(lo+hi) >> 1) //nolint:gosec // both are lengths
		info, frames, err := rd.frames(ctx, r, numbers[mid])
		switch {
		case err != nil:
			return nil, false, err
		case info.Last.Stream < at.Stream:
			lo = mid + 1
			continue
		case info.First.Stream > at.Stream:
			hi = mid
			continue
		}
		var there *schema.Record
		if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
			if rec.Stream == at.Stream && schema.PositionOf(&rec).ID == at.ID {
				there = &rec
			}
			return there == nil
		}); err != nil {
			return nil, false, rd.segmentGone(numbers[mid], r, err)
		}
		if there == nil {
			return nil, false, nil
		}
		return decoded(there)
	}
	return nil, false, nil
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
