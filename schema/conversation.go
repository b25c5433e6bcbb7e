package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// slot is a turn and an id that its calls share.
type slot struct {
	turn int32
	id   string
}

// callNames finds the calls that message parts name. Calls are numbered by their place in the state.
type callNames struct {
	calls []Call
	// first is the first call of a slot, counted from 1, and next the call after a call in its slot; 0 for none.
	first map[slot]int
	next  []int
	// given is the last call that was found in the slot of this first call, for each kind of part, counted from 1.
	given [][4]int
	// turnsOf are the turns with a call of an id, in order. It is made for the first part that needs it.
	turnsOf map[string][]int32
}

func newCallNames(calls []Call) *callNames {
	x := &callNames{calls: calls, first: make(map[slot]int, len(calls)), next: make([]int, len(calls)), given: make([][4]int, len(calls))}
	for i := range slices.Backward(calls) {
		k := slot{calls[i].Turn, calls[i].ToolCallID}
		x.next[i], x.first[k] = x.first[k], i+1
	}
	return x
}

// find returns the number of the call of a part, or -1. It must be asked once for each part of all messages, in order.
// whole: the part has its own response, as for a call that is not recorded. Such parts are counted separately.
func (x *callNames) find(turn int32, p *Part, whole bool) int {
	kind := 0
	if p.Type == PartToolCallResponse {
		kind = 1
	}
	if whole {
		kind += 2
	}
	k := slot{turn, p.ID}
	if p.CallTurn != 0 {
		k.turn = p.CallTurn
	}
	first := x.first[k] - 1
	if p.CallTurn == 0 && (first < 0 || p.Occurrence == 0 && x.given[first][kind] > 0 && x.next[x.given[first][kind]-1] == 0) {
		for _, t := range slices.Backward(x.turns(p.ID)) {
			if turn == 0 || t < turn {
				first = x.first[slot{t, p.ID}] - 1
				break
			}
		}
	}
	if first < 0 {
		return -1
	}
	at := &x.given[first][kind]
	switch {
	case *at == 0:
		*at = first + 1
	case x.next[*at-1] != 0:
		*at = x.next[*at-1]
	}
	if p.Occurrence == 0 {
		return *at - 1
	}
	for i := first; i >= 0; i = x.next[i] - 1 {
		if x.calls[i].Occurrence == p.Occurrence {
			return i
		}
	}
	return -1
}

func (x *callNames) turns(id string) []int32 {
	if x.turnsOf == nil {
		x.turnsOf = make(map[string][]int32, len(x.calls))
		for i := range x.calls {
			c := &x.calls[i]
			if x.first[slot{c.Turn, c.ToolCallID}] == i+1 {
				x.turnsOf[c.ToolCallID] = append(x.turnsOf[c.ToolCallID], c.Turn)
			}
		}
	}
	return x.turnsOf[id]
}

// namedCall is the call that a part names, nil for none. whole: the part has the call's own arguments or response.
type namedCall struct {
	*Call
	whole bool
}

// callUse is what messages do with a call: carried says that one has a response to it, asked that a shown message asks
// for it, and gone that a message does that a compaction replaced.
type callUse struct{ carried, asked, gone bool }

// names returns the number of the call that each part of all messages names, -1 for none, in their order, and for each
// call what the messages do with it. Those before behind are replaced.
//
// A part names its call by id and, where given, by call_turn and occurrence. Without them, the k-th part of a turn
// with an id means the k-th call of the turn with that id. If the message's turn has no such call, the latest earlier
// turn with one is used.
func (s *State) names(behind int) (numbers []int, uses []callUse) {
	names := newCallNames(s.Calls)
	numbers, uses = make([]int, 0, len(s.Messages)+len(s.Calls)), make([]callUse, len(s.Calls))
	for i := range s.Messages {
		m := &s.Messages[i]
		for j := range m.Parts {
			p, n := &m.Parts[j], -1
			response := p.Type == PartToolCallResponse
			if response || p.Type == PartToolCall {
				n = names.find(m.Turn, p, len(p.Response) > 0 || response && m.stored(j, "/response"))
			}
			if numbers = append(numbers, n); n >= 0 {
				uses[n].carried = uses[n].carried || response
				uses[n].gone = uses[n].gone || !response && i < behind && m.Role != RoleSystem
			}
		}
	}
	return numbers, uses
}

// joined returns a message with the arguments of tool_call parts and the responses of tool_call_response parts filled
// in from the calls that they name, and with those calls. The state is not changed.
func (s *State) joined(message *StateMessage, numbers []int) said {
	m := said{StateMessage: *message}
	for j, n := range numbers {
		if n < 0 {
			continue
		}
		if m.named == nil {
			m.Parts, m.named = slices.Clone(message.Parts), make([]namedCall, len(message.Parts))
		}
		p, c := &m.Parts[j], &s.Calls[n]
		field, of, at := &p.Arguments, c.Arguments, "/arguments"
		if p.Type == PartToolCallResponse {
			field, of, at = &p.Response, c.Result, "/response"
		}
		whole := len(*field) > 0 || m.stored(j, at)
		if m.named[j] = (namedCall{c, whole}); !whole {
			*field = of
		}
	}
	return m
}

// stored reports whether a field of a part is in the blob store.
func (m *StateMessage) stored(part int, field string) bool {
	return len(m.Refs) > 0 && slices.ContainsFunc(m.Refs, func(r Ref) bool { return r.Path == fmt.Sprintf("/parts/%d%s", part, field) })
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
func (s *State) Conversation() []Message { return s.Spoken().Conversation() }

// Spoken is a conversation whose large fields may not be loaded yet. Messages that a compaction replaced are left out.
type Spoken struct {
	// Messages have the refs of the calls' fields that they show.
	Messages []StateMessage
	named    [][]namedCall
}

// Spoken returns the conversation for [Spoken.Conversation]. It shares the content of the state, which neither changes.
func (s *State) Spoken() *Spoken {
	said, _ := s.conversation()
	out := &Spoken{Messages: make([]StateMessage, len(said)), named: make([][]namedCall, len(said))}
	for i := range said {
		out.Messages[i], out.named[i] = said[i].view(), said[i].named
	}
	return out
}

// Conversation is [State.Conversation] of the state that it was taken from.
func (s *Spoken) Conversation() []Message {
	out := make([]Message, len(s.Messages))
	for i := range s.Messages {
		out[i] = s.Messages[i].Message
	}
	return validHistory(out, func(message, part int) *Call {
		if named := s.named[message]; named != nil {
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
	compacted, behind := s.compacted()
	numbers, uses := s.names(behind)
	out = make([]said, 0, 2*(len(s.Messages)-behind)+1) // with their results
	for i := range s.Messages {
		if i == behind && compacted != nil {
			out = append(out, said{StateMessage: *compacted})
		}
		calls := numbers[:len(s.Messages[i].Parts)]
		if numbers = numbers[len(calls):]; i < behind && s.Messages[i].Role != RoleSystem {
			continue
		}
		m := s.joined(&s.Messages[i], calls)
		results := said{StateMessage: StateMessage{Message: Message{Role: RoleTool}, Turn: m.Turn, Epoch: m.Epoch}}
		cut := false
		for j, c := range m.named {
			switch p := &m.Parts[j]; {
			case c.Call == nil:
			case p.Type == PartToolCallResponse:
				if c.denied() {
					m.withoutResponse(j)
				}
				respond(p, c.Call, m.named[j].whole)
				cut = cut || uses[calls[j]].gone
			case !uses[calls[j]].asked:
				if uses[calls[j]].asked = true; !uses[calls[j]].carried {
					response := Part{Type: PartToolCallResponse, ID: p.ID, Occurrence: p.Occurrence, Response: c.Result}
					respond(&response, c.Call, false)
					results.Parts, results.named = append(results.Parts, response), append(results.named, namedCall{c.Call, false})
				}
			}
		}
		if cut {
			// A response without its call is refused by providers.
			m.drop(func(j int) bool {
				return calls[j] >= 0 && uses[calls[j]].gone && m.Parts[j].Type == PartToolCallResponse
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
	if behind == len(s.Messages) && compacted != nil {
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

// respond completes the response to a call with its recorded outcome. whole: the part has its own response.
func respond(p *Part, c *Call, whole bool) {
	p.IsError = c.IsError != nil && *c.IsError
	failed := c.Error
	switch {
	case whole, len(p.Response) > 0, c.Outcome == OutcomeReturned, slices.ContainsFunc(c.Refs, func(r Ref) bool { return r.Path == "/result" }):
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
