package referencefold

import (
	"maps"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

func (m *Model) settle(e *schema.Event, d *schema.ToolSettledData, control bool) bool {
	c := m.find(e.Turn, d.ToolCallID, d.Occurrence)
	if c == nil || !m.unsure(c) && !m.ended || m.ended && d.How == schema.SettledRerun || d.How == schema.SettledAdopted && !c.late && len(d.Result) == 0 && len(d.Refs) == 0 {
		return false
	}
	c.doubt = false
	m.decided(c)
	if d.How == schema.SettledRerun {
		c.late, c.given, c.epoch = false, "", m.epoch
		c.requested, c.again = c.requested || control, control
		if control {
			c.barred, c.denied = false, false
		}
		return true
	}
	c.closed, c.closedInItsTurn = true, c.turn == m.turn
	m.unnamed(c)
	c.outcome, c.result = schema.OutcomeReturned, string(d.Result)
	switch {
	case d.How == schema.SettledAbandoned:
		c.outcome = schema.OutcomeAbandoned
	case d.How == schema.SettledAdopted && len(d.Result) == 0 && len(d.Refs) == 0:
		c.result = c.given
		if c.givenFailure {
			c.outcome = schema.OutcomeFailed
		}
	}
	m.over()
	return true
}

// unsure: an executor of an earlier epoch may have run the call.
func (m *Model) unsure(c *call) bool {
	return c.doubt || c.requested && free(c.replay) && c.epoch < m.epoch
}

// free: a call of the policy may run again without asking.
func free(p schema.Replay) bool { return p == schema.ReplayPure || p == schema.ReplayIdempotent }

func (c *call) key() schema.CallKey {
	return schema.CallKey{Turn: c.turn, ToolCallID: c.id, Occurrence: c.occurrence}
}

// name notes which call a wait is about.
func (m *Model) name(e *schema.Event, d *schema.RunWaitingData) {
	delete(m.asked, d.InterruptID)
	delete(m.named, d.InterruptID)
	m.hears[d.InterruptID] = d.Reason == schema.WaitSignal
	if d.ToolCallID == "" {
		return
	}
	key := schema.CallKey{Turn: m.turnOf(e), ToolCallID: d.ToolCallID, Occurrence: max(d.Occurrence, 1)}
	if c := m.find(e.Turn, d.ToolCallID, d.Occurrence); c != nil {
		key = c.key()
	}
	m.named[d.InterruptID], m.asked[d.InterruptID] = key, d.Reason == schema.WaitToolApproval
}

// answer records the model's message and calls.
func (m *Model) answer(d *schema.TurnAnsweredData) bool {
	if d.Turn < m.turn || d.Turn == m.turn && (m.answered || !m.open) {
		return false
	}
	next := map[string]int{}
	for _, c := range m.calls {
		if c.turn == d.Turn {
			next[c.id]++
		}
	}
	calls := make([]*call, len(d.Calls))
	for i := range d.Calls {
		r := &d.Calls[i]
		next[r.ToolCallID]++
		calls[i] = &call{turn: d.Turn, id: r.ToolCallID, name: r.Name, replay: policy(r.Replay), epoch: m.epoch, occurrence: next[r.ToolCallID], outcome: schema.OutcomeOpen, requested: true, scope: m.scope()}
		if r.Occurrence != 0 && r.Occurrence != calls[i].occurrence {
			return false
		}
		if r.Error != nil {
			calls[i].closed, calls[i].requested, calls[i].closedInItsTurn = true, false, true
			calls[i].outcome, calls[i].result = schema.OutcomeFailed, r.Error.Message
		}
	}
	m.Beyond = m.Beyond || m.openCalls()+len(calls) > schema.MaxOpenCalls || len(calls) > schema.MaxTurnCalls
	if d.Turn > m.turn {
		m.begin(d.Turn)
	}
	m.answered = true
	m.ofTurn()
	m.say(d.Turn, []schema.Message{d.Message}, true)
	m.calls = append(m.calls, calls...)
	m.over()
	return true
}

// over ends an answered turn without open calls.
func (m *Model) over() {
	if m.open && m.answered && !slices.ContainsFunc(m.calls, func(c *call) bool { return !c.closed && c.turn == m.turn }) {
		m.open = false
		m.finished()
	}
}

// abandon closes calls that will never begin; all: also those that a person wants run again. Their waits end.
func (m *Model) abandon(all bool) {
	for _, c := range m.calls {
		if !c.closed && c.requested && (all || !c.again) {
			m.unnamed(c)
			c.closed, c.requested, c.closedInItsTurn, c.outcome = true, false, c.turn == m.turn, schema.OutcomeAbandoned
		}
	}
}

// unnamed ends the waiting that is about a closed call.
func (m *Model) unnamed(c *call) {
	for id, key := range m.named {
		if key == c.key() {
			delete(m.waits, id)
		}
	}
}

// turnOf is the turn of an event about a call: its own, the latest, or the first.
func (m *Model) turnOf(e *schema.Event) int32 {
	if e.Turn != 0 {
		return e.Turn
	}
	return max(m.turn, 1)
}

// called begins a call.
func (m *Model) called(e *schema.Event, d *schema.ToolCalledData) bool {
	turn, occurrence, running := m.turnOf(e), 1, false
	for _, c := range m.calls {
		if c.turn != turn || c.id != d.ToolCallID {
			continue
		}
		occurrence++
		if c.closed || d.Occurrence != 0 && d.Occurrence != c.occurrence {
			continue
		}
		if c.requested && !d.Requested {
			return m.begins(c, d)
		}
		running = true
	}
	if turn < m.turn || running || turn == m.turn && !m.open || d.Occurrence != 0 && d.Occurrence != occurrence {
		return false
	}
	m.Beyond = m.Beyond || m.openCalls() >= schema.MaxOpenCalls || occurrence > schema.MaxTurnCalls
	if turn > m.turn {
		m.begin(turn)
	}
	m.calls = append(m.calls, &call{
		turn: turn, id: d.ToolCallID, name: d.Name, replay: policy(d.Replay), epoch: m.epoch, occurrence: occurrence, outcome: schema.OutcomeOpen, requested: d.Requested, scope: m.scope(),
	})
	return true
}

// approving says that a person is asked whether a call may run.
func (m *Model) approving(c *call) bool {
	for id := range m.waits {
		if m.asked[id] && m.named[id] == c.key() {
			return true
		}
	}
	return false
}

// decide applies a binding decision. A denied call stays denied, and a person decides about a call that a person is
// asked about.
func (m *Model) decide(e *schema.Event, d *schema.ToolDecidedData) bool {
	c := m.find(e.Turn, d.ToolCallID, d.Occurrence)
	if c == nil || d.Mode == "observe" || d.Policy == "waymark.begin" {
		return true
	}
	if d.Decision == schema.DecisionAllow && (c.denied || m.approving(c)) {
		return false
	}
	c.barred, c.denied = d.Decision != schema.DecisionAllow, d.Decision == schema.DecisionDeny
	return true
}

// begins begins a requested call.
func (m *Model) begins(c *call, d *schema.ToolCalledData) bool {
	stricter := d.Replay != "" && strictness(d.Replay) > strictness(c.replay)
	if c.name != d.Name || c.barred || stricter && free(c.replay) && !free(d.Replay) && c.epoch < m.epoch {
		return false
	}
	if m.approving(c) {
		return false
	}
	c.requested, c.again, c.epoch = false, false, m.epoch
	if stricter {
		c.replay = d.Replay
	}
	return true
}

func strictness(p schema.Replay) int {
	return slices.Index([]schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayVerify, schema.ReplayHold}, p)
}

// decided ends the waiting for the settlement of a call.
func (m *Model) decided(c *call) {
	maps.DeleteFunc(m.waits, func(_ string, about *call) bool { return about == c })
}

func (m *Model) openCalls() int {
	n := 0
	for _, c := range m.calls {
		if !c.closed {
			n++
		}
	}
	return n
}

// find returns an open call with the id: of the turn, or the newest. Without an occurrence, a call that has begun
// comes first.
func (m *Model) find(turn int32, id string, occurrence int) *call {
	var of []*call
	for _, c := range slices.Backward(m.calls) {
		if c.closed || c.id != id || turn != 0 && c.turn != turn || occurrence != 0 && c.occurrence != occurrence || len(of) > 0 && of[0].turn != c.turn {
			continue
		}
		of = append([]*call{c}, of...)
	}
	for _, c := range of {
		if !c.requested {
			return c
		}
	}
	if len(of) > 0 {
		return of[0]
	}
	return nil
}

func (m *Model) close(e *schema.Event, id string, occurrence int, outcome schema.Outcome, result string) schema.VerdictKind {
	if c := m.find(e.Turn, id, occurrence); c != nil {
		if outcome == schema.OutcomeReturned && (c.barred || m.approving(c)) {
			return schema.Rejected
		}
		c.closed, c.doubt, c.requested, c.closedInItsTurn = true, false, false, c.turn == m.turn
		c.outcome, c.result = outcome, result
		m.unnamed(c)
		m.over()
		return schema.Applied
	}
	for _, c := range m.calls {
		if c.closedInItsTurn && c.turn == m.turn && c.id == id && (e.Turn == 0 || e.Turn == m.turn) {
			return schema.Evidence
		}
	}
	return schema.Rejected
}

func (m *Model) late(rec *schema.Record, e *schema.Event, data schema.Data, err error, content [32]byte, key string) schema.VerdictKind {
	if err != nil || m.ended {
		return schema.Rejected
	}
	id, occurrence, given, failure := "", 0, "", false
	switch d := data.(type) {
	case *schema.ToolReturnedData:
		id, occurrence, given = d.ToolCallID, d.Occurrence, string(d.Result)
	case *schema.ToolFailedData:
		id, occurrence, given, failure = d.ToolCallID, d.Occurrence, d.Error.Message, true
	default:
		return schema.Rejected
	}
	c := m.find(e.Turn, id, occurrence)
	if c == nil || !c.doubt || c.late || c.epoch > max(e.Epoch, 1) {
		return schema.Rejected
	}
	c.late, c.given, c.givenFailure = true, given, failure
	m.decided(c)
	m.accept(rec, e, content, key, true)
	return schema.Evidence
}
