package schema

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
