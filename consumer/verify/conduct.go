package verify

import (
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// Mistake is an error in the events that an executor wrote. The stored data is whole all the same: the fold refused
// the event, or accepted it although a recovery or a reader suffers from it.
type Mistake struct {
	// Check is [Refused], [WrongShard] or the name of a check in docs/events.md.
	Check string `json:"check"`
	// Event is the position of the event, Type its name, if it is a CloudEvent.
	Event    schema.Position `json:"event,omitzero"`
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	Type     string          `json:"type,omitzero"`
	// Problem is the description for people.
	Problem string `json:"problem"`
	// More counts the run's further mistakes of this check.
	More int `json:"more,omitzero"`
}

// Checks that are no function of one accepted event.
const (
	// Refused: the fold refused the event. Problem has its reason.
	Refused = "refused"
	// WrongShard: the run's events are in a shard that is not the run's. No reader finds them there.
	WrongShard = "wrong_shard"
)

// String is the mistake in one line.
func (m *Mistake) String() string {
	s := m.Check + ": "
	if m.Event.Stream != 0 {
		s += fmt.Sprintf("event %d", m.Event.Stream)
		if m.Sequence != 0 {
			s += fmt.Sprintf(" %d.%d", m.Epoch, m.Sequence)
		}
		if m.Type != "" {
			s += " " + m.Type
		}
		s += ": "
	}
	s += m.Problem
	if m.More > 0 {
		s += fmt.Sprintf(" (and %d more)", m.More)
	}
	return s
}

// mistakesOfCheck bounds the mistakes of one check that are listed; further ones are counted.
const mistakesOfCheck = 4

// conduct collects the mistakes in a run's events, in the order of the log.
type conduct struct {
	mistakes []Mistake
	// seen is the last judged record: a segment that cannot be folded is read again from the log.
	seen schema.StreamSequence
	// ids are the content hashes of the latest events without a sequence, by source and id; recent is their order.
	ids    map[string]schema.Hash
	recent []string
	// numbered and unnumbered: the executor wrote events with and without a sequence in this epoch.
	numbered, unnumbered bool
	// returned are the tools of the calls that returned a result, by call id.
	returned map[string]string
	// said is the latest turn that got a message of the assistant without an answer.
	said int32
	// handed: another run continues the work.
	handed bool
}

// step is one event, with the run before and after it.
type step struct {
	verdict *schema.Verdict
	e       *schema.Event
	name    string
	// turn, turnOpen, events and limit of the run before the event; limit is the reached limit of its contract.
	turn     int32
	turnOpen bool
	events   int64
	limit    string
	// call of the event before it; nil for none that is open.
	call *schema.OpenCall
	// head is the run after the event.
	head *schema.Head
}

// apply folds a record, and judges the executor that wrote it unless only the fold of a base is wanted.
func (v *verifier) apply(rec *schema.Record) schema.Verdict {
	if v.conduct == nil {
		return v.head.Apply(v.keys, rec)
	}
	p := schema.Prepare(v.keys, rec)
	return v.conduct.apply(&v.head, &p)
}

func newConduct() *conduct {
	return &conduct{ids: map[string]schema.Hash{}, returned: map[string]string{}}
}

// apply folds a prepared record and judges it.
func (c *conduct) apply(head *schema.Head, p *schema.Prepared) schema.Verdict {
	s := step{turn: head.Turn, turnOpen: head.TurnOpen, events: head.Counts.Events, head: head}
	s.limit, _, _ = head.ReachedLimit(head.MaxTurns, head.MaxTokens)
	if e := p.Event; e != nil {
		s.e, s.name = e, e.Name()
		if id, occurrence, ok := schema.CallOf(p.Data()); ok {
			if i := head.FindOpen(e.Turn, id, occurrence); i >= 0 {
				call := head.OpenCalls[i]
				s.call = &call
			}
		}
	}
	v := head.ApplyPrepared(p)
	if at := p.Position(); at.Stream > c.seen {
		c.seen = at.Stream
		s.verdict = &v
		c.judge(at, &s)
	}
	return v
}

func (c *conduct) judge(at schema.Position, s *step) {
	switch s.verdict.Kind {
	case schema.Rejected:
		c.found(at, s, Refused, fmt.Sprintf("%s, %s", s.verdict.Reason, s.verdict.Detail))
		return
	case schema.Applied, schema.Evidence, schema.Duplicate:
	default:
		return
	}
	if !s.e.IsControl() {
		for i := range checks {
			if problem := checks[i].broken(c, s); problem != "" {
				c.found(at, s, checks[i].name, problem)
			}
		}
	}
	if s.verdict.Kind == schema.Applied {
		c.remember(s)
	}
}

func (c *conduct) found(at schema.Position, s *step, check, problem string) {
	m := Mistake{Check: check, Event: at, Problem: problem}
	if s.e != nil {
		m.Epoch, m.Sequence, m.Type = s.e.Epoch, s.e.Sequence, s.e.Type
		if s.name != "" {
			m.Type = s.name
		}
	}
	n, first := 0, 0
	for i := range c.mistakes {
		if c.mistakes[i].Check == check {
			if n++; n == 1 {
				first = i
			}
		}
	}
	if n == mistakesOfCheck {
		c.mistakes[first].More++
		return
	}
	c.mistakes = append(c.mistakes, m)
}

// remember keeps of an accepted event what later checks compare.
func (c *conduct) remember(s *step) {
	if s.name == schema.RunResumed {
		c.numbered, c.unnumbered = false, false
	}
	if !s.e.IsControl() {
		c.numbered = c.numbered || s.e.Sequence != 0
		c.unnumbered = c.unnumbered || s.e.Sequence == 0
	}
	if s.e.Sequence == 0 {
		key := idKey(s.e)
		c.ids[key] = s.e.ContentHash()
		if c.recent = append(c.recent, key); len(c.recent) > schema.WindowEvents {
			delete(c.ids, c.recent[0])
			c.recent = c.recent[1:]
		}
	}
	switch d := s.verdict.Data.(type) {
	case *schema.HandoffAcceptedData:
		c.handed = true
	case *schema.MessageAddedData:
		if d.Message.Role == schema.RoleAssistant {
			c.said = s.turn
		}
	case *schema.ToolReturnedData:
		if s.call != nil && (d.IsError == nil || !*d.IsError) {
			c.keep(d.ToolCallID, s.call.Name)
		}
	case *schema.ToolSettledData:
		if s.call != nil && (d.How == schema.SettledVerified || d.How == schema.SettledAdopted || d.How == schema.SettledDecided) && (d.IsError == nil || !*d.IsError) {
			c.keep(d.ToolCallID, s.call.Name)
		}
	}
}

// keep remembers that a call returned. The call that completes a run is among the latest.
func (c *conduct) keep(id, tool string) {
	if len(c.returned) >= schema.MaxOpenCalls {
		clear(c.returned)
	}
	c.returned[id] = tool
}

// idKey is what tells two events without a sequence apart.
func idKey(e *schema.Event) string { return e.Source + "\n" + e.ID }
