package reader

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxFramesReply bounds a reply with frames of the tail; a single larger event has a reply of its own.
	maxFramesReply = 256 << 10
	// staleBackoff is the pause before a request is repeated that returned less than is known to be stored.
	staleBackoff = 5 * time.Millisecond
)

// Sink receives a run's content: its segments in order, then its tail.
type Sink interface {
	Segment(number int, stored []byte) error
	Frames(chunk []byte) error
}

// Content sends everything that was read of a run after the given position: segments, then the tail up to exactly the
// last event of the snapshot. For damaged segments see [Reader.Sealed].
func (rd *Reader) Content(ctx context.Context, r *Snapshot, p *Cursor, to Sink) error {
	if err := rd.Sealed(ctx, r, p, to); err != nil {
		return err
	}
	return rd.Tail(ctx, r, to)
}

// Sealed sends the segments of a snapshot from a position on. If one of them is unusable and the log still has its
// events, the snapshot becomes one with the segments before it and the log after them. If not, a missing segment is a
// gap, and a corrupt one is a *Damaged error, because the content after it would not continue the content before.
func (rd *Reader) Sealed(ctx context.Context, r *Snapshot, p *Cursor, to Sink) error {
	p.whole = true
	err := rd.segments(ctx, r.Source, r.Run, &r.Segments, p, to)
	bad, damaged := errors.AsType[*Damaged](err)
	if !damaged {
		if send, ok := errors.AsType[*sendError](err); ok {
			return send.err
		}
		return err
	}
	missing := errors.Is(err, kvstore.ErrNotFound)
	if !missing {
		err = rd.segmentGone(bad.Segment, r, bad.Err)
	}
	logged, lerr := rd.fromLog(ctx, r)
	switch {
	case lerr != nil:
		return lerr
	case logged == nil && missing:
		return rd.withGaps(ctx, r, p, to)
	case logged == nil:
		return err
	case logged.Segments.Count != p.Next-1:
		return fmt.Errorf("run %s: segment %d was unusable, and now segment %d is: %w", r.Run, p.Next, logged.Segments.Count+1, eventlog.ErrStale)
	}
	detail := "it is counted and not there"
	if !missing {
		detail = bad.Err.Error()
	}
	logged.Damage = append(r.Damage, schema.Damage{What: schema.DamagedSegment, Segment: p.Next, Detail: detail, Instead: "the log"})
	*r = *logged
	return nil
}

// withGaps sends the segments of a snapshot from a position on. A missing one is a gap of the snapshot.
func (rd *Reader) withGaps(ctx context.Context, r *Snapshot, p *Cursor, to Sink) error {
	p.whole = false
	err := rd.segments(ctx, r.Source, r.Run, &r.Segments, p, to)
	var send *sendError
	var bad *Damaged
	switch {
	case err == nil:
		return rd.noteMissing(ctx, r, p)
	case errors.As(err, &send):
		if err := rd.noteMissing(ctx, r, p); err != nil {
			return err
		}
		return send.err
	case errors.As(err, &bad):
		return rd.segmentGone(bad.Segment, r, bad.Err)
	default:
		return err
	}
}

// Tail sends the tail of a snapshot.
func (rd *Reader) Tail(ctx context.Context, r *Snapshot, to Sink) error {
	if r.tail.dropped {
		return rd.longTail(ctx, r, to)
	}
	for _, chunk := range r.tail.chunks {
		if err := to.Frames(chunk); err != nil {
			return err
		}
	}
	return nil
}

// gapOfSegment returns the events of a missing segment, as far as the segment before it shows them.
func (rd *Reader) gapOfSegment(ctx context.Context, r *Snapshot, n int) (schema.Gap, error) {
	gap := schema.Gap{Reason: schema.ReasonLost, Epoch: 1, From: 1, At: r.Segments.Last}
	if n == 1 {
		return gap, nil
	}
	stored, err := r.Source.Store.Segments.Get(ctx, r.Run, n-1)
	if errors.Is(err, kvstore.ErrNotFound) {
		return gap, nil
	}
	if err != nil {
		return gap, err
	}
	if info, err := schema.DecodeSegmentInfo(stored); err == nil {
		gap.At = info.Last
		if epoch, sequence, ok := placeOf(info.Last.ID, r.Run); ok {
			gap.Epoch, gap.From = epoch, sequence+1
		}
	}
	return gap, nil
}

// placeOf parses epoch and sequence from an SDK's event id.
func placeOf(id, run string) (schema.Epoch, schema.Sequence, bool) {
	parts := strings.Split(strings.TrimPrefix(id, run+"."), ".")
	if len(parts) != 3 {
		return 0, 0, false
	}
	epoch, err := strconv.ParseUint(parts[0], 10, 32)
	sequence, err2 := strconv.ParseUint(parts[1], 10, 64)
	return schema.Epoch(epoch), schema.Sequence(sequence), err == nil && err2 == nil
}

// FindEvent searches for an event of the run by its id, after a position in the log.
func (rd *Reader) FindEvent(ctx context.Context, r *Snapshot, after schema.StreamSequence, id string) (schema.StreamSequence, bool, error) {
	at := schema.StreamSequence(0)
	err := eventlog.Read(ctx, rd.js, r.Source.Store.Names, r.Run, after+1, func(rec schema.Record) error {
		if schema.PositionOf(&rec).ID == id {
			at = rec.Stream
			return eventlog.ErrStop
		}
		return nil
	})
	if errors.Is(err, eventlog.ErrStop) {
		err = nil
	}
	return at, at != 0, err
}

func (rd *Reader) segmentGone(n int, r *Snapshot, err error) error {
	rd.stats.CorruptSegments.Add(1)
	rd.log.Error().Err(err).Str(logkey.Run, r.Run).Int(logkey.Segment, n).Msg("segment is missing or damaged")
	return &Damaged{Segment: n, Gap: schema.Gap{Epoch: r.Head.Epoch, At: r.Segments.Last, Reason: schema.ReasonLost}, Err: err}
}

// ErrTooLarge says that a run is larger than the daemon folds for a client.
var ErrTooLarge = errors.New("the run is too large for view state")

// ErrBusy says that the budget for folding is used up.
var ErrBusy = errors.New("the daemon has no budget for another fold")
