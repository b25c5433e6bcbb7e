package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// callFinder returns a function that finds the call of a message part. It must be called once for each part of all
// messages, in order.
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
		// whole: the part has its own response, as for a call that is not recorded. Such parts are counted
		// separately.
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

// namedCall is the call that a part names, nil for none. whole: the part has the call's own arguments or response.
type namedCall struct {
	*Call
	whole bool
}

// joined returns the messages with the arguments of tool_call parts and the responses of tool_call_response parts
// filled in from the calls that they name, and those calls, by message and part; nil where a part names none. The state
// is not changed.
//
// A part names its call by id and, where given, by call_turn and occurrence. Without them, the k-th part of a turn
// with an id means the k-th call of the turn with that id. If the message's turn has no such call, the latest earlier
// turn with one is used.
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

// Conversation returns the messages to send to the model when the run continues: the recorded messages, with the
// arguments of each call and one response to it, as [ValidHistory] orders them. So the model sees on any executor what
// it saw before.
//
// The response to a denied call is its denial, even if a message has a result of it.
//
// The response to a call without a result is an error, {"error":{"type":…,"message":…}}: of a failed call the
// recorded error, otherwise of the type abandoned or open. [Part.IsError] marks responses that are errors. Calls that
// no message names are omitted: no model asked for them.
//
// In a compacted run, the latest compaction's summary, as a message of the role user, replaces the messages up to its
// turn; system messages stay. The state is not changed. Content in the blob store must be loaded before.
func (s *State) Conversation() []Message {
	said, _ := s.conversation()
	out := make([]Message, len(said))
	for i := range said {
		out[i] = said[i].Message
	}
	return validHistory(out, func(message, part int) *Call {
		if named := said[message].named; named != nil {
			return named[part].Call
		}
		return nil
	})
}

// said is a message of the conversation, with the calls that its parts name; named is nil if it names none.
type said struct {
	StateMessage
	named []namedCall
}

// conversation is Conversation with the origin of its messages; behind is the number of recorded messages that a
// compaction covers.
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

// denied reports whether a policy or a person denied the call. Then it has no result, whatever a message says.
func (c *Call) denied() bool {
	return c.Outcome == OutcomeFailed && c.Error != nil && c.Error.Type == DeniedType
}

// withoutResponse removes the response of a part.
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

// respond completes the response to a call with its recorded outcome.
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

// compacted returns the summary of the latest compaction, and the index of the first message after it.
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

// behind is the index of the first message after those that a compaction replaces. Messages outside turns belong to
// the turn of the preceding message.
func (s *State) behind(c *StateCompaction) int {
	behind := min(c.At, len(s.Messages))
	for ; behind > 0 && c.ThroughTurn > 0; behind-- {
		if turn := s.Messages[behind-1].Turn; turn > 0 && turn <= c.ThroughTurn {
			break
		}
	}
	return behind
}
