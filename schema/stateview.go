package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// StateView is the content of a run in an answer with the view state: the conversation joined with its calls, and the
// rest of [State]. Its JSON members are in run order, oldest first.
type StateView struct {
	// Messages of [State.Conversation], with each call's arguments and response filled in, and the latest compaction
	// applied.
	Messages []MessageView `json:"messages"`
	// Turns and Calls in the order of recording. Calls omits arguments and results that Messages have.
	Turns []StateTurn `json:"turns,omitzero"`
	Calls []Call      `json:"calls,omitzero"`
	// Compacted lists the messages, turns and closed calls that a compaction replaced by a summary. The run at an
	// earlier point has them.
	Compacted *Compacted `json:"compacted,omitzero"`

	// The rest as in [State].
	Started   *RunStartedData    `json:"started,omitzero"`
	Phases    []StatePhase       `json:"phases,omitzero"`
	Waits     []StateWait        `json:"waits,omitzero"`
	Handoffs  []StateHandoff     `json:"handoffs,omitzero"`
	Artifacts []StateArtifact    `json:"artifacts,omitzero"`
	Errors    []ErrorRaisedData  `json:"errors,omitzero"`
	Limits    []LimitReachedData `json:"limits,omitzero"`
	Decisions []StateDecision    `json:"decisions,omitzero"`
	Takeovers []RunResumedData   `json:"takeovers,omitzero"`
	Ended     *RunEndedData      `json:"ended,omitzero"`
	Values    []StateValue       `json:"values,omitzero"`
	Signals   []StateSignal      `json:"signals,omitzero"`
	Unknown   []UnknownEvent     `json:"unknown,omitzero"`
}

// MessageView is a message of the conversation, and its origin.
type MessageView struct {
	// Role, Name, Source and Extra as in [Message].
	Role string `json:"role"`
	Name string `json:"name,omitzero"`
	// Turn it belongs to; 0 outside any turn.
	Turn   int32          `json:"turn,omitzero"`
	Parts  []PartView     `json:"parts,omitzero"`
	Source jsontext.Value `json:"source,omitzero"`
	// EventID of its event. Absent for a message without one: results that follow the message with the calls, and the
	// summary of a compaction.
	EventID string `json:"event_id,omitzero"`
	Epoch   Epoch  `json:"epoch,omitzero"`
	Time    string `json:"time,omitzero"`
	// Refs name fields that are in the blob store or encrypted; paths are relative to the message.
	Refs  []Ref          `json:"refs,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// PartView is a part of a message. A tool_call has its arguments, a tool_call_response its response.
type PartView struct {
	Part
	// IsError says of a tool_call_response that the response is an error.
	IsError bool `json:"is_error,omitzero"`
}

// Compacted describes what the latest compaction replaced.
type Compacted struct {
	// ThroughTurn and Time as in context.compacted; Messages is the number of recorded messages that the summary
	// replaces.
	ThroughTurn int32  `json:"through_turn"`
	Messages    int    `json:"messages"`
	Time        string `json:"time,omitzero"`
}

// View returns the whole content for the view state. The state is not changed, and shares its content.
func (s *State) View() *StateView {
	said, behind := s.conversation()
	v := &StateView{
		Messages: make([]MessageView, len(said)),
		Started:  s.Started, Phases: s.Phases, Waits: s.Waits, Handoffs: s.Handoffs, Artifacts: s.Artifacts, Errors: s.Errors, Limits: s.Limits,
		Decisions: s.Decisions, Takeovers: s.Takeovers, Ended: s.Ended, Values: s.Values, Signals: s.Signals, Unknown: s.Unknown,
	}
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
	return v
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
func (m *said) view() MessageView {
	v := MessageView{
		Role: m.Role, Name: m.Name, Turn: m.Turn, Source: m.Source, EventID: m.EventID, Epoch: m.Epoch, Time: m.Time, Refs: m.Refs, Extra: m.Extra,
		Parts: make([]PartView, len(m.Parts)),
	}
	for j := range m.Parts {
		v.Parts[j] = PartView{Part: m.Parts[j], IsError: m.Parts[j].IsError}
		v.Parts[j].Extra = withoutMembers(m.Parts[j].Extra, "is_error")
	}
	for j, c := range m.named {
		if c.Call == nil || c.whole {
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
