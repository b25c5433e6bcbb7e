package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// keyframe is the head at the end of a segment, from which the fold of a run can continue. Segment 0 is before the first.
type keyframe struct {
	segment int
	head    schema.Head
}

// keyframeTries bounds the segments that are read to find a keyframe: a binary search among 2^20.
const keyframeTries = 24

// landmark is a search key for keyframes: a value that grows with the records of a run.
type landmark struct {
	of     func(*schema.Head) int64
	target int64
}

// byRecord is the landmark before a record.
func byRecord(n int64) landmark {
	return landmark{func(h *schema.Head) int64 { return h.Records }, n}
}

// landmarkOf is the landmark before a point, if heads alone can tell it.
func (rd *Reader) landmarkOf(r *Snapshot, p schema.Point) (landmark, bool) {
	number := int64(min(p.Number, 1<<62)) //nolint:gosec // it fits
	switch p.Kind {
	case schema.PointRecord:
		return byRecord(number), true
	case schema.PointMark:
		for i := range r.Head.Marks {
			if m := &r.Head.Marks[i]; m.Name == p.Name {
				return landmark{func(h *schema.Head) int64 { return int64(h.Position.Stream) }, int64(m.Position.Stream)}, true //nolint:gosec // sequences of a stream
			}
		}
	case schema.PointTurn:
		// After a rewind, numbers of the superseded turns are used again.
		return landmark{func(h *schema.Head) int64 { return int64(h.Turn) }, number}, number > 0 && len(r.Head.Superseded) == 0
	case schema.PointSequence:
		return landmark{func(h *schema.Head) int64 { return int64(h.Sequence) }, number}, r.Head.Epoch <= 1 //nolint:gosec // it fits
	case schema.PointEnd, schema.PointCheckpoint, schema.PointResult, schema.PointEvent:
	}
	return landmark{}, false
}

// keyframeBefore returns the latest stored keyframe of a snapshot before a landmark. An unreadable segment is no error: the fold then begins
// earlier, and reports it.
func (rd *Reader) keyframeBefore(ctx context.Context, r *Snapshot, at landmark) keyframe {
	best := *rd.beginning(r)
	low, lowest := 0, int64(0)
	high, highest := r.Segments.Count, max(at.of(&r.Head), 1)
	if r.TailEvents() > 0 {
		high++ // the snapshot's own head is after one more
	}
	for try := range keyframeTries {
		if low >= min(high, r.Segments.Count) {
			break
		}
		// Segments have about the same size: alternate interpolation with halving.
		guess := (low + high + 1) / 2
		if span := highest - lowest; try%2 == 0 && span > 0 {
			guess = low + int(float64(high-low)*float64(at.target-lowest)/float64(span))
		}
		guess = max(low+1, min(guess, high, r.Segments.Count))
		head := storedKeyframe(ctx, r, guess)
		if head == nil {
			break
		}
		if v := at.of(head); v >= at.target {
			high, highest = guess-1, v
		} else {
			low, lowest, best = guess, v, keyframe{guess, *head}
		}
	}
	return best
}

// storedKeyframe reads the keyframe of a segment, nil for none that can be used.
func storedKeyframe(ctx context.Context, r *Snapshot, n int) *schema.Head {
	stored, err := r.Source.Store.Segments.Get(ctx, r.Run, n)
	if err != nil {
		return nil
	}
	info, head, err := schema.DecodeKeyframe(stored)
	if err != nil || info.Run != r.Run || info.Number != n || n == r.Segments.Count && info.DigestAfter != r.Segments.Digest {
		return nil
	}
	return head
}

// walk folds the content of a snapshot from a keyframe.
func (rd *Reader) walk(ctx context.Context, r *Snapshot, from *keyframe, w *walker) error {
	w.head, w.next, w.order = from.head.Clone(), from.segment+1, schema.Order{Last: from.head.Position.Stream}
	err := rd.Content(ctx, r, &Cursor{Next: w.next, digest: from.head.Digest, follows: from.segment > 0}, w)
	if err == nil && w.next != r.Segments.Count+1 {
		err = fmt.Errorf("segment %d: %w", w.next, errSegmentMissing)
	}
	return err
}

// beginning is before a run's first record.
func (rd *Reader) beginning(r *Snapshot) *keyframe {
	return &keyframe{head: schema.NewHead(rd.fleet, r.Run)}
}

// LocateHead is [Reader.Locate] for the head alone: it folds from the last keyframe before the point, if there is one.
func (rd *Reader) LocateHead(ctx context.Context, r *Snapshot, p schema.Point) (*Moment, error) {
	if at, ok := rd.landmarkOf(r, p); ok {
		if from := rd.keyframeBefore(ctx, r, at); from.segment > 0 {
			m, err := rd.search(ctx, r, p, &from, false)
			var told *schema.ServiceError
			if err == nil || errors.As(err, &told) || ctx.Err() != nil {
				return m, err
			}
		}
	}
	return rd.Locate(ctx, r, p)
}

// Seen is a record of a run and the fold's verdict. It is valid only during the call that receives it.
type Seen struct {
	// Number of the record, counted from 1; see [schema.PointRecord].
	Number int64
	*schema.Record
	schema.Verdict
	// Head after the record.
	Head *schema.Head
}

// Records calls see for the records of a range, of a run that was read with its content. It first calls begin with the head before the range,
// and does so again if a damaged segment makes it start over.
func (rd *Reader) Records(ctx context.Context, r *Snapshot, from, through int64, begin func(*schema.Head) error, see func(*Seen) error) error {
	var failed error
	show := func(at *keyframe) error {
		keys, err := rd.keys.Keys(ctx)
		if err != nil {
			return err
		}
		w := &walker{keys: keys}
		begun := false
		w.before = func(p *schema.Prepared) bool {
			w.record = p.Record
			if !begun && w.head.Records == from-1 {
				begun = true
				failed = begin(&w.head)
			}
			return failed != nil
		}
		w.behind = func(v schema.Verdict) bool {
			if v.Kind == schema.Skipped || v.Kind == schema.Replayed || w.head.Records < from {
				return false
			}
			failed = see(&Seen{w.head.Records, w.record, v, &w.head})
			return failed != nil || w.head.Records >= through
		}
		return rd.walk(ctx, r, at, w)
	}
	at := rd.keyframeBefore(ctx, r, byRecord(from))
	err := show(&at)
	var bad *Damaged
	if at.segment > 0 && (errors.As(err, &bad) || errors.Is(err, errSegmentMissing) || errors.Is(err, eventlog.ErrStale)) {
		err = show(rd.beginning(r)) // a segment before the keyframe may be unusable, too
	}
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, eventlog.ErrStop):
		return nil
	case errors.Is(err, errSegmentMissing):
		return schema.Fail(schema.CodeDamaged, "See what is wrong with: waymark verify "+r.Run+".", "run %s: %s", r.Run, err)
	}
	return err
}
