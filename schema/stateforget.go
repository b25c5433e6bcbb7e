package schema

import "slices"

// Place is a point in the content of a state: everything before it can be forgotten. A turn, or a message outside of
// turns, begins there.
type Place struct {
	// records and messages before it in the state, and the first turn that is not before it.
	records  int64
	messages int
	turn     int32
}

// forgotten describes the forgotten content of a state.
type forgotten struct {
	// run of the counted records: a fork may have content of its base.
	run     string
	records int64
	// turn is the first turn that is kept.
	turn int32
	// first and last turn, and the numbers of messages and calls.
	first, last     int32
	messages, calls int
	// said counts the messages that are not of the system, and ends are the turns of the messages, in order.
	said int
	ends []turnEnd
}

// turnEnd is the end of a turn's forgotten messages: the number of messages before it that are not of the system.
type turnEnd struct {
	turn int32
	said int
}

// ApplyAt is [State.Apply] that also reports whether the record began a place, and which.
func (s *State) ApplyAt(keys *Keys, rec *Record) (v Verdict, place Place, begins bool) {
	place = Place{records: s.Head.Records, messages: s.forgotten.messages + len(s.Messages), turn: s.Head.Turn}
	open := s.Head.TurnOpen
	v = s.Apply(keys, rec)
	_, said := v.Data.(*MessageAddedData)
	turns := s.Head.Turn > place.turn
	switch {
	case turns:
		place.turn = s.Head.Turn
	case said:
		place.turn++
	}
	return v, place, v.Kind == Applied && place.records > 0 && (turns || said && !open)
}

// Forget drops the messages, turns and closed calls before a place, which must be of this state. The head and all
// other content stay. So do the latest turn, and the calls of the turn before the place, because the first messages
// after it may name them. [State.View] leaves both out, and describes what was forgotten.
func (s *State) Forget(p Place) {
	f := &s.forgotten
	if f.records == 0 && len(s.Turns) > 0 {
		f.first = s.Turns[0].Turn
	}
	n := min(max(p.messages-f.messages, 0), len(s.Messages))
	for i := range s.Compactions {
		c := &s.Compactions[i]
		c.forgotten += notOfSystem(s.Messages[:min(s.behind(c), n)])
	}
	f.follow(s.Messages[:n])
	calls := len(s.Calls)
	s.Messages = slices.Clone(s.Messages[n:])
	if n := len(s.Turns); n > 0 {
		s.Turns = append(slices.DeleteFunc(s.Turns[:n-1], func(t StateTurn) bool { return t.Turn < p.turn }), s.Turns[n-1])
	}
	s.Calls = slices.DeleteFunc(s.Calls, func(c Call) bool { return c.Turn < p.turn-1 && c.Outcome != OutcomeOpen })
	for i := range s.Compactions {
		s.Compactions[i].At = max(s.Compactions[i].At-n, 0)
	}
	f.run, f.records, f.turn, f.last = s.Head.Run, p.records, p.turn, max(p.turn-1, f.first)
	f.messages += n
	f.calls += calls - len(s.Calls)
}

// notOfSystem counts the messages that are not of the system.
func notOfSystem(list []StateMessage) (n int) {
	for i := range list {
		if list[i].Role != RoleSystem {
			n++
		}
	}
	return n
}

// follow records where the turns of more messages end.
func (f *forgotten) follow(list []StateMessage) {
	for i := range list {
		if list[i].Role != RoleSystem {
			f.said++
		}
		switch turn, last := list[i].Turn, len(f.ends)-1; {
		case turn == 0:
		case last >= 0 && f.ends[last].turn == turn:
			f.ends[last].said = f.said
		default:
			f.ends = append(f.ends, turnEnd{turn, f.said})
		}
	}
}

// replaced counts the messages that were forgotten before a compaction and that it replaces, except those of the
// system.
func (s *State) replaced(c *StateCompaction) int {
	f := &s.forgotten
	if c.ThroughTurn == 0 || s.behind(c) > 0 {
		return f.said
	}
	for _, end := range slices.Backward(f.ends) {
		if end.turn <= c.ThroughTurn {
			return end.said
		}
	}
	return 0
}

// has reports whether content of a turn was forgotten.
func (f *forgotten) has(turn int32) bool { return f.records > 0 && turn < f.turn }

// older is the request for the forgotten content: the run at the place.
func (s *State) older() *Older {
	f := &s.forgotten
	if f.records == 0 {
		return nil
	}
	return &Older{
		FirstTurn: f.first, LastTurn: f.last, Messages: f.messages, Calls: f.calls, Subject: ServiceSubject(VerbGet, s.Head.Fleet, f.run),
		Request: GetRequest{At: Point{Kind: PointRecord, Number: uint64(f.records)}.String()}, //nolint:gosec // it is positive
	}
}
