package consumer

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxFramesReply bounds a reply with frames of the tail; a single larger event has a reply of its own.
	maxFramesReply = 256 << 10
	// foldGrain is the step in which a fold for view state takes its share of the budget.
	foldGrain = 1 << 20
	// staleBackoff is the pause before a server is asked again that did not have what is known to be stored.
	staleBackoff = 5 * time.Millisecond
)

// sink takes a run's content: its segments in order, then its tail.
type sink interface {
	segment(number int, stored []byte) error
	frames(chunk []byte) error
}

// content hands over everything that was read of a run behind the given place: segments, then the tail up to exactly the
// last event of the reading. A segment that is missing is a gap of the reading. One that is corrupt is a *damaged error:
// what follows it would not follow from what was sent before.
func (rd *reader) content(ctx context.Context, r *reading, p *place, to sink) error {
	if err := rd.sealed(ctx, r, p, to); err != nil {
		return err
	}
	return rd.unsealed(ctx, r, to)
}

// sealed hands over the segments of a reading from a place on.
func (rd *reader) sealed(ctx context.Context, r *reading, p *place, to sink) error {
	err := rd.segments(ctx, r.src, r.run, &r.index, p, to)
	if err == nil {
		return rd.noteMissing(ctx, r, p)
	}
	var send *sendError
	var bad *damaged
	switch {
	case errors.As(err, &send):
		return send.err
	case errors.As(err, &bad):
		return rd.segmentGone(bad.segment, r, bad.err)
	default:
		return err
	}
}

// mended makes a reading whole whose segments cannot all be used: by the segments before the first of those, and the log,
// if that still has what they hold. It reports false when the reading stays as it is.
func (rd *reader) mended(ctx context.Context, r *reading, cause error) (bool, error) {
	var bad *damaged
	if cause != nil && !errors.As(cause, &bad) || cause == nil && len(r.lost) == 0 {
		return false, nil
	}
	whole, err := rd.fromLog(ctx, r)
	if err != nil || whole == nil {
		return false, err
	}
	n := whole.index.Count + 1
	detail := "it is counted and not there"
	if bad != nil {
		detail = bad.err.Error()
	}
	whole.damage = append(r.damage, schema.Damage{What: schema.DamagedSegment, Segment: n, Detail: detail, Instead: "the log"})
	*r = *whole
	return true, nil
}

// unsealed hands over the tail of a reading.
func (rd *reader) unsealed(ctx context.Context, r *reading, to sink) error {
	if r.tail.dropped {
		return rd.longTail(ctx, r, to)
	}
	for _, chunk := range r.tail.chunks {
		if err := to.frames(chunk); err != nil {
			return err
		}
	}
	return nil
}

// gapOfSegment says which events a missing segment held, as far as the one before it tells.
func (rd *reader) gapOfSegment(ctx context.Context, r *reading, n int) (schema.Gap, error) {
	gap := schema.Gap{Reason: schema.ReasonLost, Epoch: 1, From: 1, At: r.index.Last}
	if n == 1 {
		return gap, nil
	}
	stored, err := r.src.store.Segments.Get(ctx, r.run, n-1)
	if errors.Is(err, kvstore.ErrNotFound) {
		return gap, nil
	}
	if err != nil {
		return gap, err
	}
	if info, err := schema.DecodeSegmentInfo(stored); err == nil {
		gap.At = info.Last
		if epoch, sequence, ok := placeOf(info.Last.ID, r.run); ok {
			gap.Epoch, gap.From = epoch, sequence+1
		}
	}
	return gap, nil
}

// placeOf reads epoch and sequence from an SDK's event id.
func placeOf(id, run string) (schema.Epoch, schema.Sequence, bool) {
	parts := strings.Split(strings.TrimPrefix(id, run+"."), ".")
	if len(parts) != 3 {
		return 0, 0, false
	}
	epoch, err := strconv.ParseUint(parts[0], 10, 32)
	sequence, err2 := strconv.ParseUint(parts[1], 10, 64)
	return schema.Epoch(epoch), schema.Sequence(sequence), err == nil && err2 == nil
}

// findEvent looks for an event of the run by its id, behind a place in the log.
func (rd *reader) findEvent(ctx context.Context, r *reading, after schema.StreamSequence, id string) (schema.StreamSequence, bool, error) {
	at := schema.StreamSequence(0)
	err := eventlog.Read(ctx, rd.js, r.src.store.Names, r.run, after+1, func(rec schema.Record) error {
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

func (rd *reader) segmentGone(n int, r *reading, err error) error {
	rd.stats.CorruptSegments.Add(1)
	rd.log.Error().Err(err).Str(logkey.Run, r.run).Int(logkey.Segment, n).Msg("segment is missing or damaged")
	return &damaged{segment: n, gap: schema.Gap{Epoch: r.head.Epoch, At: r.index.Last, Reason: schema.ReasonLost}, err: err}
}

// errTooLarge says that a run is larger than the daemon folds for somebody else.
var errTooLarge = errors.New("the run is too large for view state")

// errBusy says that the budget for folding is used up.
var errBusy = errors.New("the daemon folds as many states as it may")

// stateSink folds a run's content to its state, within a budget.
type stateSink struct {
	keys   *schema.Keys
	state  *schema.State
	bytes  int64
	budget *semaphore.Weighted
	held   int64
	// last is the stream sequence of the last record that came.
	last schema.StreamSequence
}

// take counts payload and takes its share of the budget, which is never waited for: those who wait while they hold a
// share would wait for each other.
func (s *stateSink) take(n int) error {
	s.bytes += int64(n)
	if s.bytes > schema.MaxStateView {
		return errTooLarge
	}
	for s.held < s.bytes {
		if !s.budget.TryAcquire(foldGrain) {
			return errBusy
		}
		s.held += foldGrain
	}
	return nil
}

// release gives the share back.
func (s *stateSink) release() {
	if s.held > 0 {
		s.budget.Release(s.held)
		s.held = 0
	}
}

func (s *stateSink) segment(_ int, stored []byte) error {
	info, err := schema.DecodeSegmentInfo(stored)
	if err != nil {
		return err
	}
	if err := s.take(info.RawBytes); err != nil {
		return err
	}
	_, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		return err
	}
	return s.apply(frames)
}

func (s *stateSink) frames(chunk []byte) error {
	if err := s.take(len(chunk)); err != nil {
		return err
	}
	return s.apply(chunk)
}

func (s *stateSink) apply(frames []byte) error {
	return schema.ReadFrames(frames, func(rec schema.Record) bool {
		if rec.Stream <= s.last {
			s.state.Head.Position = schema.Position{} // sequences that damage freed were used again
		}
		s.last = rec.Stream
		s.state.Apply(s.keys, &rec)
		return true
	})
}
