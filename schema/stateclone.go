package schema

import "slices"

// Clone returns an independent copy of the state. The two share the content of events, which neither changes.
func (s *State) Clone() *State {
	c := *s
	c.Head = s.Head.Clone()
	c.Messages, c.Turns, c.Calls, c.Phases = slices.Clone(s.Messages), slices.Clone(s.Turns), slices.Clone(s.Calls), slices.Clone(s.Phases)
	c.Compactions, c.Waits, c.Handoffs = slices.Clone(s.Compactions), slices.Clone(s.Waits), slices.Clone(s.Handoffs)
	c.Artifacts, c.Errors, c.Limits = slices.Clone(s.Artifacts), slices.Clone(s.Errors), slices.Clone(s.Limits)
	c.Decisions, c.Takeovers, c.Values = slices.Clone(s.Decisions), slices.Clone(s.Takeovers), slices.Clone(s.Values)
	c.Signals, c.Unknown = slices.Clone(s.Signals), slices.Clone(s.Unknown)
	c.history.changes = slices.Clone(s.history.changes)
	for i := range c.Calls { // a call appends to these
		c.Calls[i].Settlements, c.Calls[i].Refs = slices.Clip(c.Calls[i].Settlements), slices.Clip(c.Calls[i].Refs)
	}
	return &c
}
