package modelfold

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

func (m *Model) settle(e *schema.Event, d *schema.ToolSettledData, control bool) bool {
	c := m.find(e.Turn, d.ToolCallID, false)
	if c == nil || !c.doubt && !m.ended || m.ended && d.How == schema.SettledRerun || d.How == schema.SettledAdopted && !c.late && len(d.Result) == 0 && len(d.Refs) == 0 {
		return false
	}
	c.doubt, c.cleared = false, 0
	m.decided(c)
	if d.How == schema.SettledRerun {
		c.late, c.given, c.epoch = false, "", m.epoch
		if control {
			c.cleared = len(m.Accepted)
		}
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
	return true
}

// clear says that nobody can have begun the call since an operator settled it.
func (m *Model) clear(c *call) bool { return !c.closed && c.cleared > m.wrote }

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

// find returns the newest open call; exact forbids turn 0 as "any".
func (m *Model) find(turn int32, id string, exact bool) *call {
	for _, c := range slices.Backward(m.calls) {
		if !c.closed && c.id == id && (c.turn == turn || !exact && turn == 0) {
			return c
		}
	}
	return nil
}

func (m *Model) close(e *schema.Event, id string, outcome schema.Outcome, result string) schema.VerdictKind {
	if c := m.find(e.Turn, id, false); c != nil {
		c.closed, c.doubt, c.closedInItsTurn = true, false, c.turn == m.turn
		c.outcome, c.result = outcome, result
		m.decided(c)
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
	id, given, failure := "", "", false
	switch d := data.(type) {
	case *schema.ToolReturnedData:
		id, given = d.ToolCallID, string(d.Result)
	case *schema.ToolFailedData:
		id, given, failure = d.ToolCallID, d.Error.Message, true
	default:
		return schema.Rejected
	}
	c := m.find(e.Turn, id, false)
	if c == nil || !c.doubt || c.late || c.epoch > max(e.Epoch, 1) {
		return schema.Rejected
	}
	c.late, c.given, c.givenFailure = true, given, failure
	m.decided(c)
	m.accept(rec, e, content, key, true)
	return schema.Evidence
}

// asks follows what a person is asked: whether a call may run, or something else.
func (m *Model) asks(e *schema.Event, d *schema.RunWaitingData) {
	delete(m.approvals, d.InterruptID)
	if d.Reason != schema.WaitToolApproval {
		return
	}
	key := schema.CallKey{Turn: e.Turn, ToolCallID: d.ToolCallID, Occurrence: max(d.Occurrence, 1)}
	if key.Turn == 0 {
		key.Turn = m.turn
	}
	if c := m.find(e.Turn, d.ToolCallID, false); c != nil && (d.Occurrence == 0 || d.Occurrence == c.occurrence) {
		key.Turn, key.Occurrence = c.turn, c.occurrence
	}
	m.approvals[d.InterruptID] = key
}

// allow notes a person's word that a call may run.
func (m *Model) allow(d *schema.RunInputData) {
	key, asked := m.approvals[d.InterruptID]
	if _, open := m.waits[d.InterruptID]; !open || !asked || d.Status != "" && d.Status != schema.InputResolved {
		return
	}
	var answer map[string]any
	if err := json.Unmarshal(d.Payload, &answer); err != nil || answer["decision"] != schema.DecisionAllow {
		return
	}
	for _, c := range m.calls {
		if !c.closed && c.turn == key.Turn && c.id == key.ToolCallID && c.occurrence == key.Occurrence {
			c.allowed = true
		}
	}
}
