package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// callFinder returns a function that finds the call that a part names. It must be asked about the parts of all messages, in order,
// and about each once.
func (s *State) callFinder() func(turn int32, p *Part) *Call {
	type slot struct {
		turn int32
		id   string
	}
	calls := make(map[slot][]int, len(s.Calls))
	turnsOf := make(map[string][]int32, len(s.Calls))
	for i := range s.Calls {
		k := slot{s.Calls[i].Turn, s.Calls[i].ToolCallID}
		if len(calls[k]) == 0 {
			turnsOf[k.id] = append(turnsOf[k.id], k.turn)
		}
		calls[k] = append(calls[k], i)
	}
	type use struct {
		slot
		kind string
		// whole: the part has its response itself, as that of a call which is not recorded. It is counted apart.
		whole bool
	}
	used := make(map[use]int)
	return func(turn int32, p *Part) *Call {
		k := slot{turn, p.ID}
		if p.CallTurn != 0 {
			k.turn = p.CallTurn
		} else if len(calls[k]) == 0 || used[use{k, p.Type, len(p.Response) > 0}] >= len(calls[k]) && p.Occurrence == 0 {
			for _, t := range slices.Backward(turnsOf[p.ID]) {
				if turn == 0 || t < turn {
					k.turn = t
					break
				}
			}
		}
		list := calls[k]
		n := used[use{k, p.Type, len(p.Response) > 0}]
		used[use{k, p.Type, len(p.Response) > 0}]++
		if p.Occurrence > 0 {
			for _, i := range list {
				if s.Calls[i].Occurrence == p.Occurrence {
					return &s.Calls[i]
				}
			}
			return nil
		}
		if n >= len(list) {
			n = len(list) - 1
		}
		if n < 0 {
			return nil
		}
		return &s.Calls[list[n]]
	}
}

// Joined returns the messages with the arguments of tool_call parts and the responses of
// tool_call_response parts filled in from the calls they name. The state is not changed.
//
// A part names its call by id and, where given, by call_turn and occurrence. Without them the k-th part of
// a turn with an id means the k-th call of the turn with that id; if the message's turn has no such call,
// the latest earlier turn's is meant.
func (s *State) Joined() []StateMessage {
	messages, _ := s.joined()
	return messages
}

// JoinedCalls is Joined with the calls that the parts name, by message and part; nil where a part names none.
func (s *State) JoinedCalls() ([]StateMessage, [][]*Call) {
	out, named := s.joined()
	calls := make([][]*Call, len(named))
	for i := range named {
		for j := range named[i] {
			calls[i] = append(calls[i], named[i][j].Call)
		}
	}
	return out, calls
}

// namedCall is the call that a part names, nil for none. whole: the part has the call's arguments or response itself.
type namedCall struct {
	*Call
	whole bool
}

// joined is Joined with the calls that the parts name, by message and part.
func (s *State) joined() (out []StateMessage, named [][]namedCall) {
	find := s.callFinder()
	out, named = slices.Clone(s.Messages), make([][]namedCall, len(s.Messages))
	for i := range out {
		parts := out[i].Parts
		for j := range parts {
			p := &parts[j]
			if p.Type != PartToolCall && p.Type != PartToolCallResponse {
				continue
			}
			c := find(out[i].Turn, p)
			if c == nil {
				continue
			}
			if named[i] == nil {
				parts = slices.Clone(parts)
				out[i].Parts, named[i] = parts, make([]namedCall, len(parts))
				p = &parts[j]
			}
			field, of := &p.Arguments, c.Arguments
			if p.Type == PartToolCallResponse {
				field, of = &p.Response, c.Result
			}
			named[i][j] = namedCall{c, len(*field) > 0}
			if len(*field) == 0 {
				*field = of
			}
		}
	}
	return out, named
}

// Conversation returns the messages that a model is sent when the run goes on: what was recorded, with the arguments of each call and
// one response to it. A response that no recorded message carries stands in a message of the role tool behind the message that asks for
// the call. So a model that is asked again sees what it was told before, on any executor.
//
// A denied call has its denial as the response, also where a message brings a result of it.
//
// A call without a result has an error as its response, {"error":{"type":…,"message":…}}: a failed one the recorded error, another one
// the type abandoned or open. [Part.IsError] says which responses are errors. Calls that no message names are left out: no model asked
// for them.
//
// Of a compacted run the summary of the latest compaction stands, as a message of the role user, in place of the messages through its
// turn; system messages stay. The state is not changed; what is in the blob store must have been loaded before.
func (s *State) Conversation() []Message {
	said, _ := s.conversation()
	out := make([]Message, len(said))
	for i := range said {
		out[i] = said[i].Message
	}
	return out
}

// said is a message of the conversation, with the calls that its parts name; named is nil if none does.
type said struct {
	StateMessage
	named []namedCall
}

// conversation is Conversation with where its messages came from; behind is the number of recorded messages that a compaction covers.
func (s *State) conversation() (out []said, behind int) {
	joined, named := s.joined()
	carried := make(map[*Call]bool)
	for i := range named {
		for j, c := range named[i] {
			if c.Call != nil && joined[i].Parts[j].Type == PartToolCallResponse {
				carried[c.Call] = true
			}
		}
	}
	compacted, behind := s.compacted()
	out = make([]said, 0, len(joined)+len(s.Calls))
	asked, gone := make(map[*Call]bool), make(map[*Call]bool)
	for i := range joined {
		if i == behind && compacted != nil {
			out = append(out, said{StateMessage: *compacted})
		}
		m := said{joined[i], named[i]}
		if i < behind && m.Role != RoleSystem {
			for j, c := range m.named {
				gone[c.Call] = gone[c.Call] || m.Parts[j].Type == PartToolCall
			}
			continue
		}
		results := said{StateMessage: StateMessage{Message: Message{Role: RoleTool}, Turn: m.Turn, Epoch: m.Epoch}}
		for j, c := range m.named {
			switch p := &m.Parts[j]; {
			case c.Call == nil:
			case p.Type == PartToolCallResponse:
				if c.denied() {
					m.withoutResponse(j)
				}
				respond(p, c.Call)
			case !asked[c.Call]:
				asked[c.Call] = true
				if !carried[c.Call] {
					response := Part{Type: PartToolCallResponse, ID: p.ID, Occurrence: p.Occurrence, Response: c.Result}
					respond(&response, c.Call)
					results.Parts, results.named = append(results.Parts, response), append(results.named, namedCall{c.Call, false})
				}
			}
		}
		if len(gone) > 0 && m.named != nil {
			// A response without its call is refused by providers.
			m.drop(func(j int) bool {
				c := m.named[j].Call
				return c != nil && gone[c] && m.Parts[j].Type == PartToolCallResponse
			})
			if len(m.Parts) == 0 {
				continue
			}
		}
		out = append(out, m)
		if len(results.Parts) > 0 {
			out = append(out, results)
		}
	}
	if behind == len(joined) && compacted != nil {
		out = append(out, said{StateMessage: *compacted})
	}
	return out, behind
}

// denied reports whether a policy or a person did not allow the call: whatever a message says, it has no result.
func (c *Call) denied() bool {
	return c.Outcome == OutcomeFailed && c.Error != nil && c.Error.Type == DeniedType
}

// withoutResponse takes the response out of a part.
func (m *said) withoutResponse(j int) {
	place := fmt.Sprintf("/parts/%d/response", j)
	m.Parts[j].Response, m.named[j].whole = nil, false
	m.Refs = slices.DeleteFunc(slices.Clone(m.Refs), func(r Ref) bool { return at(r.Path, place) })
}

// drop takes parts out of the message, by their index.
func (m *said) drop(leftOut func(int) bool) {
	var kept said
	for j := range m.Parts {
		if leftOut(j) {
			continue
		}
		was := fmt.Sprintf("/parts/%d", j)
		for _, r := range refsBelow(m.Refs, was) {
			r.Path = fmt.Sprintf("/parts/%d%s", len(kept.Parts), r.Path)
			kept.Refs = append(kept.Refs, r)
		}
		kept.Parts, kept.named = append(kept.Parts, m.Parts[j]), append(kept.named, m.named[j])
	}
	for _, r := range m.Refs {
		if !strings.HasPrefix(r.Path, "/parts/") {
			kept.Refs = append(kept.Refs, r)
		}
	}
	m.Parts, m.named, m.Refs = kept.Parts, kept.named, kept.Refs
}

// respond completes the response to a call with what is recorded of its outcome.
func respond(p *Part, c *Call) {
	p.IsError = c.IsError != nil && *c.IsError
	failed := c.Error
	switch {
	case len(p.Response) > 0 || c.Outcome == OutcomeReturned:
		return
	case c.Outcome == OutcomeOpen:
		failed = &Error{Type: string(OutcomeOpen), Message: "the call has no result yet"}
	case c.Outcome == OutcomeAbandoned && slices.Contains(c.Settlements, SettledAbandoned):
		failed = &Error{Type: string(OutcomeAbandoned), Message: "the call was given up; whether it had its effect is not known"}
	case c.Outcome == OutcomeAbandoned:
		failed = &Error{Type: string(OutcomeAbandoned), Message: "the call was not made"}
	case failed == nil:
		failed = &Error{Type: string(OutcomeFailed)}
	}
	p.IsError = true
	// An error that was read from JSON can be written as JSON.
	p.Response, _ = json.Marshal(struct {
		Error *Error `json:"error"`
	}{failed}, json.Deterministic(true))
}

// compacted returns the summary that the latest compaction left, and the index of the first message behind it.
func (s *State) compacted() (summary *StateMessage, behind int) {
	n := len(s.Compactions)
	if n == 0 {
		return nil, 0
	}
	c := &s.Compactions[n-1]
	m := &StateMessage{Message: Message{Role: RoleUser, Parts: []Part{Text(c.Summary)}}, Time: c.Time}
	for _, r := range c.Refs {
		if r.Path == "/summary" {
			r.Path = "/parts/0/content"
			m.Refs = append(m.Refs, r)
		}
	}
	return m, s.behind(c)
}

// behind is the index of the first message behind those that a compaction replaces. Messages outside turns
// belong to what stands before them.
func (s *State) behind(c *StateCompaction) int {
	behind := min(c.At, len(s.Messages))
	for ; behind > 0 && c.ThroughTurn > 0; behind-- {
		if turn := s.Messages[behind-1].Turn; turn > 0 && turn <= c.ThroughTurn {
			break
		}
	}
	return behind
}
