package schema

import "slices"

// swap puts a part of a state's content back to its other value, and returns the swap that undoes this.
type swap func(*State) swap

// change is one change of the content. The changes of a state form a tree, because a rewind continues after an
// earlier one: before is the number of the change that this one follows, counted from 1; 0 is the empty state.
type change struct {
	record int64
	before int
	swap   swap
}

// history holds the changes of a state's content in the order of the records, so that a rewind can cut it back. at is
// the number of the latest change that the content has.
type history struct {
	changes []change
	at      int
	// settled: no changes are kept.
	settled bool
}

// Settle drops what a rewind needs. For a state that no rewind follows: one that was read to its end, or that of a
// handle, which a rewind fences.
func (s *State) Settle() { s.history = history{settled: true} }

// changed notes a change of the content by the current record; back takes it back.
func (s *State) changed(back swap) {
	h := &s.history
	if h.settled {
		return
	}
	h.changes = append(h.changes, change{record: s.Head.Records, before: h.at, swap: back})
	h.at = len(h.changes)
}

// cutBack gives the content the value that it had after a record. The way there may lead back into records that an
// earlier rewind abandoned.
func (s *State) cutBack(record int64) {
	h := &s.history
	to, _ := slices.BinarySearchFunc(h.changes, record+1, func(c change, record int64) int { return int(c.record - record) })
	from, target := h.at, to
	var ahead []int
	for from != to {
		if from > to {
			h.toggle(s, from)
			from = h.changes[from-1].before
		} else {
			ahead = append(ahead, to)
			to = h.changes[to-1].before
		}
	}
	for _, n := range slices.Backward(ahead) {
		h.toggle(s, n)
	}
	h.at = target
	s.consumed = 0
	s.changed(nil) // the content after the rewind is that after the record, not that before the rewind
}

// toggle takes a change back, or makes it again.
func (h *history) toggle(s *State, n int) {
	if c := &h.changes[n-1]; c.swap != nil {
		c.swap = c.swap(s)
	}
}

// insert adds an entry to a list of the content, and notes it.
func insert[T any](s *State, list func(*State) *[]T, i int, v T) {
	at := list(s)
	*at = slices.Insert(*at, i, v)
	s.changed(removal(list, i))
}

// push is insert at the end.
func push[T any](s *State, list func(*State) *[]T, v T) { insert(s, list, len(*list(s)), v) }

// remove removes an entry from a list of the content, and notes it.
func remove[T any](s *State, list func(*State) *[]T, i int) { s.changed(removal(list, i)(s)) }

func removal[T any](list func(*State) *[]T, i int) swap {
	return func(s *State) swap {
		at := list(s)
		was := (*at)[i]
		*at = nilIfEmpty(slices.Delete(*at, i, i+1))
		return func(s *State) swap {
			at := list(s)
			*at = slices.Insert(*at, i, was)
			return removal(list, i)
		}
	}
}

// amend notes the value of an entry of the content, and returns the entry for the current record to change. A slice in
// it must be replaced, not appended to in place.
func amend[T any](s *State, list func(*State) *[]T, i int) *T {
	entry := &(*list(s))[i]
	s.changed(replacement(list, i, *entry))
	return entry
}

func replacement[T any](list func(*State) *[]T, i int, v T) swap {
	return func(s *State) swap {
		entry := &(*list(s))[i]
		was := *entry
		*entry = v
		return replacement(list, i, was)
	}
}

// start sets the data of run.started, and notes it.
func (s *State) start(d *RunStartedData) { s.changed(started(d)(s)) }

func started(d *RunStartedData) swap {
	return func(s *State) swap {
		was := s.Started
		s.Started = d
		return started(was)
	}
}

// The lists that a rewind cuts back.
func messagesOf(s *State) *[]StateMessage       { return &s.Messages }
func turnsOf(s *State) *[]StateTurn             { return &s.Turns }
func callsOf(s *State) *[]Call                  { return &s.Calls }
func phasesOf(s *State) *[]StatePhase           { return &s.Phases }
func compactionsOf(s *State) *[]StateCompaction { return &s.Compactions }
func waitsOf(s *State) *[]StateWait             { return &s.Waits }
func artifactsOf(s *State) *[]StateArtifact     { return &s.Artifacts }
func errorsOf(s *State) *[]ErrorRaisedData      { return &s.Errors }
func limitsOf(s *State) *[]LimitReachedData     { return &s.Limits }
func decisionsOf(s *State) *[]StateDecision     { return &s.Decisions }
func valuesOf(s *State) *[]StateValue           { return &s.Values }
func unknownOf(s *State) *[]UnknownEvent        { return &s.Unknown }

// Facts from outside the run, such as its signals, stay when a rewind abandons their records. What the run made of
// them is cut back.
func signalsOf(s *State) *[]StateSignal { return &s.Signals }
