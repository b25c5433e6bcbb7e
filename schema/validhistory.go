package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ValidHistory returns a conversation as model providers accept it, whatever the record has:
//
//   - after each message with calls follows one message of the role tool, with one response to each call, in their order;
//   - the ids of calls are unique, also where a provider allows only letters, digits, _ and -;
//   - the name of a call's tool is 1 to 64 letters, digits, _ and -, and every role is one of the Role… constants;
//   - the arguments of a call are an object, or the text of one. Other ones are its member arguments;
//   - only messages of the role assistant have calls, and no message is empty.
//
// A response without its call, a further response, and a call of another role become texts of the role user that say
// what they are, and so does the message of an unknown role. A call without a response gets an error as its response.
// A valid history is returned as it is. The given messages are not changed.
func ValidHistory(messages []Message) []Message {
	return validHistory(messages, func(int, int) *Call { return nil })
}

// historyCall is a call of a history, and the response to it.
type historyCall struct {
	part     Part
	recorded *Call
	message  int
	given    string
	response *Part
}

// validHistory is ValidHistory, with the recorded calls that the parts name. They match calls and responses whose ids
// are ambiguous.
func validHistory(messages []Message, named func(message, part int) *Call) []Message {
	calls, open := make([]historyCall, 0, len(messages)), []int(nil)
	first := make([]int, len(messages)+1) // index of the first call of a message
	misplaced := make(map[int][]Part)     // texts for what stands without its call, by message
	ids := callIDs{used: make(map[string]bool, len(messages)), next: make(map[string]int)}
	for i := range messages {
		m := &messages[i]
		for j := range m.Parts {
			if p := &m.Parts[j]; p.Type == PartToolCall && m.Role == RoleAssistant {
				c := historyCall{part: *p, recorded: named(i, j), message: i, given: p.ID}
				c.part.ID, c.part.Name, c.part.Arguments = ids.unique(p.ID), plainName(p.Name), objectArguments(p.Arguments)
				calls, open = append(calls, c), append(open, len(calls))
			}
		}
		first[i+1] = len(calls)
		for j := range m.Parts {
			p := &m.Parts[j]
			if p.Type != PartToolCallResponse {
				continue
			}
			if k := openCall(calls, open, p.ID, named(i, j)); k >= 0 {
				calls[open[k]].response = p
				open = slices.Delete(open, k, k+1)
				continue
			}
			misplaced[i] = append(misplaced[i], Text(fmt.Sprintf("Response that matches no open call (id %q): %s", p.ID, p.Response)))
		}
	}
	out := make([]Message, 0, len(messages))
	for i := range messages {
		m, own := messages[i], calls[first[i]:first[i+1]]
		parts := make([]Part, 0, len(m.Parts))
		responses := Message{Role: RoleTool}
		if len(own) > 0 {
			responses.Parts = make([]Part, 0, len(own))
		}
		for j := range m.Parts {
			p := &m.Parts[j]
			switch {
			case p.Type == PartToolCall && m.Role == RoleAssistant:
				c := &own[len(responses.Parts)]
				parts, responses.Parts = append(parts, c.part), append(responses.Parts, c.answer())
			case p.Type == PartToolCall:
				misplaced[i] = append(misplaced[i], Text(fmt.Sprintf("Call of %q by the role %s: %s", p.Name, m.Role, p.Arguments)))
			case p.Type == PartToolCallResponse:
			case p.Type == PartText && len(p.Source) == 0 && (p.Content == nil || strings.TrimSpace(*p.Content) == ""):
			default:
				parts = append(parts, *p)
			}
		}
		if m.Parts = parts; len(parts) > 0 {
			switch m.Role {
			case RoleSystem, RoleUser, RoleAssistant:
			case RoleTool:
				m.Role = RoleUser
			default:
				m.Role, m.Parts = RoleUser, slices.Insert(parts, 0, Text(fmt.Sprintf("Message of the role %q:", m.Role)))
			}
			out = append(out, m)
		}
		if len(responses.Parts) > 0 {
			out = append(out, responses)
		}
		if len(misplaced[i]) > 0 {
			out = append(out, Message{Role: RoleUser, Parts: misplaced[i]})
		}
	}
	return out
}

// openCall returns the index of the open call that a response answers; -1 for none. It is the call of the record;
// without one the first call with the id in the latest message that has one.
func openCall(calls []historyCall, open []int, id string, recorded *Call) int {
	found := -1
	for i, k := range slices.Backward(open) {
		switch c := &calls[k]; {
		case recorded != nil && c.recorded == recorded:
			return i
		case c.given != id || recorded != nil && c.recorded != nil:
		case found < 0 || c.message == calls[open[found]].message:
			found = i
		}
	}
	return found
}

// answer is the response to the call.
func (c *historyCall) answer() Part {
	if c.response != nil {
		p := *c.response
		if p.ID = c.part.ID; p.Name != "" {
			p.Name = c.part.Name
		}
		return p
	}
	p := Part{Type: PartToolCallResponse, ID: c.part.ID, Occurrence: c.part.Occurrence}
	respond(&p, &Call{Outcome: OutcomeOpen}, false)
	return p
}

// objectArguments are the arguments of a call as an object, or as the text of one.
func objectArguments(v jsontext.Value) jsontext.Value {
	if v.Kind() == '{' {
		return v
	}
	text, isText := jsontext.Value(nil), false
	if v.Kind() == '"' {
		b, err := jsontext.AppendUnquote(nil, v)
		text, isText = b, err == nil
	}
	switch {
	case text.Kind() == '{' && text.IsValid():
		return v
	case len(v) == 0, v.Kind() == 'n', isText && len(strings.TrimSpace(string(text))) == 0:
		return jsontext.Value(`{}`)
	}
	return slices.Concat(jsontext.Value(`{"arguments":`), v, jsontext.Value(`}`))
}

// callIDs makes ids of calls unique.
type callIDs struct {
	used map[string]bool
	next map[string]int
}

func (x *callIDs) unique(id string) string {
	if id == "" {
		id = "call"
	}
	made := id
	for x.used[PlainCallID(made)] {
		x.next[id] = max(x.next[id], 1) + 1
		made = id + "-" + strconv.Itoa(x.next[id])
	}
	x.used[PlainCallID(made)] = true
	return made
}

// plainName is the name of a tool as every provider allows it. A model can make up any name.
func plainName(name string) string {
	plain := PlainCallID(cmp.Or(name, "unnamed"))
	return plain[:min(len(plain), 64)]
}

// PlainCallID is the id of a call with _ in place of all but letters, digits, _ and -.
func PlainCallID(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}
