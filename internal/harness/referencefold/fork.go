package referencefold

import (
	"slices"
	"strconv"

	"github.com/waymarkio/waymark/schema"
)

// fork begins a run at another one's head.
func (m *Model) fork(was *schema.Head) {
	m.turn, m.open, m.answered, m.openedIn = was.Turn, was.TurnOpen, was.TurnAnswered, 0
	closed := func(turn int32, id string) {
		m.calls = append(m.calls, &call{turn: turn, id: id, closed: true, closedInItsTurn: true})
	}
	for _, id := range was.TurnCalls {
		closed(was.Turn, id)
	}
	for _, o := range was.OpenCalls {
		c := &call{
			turn: o.Turn, id: o.ToolCallID, name: o.Name, replay: o.Replay, occurrence: o.Occurrence, epoch: m.epoch, doubt: true, late: o.State == schema.CallLate, outcome: schema.OutcomeOpen,
		}
		c.requested = o.State.Requested() && free(o.Replay)
		c.doubt = !c.requested
		if c.requested {
			c.epoch = 0
		}
		c.again, c.barred, c.denied, c.scope = o.State == schema.CallAgain && c.requested, o.Decision != "", o.Decision == schema.DecisionDeny, o.Scope
		if c.scope == "" && was.Run != m.run {
			c.scope = was.Run
		}
		m.calls = append(m.calls, c)
	}
	for _, p := range was.CompletedPhases {
		m.phases[p] = true
	}
	for _, w := range was.Interrupts {
		m.waits[w.InterruptID] = nil
		m.hears[w.InterruptID] = w.Reason == schema.WaitSignal
		if w.ToolCallID != "" {
			m.named[w.InterruptID], m.asked[w.InterruptID] = w.CallKey(), w.Reason == schema.WaitToolApproval
		}
		for _, c := range m.calls {
			if key := w.CallKey(); w.Reason == schema.WaitToolInDoubt && !c.closed && c.turn == key.Turn && c.id == key.ToolCallID && c.occurrence == key.Occurrence {
				m.waits[w.InterruptID] = c
			}
		}
	}
}

// mayRewind reports whether the run may continue after its own record; nil is no rewind.
func (m *Model) mayRewind(to *schema.Base) bool {
	return to == nil || to.Run == m.run && to.Records < m.records && to.Head.Records == to.Records && len(to.Head.Superseded) < schema.MaxRewinds && rangesFit(to)
}

// rangesFit reports whether the abandoned ranges before a rewind's record are valid, one after the other, each
// followed by its rewind.
func rangesFit(to *schema.Base) bool {
	free := int64(1)
	for _, r := range to.Head.Superseded {
		if r.After < free || r.Through < r.After || r.Epoch < 1 || r.Epoch > to.Head.Epoch {
			return false
		}
		free = r.Through + 1
	}
	return free == 1 || free <= to.Records
}

// scope of the idempotency keys of new calls, where the run's id will not do.
func (m *Model) scope() string {
	if n := len(m.superseded); n > 0 {
		return m.run + "@" + strconv.FormatInt(int64(m.superseded[n-1].Epoch), 10)
	}
	return ""
}

// rewind continues after an earlier record. The model keeps no records, so messages up to there are not in it any
// more.
func (m *Model) rewind(to *schema.Base, at string) {
	m.calls, m.messages, m.signals = nil, nil, nil
	clear(m.phases)
	clear(m.waits)
	clear(m.named)
	clear(m.asked)
	clear(m.hears)
	m.fork(&to.Head)
	for i, c := range slices.DeleteFunc(slices.Clone(m.calls), func(c *call) bool { return c.closed }) {
		c.epoch = to.Head.OpenCalls[i].Epoch
	}
	for _, s := range to.Head.Signals {
		m.signals = append(m.signals, signal{s.SignalID, s.Turn})
	}
	m.endSignalWaits()
	m.cancelled = false
	m.superseded = append(withoutTokens(to.Head.Superseded), schema.Superseded{After: to.Records, Through: m.records - 1, Epoch: m.epoch, Time: at})
}

// withoutTokens returns ranges without what they used: the model has no usage.
func withoutTokens(ranges []schema.Superseded) []schema.Superseded {
	list := slices.Clone(ranges)
	for i := range list {
		list[i].Tokens = 0
	}
	return list
}
