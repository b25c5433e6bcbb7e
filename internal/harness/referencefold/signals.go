package referencefold

import (
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// sent opens a signal. A run without an executor needs one then.
func (m *Model) sent(d *schema.SignalSentData) bool {
	if slices.ContainsFunc(m.signals, func(s signal) bool { return s.id == d.SignalID }) || len(m.signals) == schema.MaxSignals {
		return false
	}
	m.signals = append(m.signals, signal{id: d.SignalID})
	m.endSignalWaits()
	m.woken = m.woken || m.gone != ""
	return true
}

// areOpen reports whether each id names a signal that no other turn was started with.
func (m *Model) areOpen(ids []string, turn int32) bool {
	for i, s := range m.signals {
		if slices.Contains(ids, s.id) && m.first(i) && s.turn != 0 && s.turn != turn {
			return false
		}
	}
	known := map[string]bool{}
	for _, s := range m.signals {
		known[s.id] = true
	}
	for _, id := range ids {
		if !known[id] {
			return false
		}
		known[id] = false // each once
	}
	return true
}

// first reports whether no signal before has the same id: a rewind may open two.
func (m *Model) first(i int) bool {
	return !slices.ContainsFunc(m.signals[:i], func(s signal) bool { return s.id == m.signals[i].id })
}

// take gives the signals that a turn is started with to it, and no others.
func (m *Model) take(d *schema.TurnStartedData) {
	for i := range m.signals {
		s := &m.signals[i]
		if s.turn == d.Turn {
			s.turn = 0
		}
		if slices.Contains(d.Signals, s.id) && m.first(i) {
			s.turn = d.Turn
		}
	}
	m.endSignalWaits()
}

// signalled reports whether there is a signal that is no turn's.
func (m *Model) signalled() bool {
	return slices.ContainsFunc(m.signals, func(s signal) bool { return s.turn == 0 })
}

// told reports whether there is such a signal that ends a wait under an id: a wait for a child's end needs one of that child.
func (m *Model) told(wait string) bool {
	for _, s := range m.signals {
		child, ofChild := strings.CutPrefix(wait, "child.")
		if s.turn == 0 && (!ofChild || strings.HasPrefix(s.id, "child."+child+".")) {
			return true
		}
	}
	return false
}

// endSignalWaits ends the waits for a signal if there is one for them that is no turn's.
func (m *Model) endSignalWaits() {
	maps.DeleteFunc(m.waits, func(id string, _ *call) bool { return m.hears[id] && m.told(id) })
}

// untold opens the signals again of a turn that is over without an answer.
func (m *Model) untold() {
	for i := range m.signals {
		if m.signals[i].turn == m.turn {
			m.signals[i].turn = 0
		}
	}
	m.endSignalWaits()
}

// ofTurn consumes the signals that the turn was started with.
func (m *Model) ofTurn() {
	m.consume(func(s signal) bool { return s.turn > 0 && s.turn == m.turn })
}

func (m *Model) consume(which func(signal) bool) {
	m.signals = slices.DeleteFunc(m.signals, which)
}
