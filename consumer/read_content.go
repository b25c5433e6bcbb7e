package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/internal/runlog"
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

// content hands over everything that was read of a run: segments after the given number, then the tail up to exactly
// the last event of the reading. A segment that is missing or corrupt is a *damaged error: what follows it would not
// follow from what was sent before.
func (rd *reader) content(ctx context.Context, r *reading, after int, to sink) error {
	digest, follows := "", false
	for n := after + 1; n <= r.index.Count; n++ {
		if r.missing[n] {
			follows = false
			continue
		}
		stored, err := r.src.store.Segments.Get(ctx, r.run, n)
		switch {
		case errors.Is(err, kvstore.ErrNotFound):
			return rd.segmentGone(n, r, err)
		case err != nil:
			return fmt.Errorf("segment %d of run %s: %w", n, r.run, err)
		}
		info, err := schema.DecodeSegmentInfo(stored)
		if err == nil {
			if !follows {
				digest, follows = info.DigestBefore, true
			}
			err = continues(&info, r.run, n, digest)
		}
		if err == nil && n == r.index.Count && info.DigestAfter != r.index.Digest {
			err = fmt.Errorf("ends with digest %.16s…, the checkpoint counts %.16s…: %w", info.DigestAfter, r.index.Digest, schema.ErrCorrupt)
		}
		if err != nil {
			return rd.segmentGone(n, r, err)
		}
		digest = info.DigestAfter
		if err := to.segment(n, stored); err != nil {
			return err
		}
	}
	if !r.tail.dropped {
		for _, chunk := range r.tail.chunks {
			if err := to.frames(chunk); err != nil {
				return err
			}
		}
		return nil
	}
	return rd.longTail(ctx, r, to)
}

// checkSegments looks for segments that are counted and not there, before anything is sent: they are gaps of the answer,
// which goes on behind them.
func (rd *reader) checkSegments(ctx context.Context, r *reading, after int) error {
	if r.index.Count <= after {
		return nil
	}
	numbers, err := r.src.store.Segments.List(ctx, r.run)
	if err != nil {
		return err
	}
	there := make(map[int]bool, len(numbers))
	for _, n := range numbers {
		there[n] = true
	}
	for n := after + 1; n <= r.index.Count; n++ {
		if there[n] {
			continue
		}
		if r.missing == nil {
			r.missing = make(map[int]bool)
		}
		r.missing[n] = true
		gap, err := rd.gapOfSegment(ctx, r, n)
		if err != nil {
			return err
		}
		r.lost = append(r.lost, gap)
		rd.stats.CorruptSegments.Add(1)
		rd.log.Error().Str(keyRun, r.run).Int(keySegment, n).Msg("segment is missing")
	}
	return nil
}

// gapOfSegment says which events a missing segment held, as far as the one before it tells.
func (rd *reader) gapOfSegment(ctx context.Context, r *reading, n int) (schema.Gap, error) {
	gap := schema.Gap{Reason: reasonLost, Epoch: 1, From: 1, At: r.index.Last}
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
	err := runlog.Read(ctx, rd.js, r.src.store.Names, r.run, after+1, func(rec schema.Record) error {
		if schema.PositionOf(&rec).ID == id {
			at = rec.Stream
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return at, at != 0, err
}

func (rd *reader) segmentGone(n int, r *reading, err error) error {
	rd.stats.CorruptSegments.Add(1)
	rd.log.Error().Err(err).Str(keyRun, r.run).Int(keySegment, n).Msg("segment is missing or damaged")
	return &damaged{segment: n, gap: schema.Gap{Epoch: r.head.Epoch, At: r.index.Last, Reason: reasonLost}, err: err}
}

// errEnough ends a read at the last event of a reading.
var errEnough = errors.New("the last event was read")

// longTail reads a tail again that was too long to keep. A server that has less than was seen before is asked again.
func (rd *reader) longTail(ctx context.Context, r *reading, to sink) error {
	from, events := r.tail.from, int64(0)
	var chunk []byte
	flush := func() error {
		if len(chunk) == 0 {
			return nil
		}
		err := to.frames(chunk)
		chunk = nil // the sink may hold on to it
		return err
	}
	for from <= r.logLast {
		err := runlog.Read(ctx, rd.js, r.src.store.Names, r.run, from, func(rec schema.Record) error {
			if rec.Stream > r.logLast {
				return errEnough
			}
			from = rec.Stream + 1
			if rec.Stream <= r.index.Last.Stream {
				return nil
			}
			events++
			if len(chunk) > 0 && len(chunk)+rec.Size() > maxFramesReply {
				if err := flush(); err != nil {
					return err
				}
			}
			chunk = schema.AppendFrame(chunk, &rec)
			return nil
		})
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return err
		}
		if from <= r.logLast {
			if err := pause(ctx, staleBackoff); err != nil {
				return err
			}
		}
	}
	if events != r.tail.events {
		return fmt.Errorf("run %s: %d events were in the tail, %d are left: %w", r.run, r.tail.events, events, ErrStale)
	}
	return flush()
}

// pause waits, or returns why it may not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errTooLarge says that a run is larger than the daemon folds for somebody else.
var errTooLarge = errors.New("the run is too large for view state")

// errBusy says that the budget for folding is used up.
var errBusy = errors.New("the daemon folds as many states as it may")

// stateSink folds a run's content to its state, within a budget.
type stateSink struct {
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
		s.state.Apply(&rec)
		return true
	})
}
