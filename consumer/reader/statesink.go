package reader

import (
	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/schema"
)

// foldGrain is the step in which a fold for view state reserves its budget.
const foldGrain = 1 << 20

// StateSink folds a run's content to its state, within a budget.
type StateSink struct {
	keys   *schema.Keys
	State  *schema.State
	budget *semaphore.Weighted
	held   int64
	order  schema.Order
	// bytes is the size of all records.
	bytes int64
}

// NewStateSink returns a sink that folds to a state, with a budget that it shares with others.
func NewStateSink(keys *schema.Keys, state *schema.State, budget *semaphore.Weighted) *StateSink {
	return &StateSink{keys: keys, State: state, budget: budget}
}

// Again prepares the sink to receive the tail again from its beginning.
func (s *StateSink) Again(keys *schema.Keys) { s.keys, s.order = keys, schema.Order{} }

// take reserves budget for a piece of content. It never waits: folds that wait while they hold a share would wait for
// each other.
func (s *StateSink) take(n int) error {
	if s.bytes+int64(n) > schema.MaxStateView {
		return ErrTooLarge
	}
	for s.held < s.bytes+int64(n) {
		if !s.budget.TryAcquire(foldGrain) {
			return ErrBusy
		}
		s.held += foldGrain
	}
	return nil
}

// Release returns the reserved budget.
func (s *StateSink) Release() {
	if s.held > 0 {
		s.budget.Release(s.held)
		s.held = 0
	}
}

// Segment folds a segment.
func (s *StateSink) Segment(_ int, stored []byte) error {
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

// Frames folds records of the tail.
func (s *StateSink) Frames(chunk []byte) error {
	if err := s.take(len(chunk)); err != nil {
		return err
	}
	return s.apply(chunk)
}

func (s *StateSink) apply(frames []byte) error {
	return schema.ReadFrames(frames, func(rec schema.Record) bool {
		s.order.Next(&s.State.Head, &rec)
		if v := s.State.Apply(s.keys, &rec); v.Kind != schema.Replayed {
			s.bytes += int64(rec.Size())
		}
		return true
	})
}
