package schema

// Joined returns the messages with the content of the calls that their parts name.
func (s *State) Joined() (out []StateMessage) {
	numbers, _ := s.names(0)
	for i := range s.Messages {
		calls := numbers[:len(s.Messages[i].Parts)]
		numbers = numbers[len(calls):]
		out = append(out, s.joined(&s.Messages[i], calls).StateMessage)
	}
	return out
}

// Shared reports whether the data of an event is copied from its writer's, and not parsed.
func Shared(e *Event, data Data) bool { return owned(e, data) != nil }
