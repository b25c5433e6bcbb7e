package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Compacted describes what the latest compaction replaced.
type Compacted struct {
	// ThroughTurn and Time as in context.compacted; Messages is the number of recorded messages that the summary
	// replaces.
	ThroughTurn int32  `json:"through_turn"`
	Messages    int    `json:"messages"`
	Time        string `json:"time,omitzero"`
}

// View returns the state as the view state has it: without the head, which answers have on their own, with each
// call's arguments and response filled into the messages and the latest compaction applied, and without what that
// leaves out. [ValidHistory] of its messages is what [State.Conversation] returns. Calls omits arguments and results
// that Messages have; their refs stand at the message. The state is not changed, and shares its content.
func (s *State) View() *State {
	said, behind := s.conversation()
	v := *s
	v.Head, v.history, v.open = Head{}, history{settled: true}, nil
	v.Messages, v.Turns, v.Calls = make([]StateMessage, len(said)), nil, nil
	// shown says which fields of a call the messages have.
	type shown struct{ arguments, result bool }
	fields := make(map[*Call]shown)
	// shows are the turns with a message; turns through covered have only these.
	shows, covered := make(map[int32]bool), int32(-1)
	for i := range said {
		v.Messages[i] = said[i].view()
		shows[said[i].Turn] = true
		for j, c := range said[i].named {
			if c.Call != nil && !c.whole {
				f := fields[c.Call]
				f.arguments = f.arguments || said[i].Parts[j].Type == PartToolCall
				f.result = f.result || said[i].Parts[j].Type == PartToolCallResponse
				fields[c.Call] = f
			}
		}
	}
	if n := len(s.Compactions); n > 0 && behind > 0 {
		c := &s.Compactions[n-1]
		v.Compacted = &Compacted{ThroughTurn: c.ThroughTurn, Messages: notOfSystem(s.Messages[:behind]), Time: c.Time}
		for i := range s.Messages[:behind] {
			covered = max(covered, s.Messages[i].Turn)
		}
	}
	for i := range s.Turns {
		if t := &s.Turns[i]; t.Turn > covered || shows[t.Turn] {
			v.Turns = append(v.Turns, *t)
		}
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		f, named := fields[c]
		if c.Turn <= covered && !shows[c.Turn] && !named && c.Outcome != OutcomeOpen {
			continue
		}
		call := *c
		call.Refs = nil
		for _, r := range c.Refs {
			if f.arguments && at(r.Path, "/arguments") || f.result && at(r.Path, "/result") {
				continue // it belongs to the message
			}
			call.Refs = append(call.Refs, r)
		}
		if f.arguments {
			call.Arguments = nil
		}
		if f.result {
			call.Result = nil
		}
		v.Calls = append(v.Calls, call)
	}
	return &v
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

// at reports whether a path is a place, or below it.
func at(path, place string) bool {
	rest, ok := strings.CutPrefix(path, place)
	return ok && (rest == "" || rest[0] == '/')
}

// view returns the message with the references of the calls that its parts name.
func (m *said) view() StateMessage {
	v := m.StateMessage
	for j, c := range m.named {
		if c.Call == nil || c.whole || len(c.Refs) == 0 {
			continue
		}
		here := fmt.Sprintf("/parts/%d", j)
		for _, r := range c.Refs {
			switch call := m.Parts[j].Type == PartToolCall; {
			case call && at(r.Path, "/arguments"):
				r.Path = here + r.Path
			case !call && at(r.Path, "/result"):
				r.Path = here + "/response" + strings.TrimPrefix(r.Path, "/result")
			case !call && c.Error != nil && at(r.Path, "/error"):
				r.Path = here + "/response" + r.Path
			default:
				continue
			}
			v.Refs = append(slices.Clip(v.Refs), r)
		}
	}
	return v
}

// withoutMembers returns the unknown members of an object except those with the names, which it has as its own fields
// in the view.
func withoutMembers(extra jsontext.Value, names ...string) jsontext.Value {
	if len(extra) == 0 {
		return extra
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(extra, &members); err != nil {
		return extra
	}
	before := len(members)
	for _, name := range names {
		delete(members, name)
	}
	switch len(members) {
	case before:
		return extra
	case 0:
		return nil
	}
	kept, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return extra
	}
	return kept
}
