package operate

import "github.com/waymarkio/waymark/schema"

// LeftBehind counts a run's work after a point. A rewind to the point removes it from the run.
type LeftBehind struct {
	Records  int64 `json:"records"`
	Turns    int64 `json:"turns"`
	Messages int64 `json:"messages"`
	Calls    int64 `json:"calls"`
	// Done are the calls that may have had an external effect. A rewind does not undo it.
	Done []DoneCall `json:"done"`
}

// DoneCall is a call that began after the point and is not pure.
type DoneCall struct {
	schema.CallKey
	Name    string         `json:"name"`
	Replay  schema.Replay  `json:"replay,omitzero"`
	Outcome schema.Outcome `json:"outcome"`
}

// Behind returns the run's work between two of its states.
func Behind(there, now *schema.State) LeftBehind {
	n, o := &now.Head.Counts, &there.Head.Counts
	left := LeftBehind{
		Records: now.Head.Records - there.Head.Records, Turns: n.Turns - o.Turns, Messages: n.Messages - o.Messages, Calls: n.ToolCalls - o.ToolCalls,
		Done: []DoneCall{},
	}
	for i := range now.Calls {
		call := &now.Calls[i]
		was := there.Call(call.CallKey)
		if call.Replay == schema.ReplayPure || !begun(now, call) || was != nil && begun(there, was) {
			continue
		}
		left.Done = append(left.Done, DoneCall{CallKey: call.CallKey, Name: call.Name, Replay: call.Replay, Outcome: call.Outcome})
	}
	return left
}

// begun reports whether the tool of a call may have run.
func begun(s *schema.State, call *schema.Call) bool {
	switch call.Outcome {
	case schema.OutcomeOpen:
		at := s.Head.FindOpen(call.Turn, call.ToolCallID, call.Occurrence)
		return at >= 0 && !s.Head.OpenCalls[at].State.Requested()
	case schema.OutcomeFailed:
		return call.Error == nil || call.Error.Type != schema.DeniedType
	case schema.OutcomeAbandoned:
		return call.BegunAt != ""
	default:
		return true
	}
}
