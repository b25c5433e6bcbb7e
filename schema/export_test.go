package schema

// Joined returns the messages with the content of the calls that their parts name.
func (s *State) Joined() []StateMessage {
	messages, _ := s.joined()
	return messages
}
