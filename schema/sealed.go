package schema

// ApplySealed is [Head.Apply] for the writer that sealed the event: the same verdict and the same head, without
// decoding the event that it has just encoded. stream is the event's place in the log; 0 asks for the fold's verdict
// before it has one, see [State.Adopt].
//
// The event must be one that Decode(Encode(e)) returns unchanged, content its [Event.ContentHash], and e.Data the
// result of [MarshalData] for data. Verdict.Data is data itself, and the head keeps no reference into it. It is an
// executor's own event: see [ExecutorsOnly].
func (h *Head) ApplySealed(e *Event, content Hash, data Data, stream StreamSequence) Verdict {
	p := Prepared{
		Record: &Record{Stream: stream}, Event: e, id: e.ID, name: e.Name(), control: e.IsControl(), content: content, data: data,
	}
	p.key = keyOf(e, content)
	if tooDeep(e.Data) {
		p.data, p.dataErr = ParseData(e) // the reader decides whether it is refused
	}
	p.refusal, p.bound, p.own = ExecutorsOnly.check(e, 0)
	return h.ApplyPrepared(&p)
}

// ApplySealed is [Head.ApplySealed] with the content: the state keeps data, so no other code may use it. [ParseData]
// of the event makes such a copy.
func (s *State) ApplySealed(e *Event, content Hash, data Data, stream StreamSequence) Verdict {
	unfinished := s.Head.TurnMessages
	v := s.Head.ApplySealed(e, content, data, stream)
	s.follow(v, unfinished)
	return v
}

// Adopt is Apply for a writer that asks the fold about an event before it publishes it. next is a clone of s.Head
// after Apply of the event's record with stream sequence 0, v that verdict, and stream the place of the published
// event. It is for events that were not rejected, and no record may have been applied to s since the clone was made.
func (s *State) Adopt(next Head, v Verdict, stream StreamSequence) {
	unfinished := s.Head.TurnMessages
	s.Head.Adopt(next, stream)
	s.follow(v, unfinished)
}

// Adopt is [State.Adopt] for a head alone.
func (h *Head) Adopt(next Head, stream StreamSequence) {
	*h = next
	h.settleAt(stream)
}

// settleAt sets the place of the last record, which was applied with stream sequence 0.
func (h *Head) settleAt(stream StreamSequence) {
	h.Position.Stream = stream
	settle := func(at *Position) {
		if at.Stream == 0 && at.ID == h.Position.ID {
			at.Stream = stream
		}
	}
	settle(&h.CancelPosition)
	for i := range h.Interrupts {
		settle(&h.Interrupts[i].Position)
	}
	for i := range h.Signals {
		settle(&h.Signals[i].Position)
	}
	for i := range h.Marks {
		settle(&h.Marks[i].Position)
	}
}
