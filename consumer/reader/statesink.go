package reader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// foldGrain is the step in which a fold for view state reserves its budget.
const foldGrain = 1 << 20

// StateSink folds a run's content to its state, within a budget. For a run larger than [schema.MaxStateView] it
// forgets the oldest turns on the way. Which ones depends on the records alone, so each fold of the same records
// forgets the same.
type StateSink struct {
	keys   *schema.Keys
	State  *schema.State
	budget *semaphore.Weighted
	held   int64
	// last is the stream sequence of the last record.
	last schema.StreamSequence
	// bytes counts the payload of the state with forgotten content, content the forgettable part of it, and forgot the
	// forgotten part.
	bytes, content, forgot int64
	places                 []place
	// values are the sizes of the events that set the current values, by key.
	values map[string]int64
	// keep, if not 0, bounds the content of turns in the state.
	keep int64
	// segment is the number of the last complete segment; through, if not 0, is the last record to fold.
	segment int
	through int64
	// passed, if not nil, is called after each segment.
	passed func(*StateSink)
}

// place is a record up to which content can be forgotten, and the size of that content.
type place struct {
	schema.Place
	content int64
}

// NewStateSink returns a sink that folds to a state, with a budget that it shares with others.
func NewStateSink(keys *schema.Keys, state *schema.State, budget *semaphore.Weighted) *StateSink {
	return &StateSink{keys: keys, State: state, budget: budget, values: make(map[string]int64)}
}

// Keep bounds the content of turns in the state to n bytes: older content is forgotten. Call it before the first record.
func (s *StateSink) Keep(n int64) { s.keep = n }

// Segments is the number of segments that the state has.
func (s *StateSink) Segments() int { return s.segment }

// entryBytes is roughly the memory of a message, turn, call or value of a state without its content.
const entryBytes = 256

// Size is roughly the memory that the state takes, without parts that it shares.
func (s *StateSink) Size() int64 {
	st := s.State
	return s.bytes - s.forgot + entryBytes*int64(len(st.Messages)+len(st.Turns)+len(st.Calls)+len(st.Values)+len(st.Decisions)+len(st.Waits)+len(st.Signals)+len(s.places)+64) +
		st.ForgottenBytes()
}

// Clone returns an independent copy that reserves its own share of the budget.
func (s *StateSink) Clone(keys *schema.Keys) *StateSink {
	c := *s
	c.keys, c.State, c.held, c.passed, c.through = keys, s.State.Clone(), 0, nil, 0
	c.places, c.values = slices.Clone(s.places), maps.Clone(s.values)
	return &c
}

// FoldTo continues the fold of a run, which was read with its content, up to a record. passed is called after each segment.
func (rd *Reader) FoldTo(ctx context.Context, r *Snapshot, s *StateSink, record int64, passed func(*StateSink)) error {
	if err := s.take(0); err != nil || s.State.Head.Records == record {
		return err
	}
	s.through, s.passed = record, passed
	defer func() { s.through, s.passed = 0, nil }()
	err := rd.Content(ctx, r, &Cursor{Next: s.segment + 1, digest: s.State.Head.Digest, follows: s.segment > 0}, s)
	switch {
	case errors.Is(err, eventlog.ErrStop):
		return nil
	case err != nil:
		return err
	case s.State.Head.Records != record:
		return fmt.Errorf("run %s: folded to record %d of %d: %w", r.Run, s.State.Head.Records, record, eventlog.ErrStale)
	}
	return nil
}

// Bytes is the payload of the state including forgotten content.
func (s *StateSink) Bytes() int64 { return s.bytes }

// Again prepares the sink to receive the tail again from its beginning.
func (s *StateSink) Again(keys *schema.Keys) { s.keys, s.last = keys, 0 }

// take reserves budget for a piece of content. It never waits: folds that wait while they hold a share would wait for
// each other.
func (s *StateSink) take(n int) error {
	for s.held < s.bytes-s.forgot+int64(n) {
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
func (s *StateSink) Segment(n int, stored []byte) error {
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
	if err := s.apply(frames); err != nil {
		return err
	}
	s.segment = n
	if s.passed != nil {
		s.passed(s)
	}
	return nil
}

// Frames folds records of the tail.
func (s *StateSink) Frames(chunk []byte) error {
	if err := s.take(len(chunk)); err != nil {
		return err
	}
	return s.apply(chunk)
}

func (s *StateSink) apply(frames []byte) error {
	var full error
	err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		if rec.Stream <= s.last {
			s.State.Head.Position = schema.Position{} // sequences that damage freed were used again
		}
		s.last = rec.Stream
		v, at, begins := s.State.ApplyAt(s.keys, &rec)
		if s.State.Keeps(v) {
			if begins {
				s.places = append(s.places, place{at, s.content})
			}
			s.count(v.Data, int64(rec.Size()))
			full = s.forget()
		}
		if full == nil && s.through > 0 && s.State.Head.Records >= s.through {
			full = eventlog.ErrStop
		}
		return full == nil
	})
	if full != nil {
		return full
	}
	return err
}

// count counts an event with content in the state. A value that is set again or deleted is no longer counted.
func (s *StateSink) count(d schema.Data, size int64) {
	switch d := d.(type) {
	case *schema.StateSetData:
		s.bytes += size - s.values[d.Key]
		s.values[d.Key] = size
		return
	case *schema.StateDeletedData:
		s.bytes -= s.values[d.Key]
		delete(s.values, d.Key)
		return
	}
	s.bytes += size
	if forgettable(d) {
		s.content += size
	}
}

// forgettable reports whether an event's content belongs to a turn.
func forgettable(d schema.Data) bool {
	switch d.(type) {
	case *schema.MessageAddedData, *schema.TurnStartedData, *schema.TurnAnsweredData, *schema.TurnEndedData,
		*schema.ToolCalledData, *schema.ToolReturnedData, *schema.ToolFailedData:
		return true
	default:
		return false
	}
}

// forget makes room in a state that became too large: half of the limit, or as much as its last turn allows.
func (s *StateSink) forget() error {
	if s.keep > 0 && s.content-s.forgot > s.keep && len(s.places) > 0 {
		n := slices.IndexFunc(s.places, func(p place) bool { return s.content-p.content <= s.keep/2 })
		if n < 0 {
			n = len(s.places) - 1
		}
		s.forgetTo(n)
	}
	if s.bytes-s.forgot <= schema.MaxStateView {
		return nil
	}
	n := len(s.places) - 1
	for i := range s.places {
		if s.bytes-s.places[i].content <= schema.MaxStateView/2 {
			n = i
			break
		}
	}
	if n < 0 || s.bytes-s.places[n].content > schema.MaxStateView {
		return ErrTooLarge
	}
	s.forgetTo(n)
	return nil
}

// forgetTo forgets the content before a place.
func (s *StateSink) forgetTo(n int) {
	s.State.Forget(s.places[n].Place)
	s.forgot = s.places[n].content
	s.places = append([]place(nil), s.places[n+1:]...)
}
