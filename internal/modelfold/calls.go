package modelfold

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
		c.requested = c.requested || control
		return true
	}
	c.closed, c.closedInItsTurn = true, c.turn == m.turn
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
	mayRun := c.replay == schema.ReplayPure || c.replay == schema.ReplayIdempotent
	return c.doubt || c.requested && mayRun && c.epoch < m.epoch
}

// answer records what the model said and asks for.
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
		calls[i] = &call{turn: d.Turn, id: r.ToolCallID, name: r.Name, replay: policy(r.Replay), epoch: m.epoch, occurrence: next[r.ToolCallID], outcome: schema.OutcomeOpen, requested: true}
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

// abandon closes what nobody begins any more.
func (m *Model) abandon() {
	for _, c := range m.calls {
		if !c.closed && c.requested {
			c.closed, c.requested, c.closedInItsTurn, c.outcome = true, false, c.turn == m.turn, schema.OutcomeAbandoned
		}
	}
}

// called begins a call.
func (m *Model) called(e *schema.Event, d *schema.ToolCalledData) bool {
	turn := e.Turn
	if turn == 0 {
		turn = m.turn
	}
	if turn < m.turn {
		return false
	}
	occurrence, running := 1, false
	for _, c := range m.calls {
		if c.turn != turn || turn != 0 && c.id != d.ToolCallID {
			continue
		}
		occurrence++
		if c.closed || c.id != d.ToolCallID || d.Occurrence != 0 && d.Occurrence != c.occurrence {
			continue
		}
		if c.requested && !d.Requested {
			if c.name != d.Name {
				return false
			}
			c.requested, c.epoch = false, m.epoch
			if d.Replay != "" && strictness(d.Replay) > strictness(c.replay) {
				c.replay = d.Replay
			}
			return true
		}
		running = true
	}
	if running || turn == m.turn && m.answered && !m.open || d.Occurrence != 0 && d.Occurrence != occurrence {
		return false
	}
	m.Beyond = m.Beyond || m.openCalls() >= schema.MaxOpenCalls
	if turn > m.turn {
		m.begin(turn)
	}
	m.calls = append(m.calls, &call{
		turn: turn, id: d.ToolCallID, name: d.Name, replay: policy(d.Replay), epoch: m.epoch, occurrence: occurrence, outcome: schema.OutcomeOpen, requested: d.Requested,
	})
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

// find returns an open call with the id: of the turn, or the newest. Without an occurrence one that is begun goes before one that is not.
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
		c.closed, c.doubt, c.requested, c.closedInItsTurn = true, false, false, c.turn == m.turn
		c.outcome, c.result = outcome, result
		m.decided(c)
		m.over()
		return schema.Applied
	}
	for _, c := range m.calls {
		if c.closedInItsTurn && c.turn == m.turn && m.turn != 0 && c.id == id && (e.Turn == 0 || e.Turn == m.turn) {
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
