package transcript

import (
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// messages are the run's messages, plus generated ones for calls and results that are in no message. An executor may
// record a result without a message, and one that only runs tools records no answer with the calls. Providers refuse a
// result without its call. A trajectory has its own place for those.
func (x *exporter) messages() []schema.StateMessage {
	joined, named := x.s.JoinedCalls()
	if x.f == SWEAgent && x.runFormat() == SWEAgent {
		return joined
	}
	carriedAt := make(map[*schema.Call]int)
	askedAt := make(map[*schema.Call]int)
	last := make(map[int32]int)
	for i := range joined {
		m := &joined[i]
		last[m.Turn] = i
		for j := range m.Parts {
			switch p := &m.Parts[j]; {
			case p.Type == schema.PartToolCallResponse:
				if c := x.callOf(m, p); c != nil {
					if _, first := carriedAt[c]; !first {
						carriedAt[c] = i
					}
				}
			case p.Type == schema.PartToolCall && named[i] != nil && named[i][j] != nil:
				if _, first := askedAt[named[i][j]]; !first {
					askedAt[named[i][j]] = i
				}
			}
		}
	}
	behind := make(map[int]*madeUp) // by the index of the message before, -1 for none
	for i := range x.s.Calls {
		c := &x.s.Calls[i]
		if c.Outcome == schema.OutcomeOpen {
			continue
		}
		if c.Outcome == schema.OutcomeAbandoned && c.Result == nil && c.Error == nil {
			continue // an answer of null would become a result in an import; without one the call is abandoned again
		}
		at, carried := carriedAt[c]
		request, asked := askedAt[c]
		ask := !asked && x.runFormat() != x.f // data from the same format stays unchanged
		switch {
		case carried && !ask:
			continue
		case carried:
			at--
		case asked:
			at = request
		case ask:
			at = before(joined, c)
		default:
			var ok bool
			if at, ok = last[c.Turn]; !ok {
				continue
			}
		}
		if behind[at] == nil {
			behind[at] = new(madeUp)
		}
		behind[at].add(c, ask, !carried)
	}
	if len(behind) == 0 {
		return joined
	}
	out := behind[-1].messages()
	for i := range joined {
		out = append(append(out, joined[i]), behind[i].messages()...)
	}
	return out
}

// before is the index of the message after which a call in no message is placed: the last one of an earlier turn, or
// the last one older than the call's outcome; -1 for none.
func before(joined []schema.StateMessage, c *schema.Call) int {
	at := -1
	for i := range joined {
		switch m := &joined[i]; {
		case m.Turn > c.Turn:
		case m.Turn != 0 && m.Turn < c.Turn, !isLater(m.Time, c.ClosedAt):
			at = i
		}
	}
	for at+1 < len(joined) && joined[at+1].Turn == c.Turn && joined[at+1].Role == schema.RoleTool {
		at++ // no message comes between a request and its results
	}
	return at
}

// isLater reports whether one time is after another; false if one is missing.
func isLater(a, b string) bool {
	at, bt := schema.ParseTime(a), schema.ParseTime(b)
	return !bt.IsZero() && at.After(bt)
}

// madeUp are the generated messages at one position: for each turn an assistant message with the calls that are in no
// message, then the results. They have no event.
type madeUp struct {
	// answers are the results of calls in the previous message.
	answers []schema.StateMessage
	turns   []*madeUpTurn
}

type madeUpTurn struct {
	turn    int32
	asks    schema.StateMessage
	results []schema.StateMessage
}

func (u *madeUp) add(c *schema.Call, ask, result bool) {
	response := schema.ResponsePart(c.ToolCallID)
	response.Occurrence, response.Response = c.Occurrence, c.Result
	answer := schema.StateMessage{Message: schema.Message{Role: schema.RoleTool, Parts: []schema.Part{response}}, Turn: c.Turn, Time: c.ClosedAt}
	if !ask {
		u.answers = append(u.answers, answer)
		return
	}
	if n := len(u.turns); n == 0 || u.turns[n-1].turn != c.Turn {
		u.turns = append(u.turns, &madeUpTurn{turn: c.Turn, asks: schema.StateMessage{
			Message: schema.Message{Role: schema.RoleAssistant}, Turn: c.Turn, Time: c.CalledAt,
		}})
	}
	t := u.turns[len(u.turns)-1]
	request := schema.CallPart(c.ToolCallID, c.Name)
	request.Occurrence, request.Arguments = c.Occurrence, c.Arguments
	t.asks.Parts = append(t.asks.Parts, request)
	if result {
		t.results = append(t.results, answer)
	}
}

func (u *madeUp) messages() (list []schema.StateMessage) {
	if u == nil {
		return nil
	}
	list = slices.Clone(u.answers)
	for _, t := range u.turns {
		list = append(append(list, t.asks), t.results...)
	}
	return list
}
