package schema

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxSignals bounds the signals of a run that are not consumed yet.
	MaxSignals = 64
	// MaxSignalPayload bounds a signal's payload in the service, in bytes of JSON.
	MaxSignalPayload = 64 << 10
	// MaxEncryptedSignal bounds a payload that is encrypted: the same content, with nonce and tag, in base64.
	MaxEncryptedSignal = MaxSignalPayload/3*4 + 128
)

// SignalRequest sends a signal into a run that has not ended. A repeat with the same id, name and payload gets the
// first answer, from any sender; another signal with the id is refused.
type SignalRequest struct {
	// SignalID is the sender's id of the signal, unique in the run. Required.
	SignalID string `json:"signal_id"`
	// Name tells the agent what the signal is about. Required.
	Name string `json:"name"`
	// Payload is any JSON of at most [MaxSignalPayload] bytes.
	Payload jsontext.Value `json:"payload,omitzero"`
	// Refs mark the payload as encrypted; other refs are refused. Its cipher text may be [MaxEncryptedSignal] bytes
	// long.
	Refs []Ref `json:"refs,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// SignalSentData sends a message into a run that has not ended, whatever its status. Control event. The run's signals
// are in log order, and each is consumed once.
type SignalSentData struct {
	// SignalID is the sender's id of the signal, unique in the run. Required.
	SignalID string `json:"signal_id" check:"required,max=256,text"`
	// Name tells the agent what the signal is about. Required.
	Name    string         `json:"name" check:"required,max=256,text"`
	Payload jsontext.Value `json:"payload,omitzero" content:"large"`
	By      string         `json:"by,omitzero"`
	Claimed string         `json:"claimed,omitzero"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*SignalSentData) EventName() string { return SignalSent }

// SignalConsumedData says that the executor has acted on signals. An agent that passes a signal to the model names it
// in turn.started instead, in the event that has the message: then no crash can separate the two.
type SignalConsumedData struct {
	// SignalIDs are open signals of the run. Required.
	SignalIDs []string       `json:"signal_ids" check:"required,max=64" each:"required,max=256,text"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*SignalConsumedData) EventName() string { return SignalConsumed }

// OpenSignal is a signal that is not consumed.
type OpenSignal struct {
	SignalID string `json:"signal_id" check:"max=259,text"`
	Name     string `json:"name" check:"max=259,text"`
	Since    string `json:"since,omitzero" check:"time"`
	// Position of signal.sent, which has the payload.
	Position Position `json:"position"`
	// Turn whose start named the signal; 0 for none. The answer of the turn consumes it. A turn that starts again
	// names it again. If the turn ends without an answer, it becomes 0, and a later turn can name it.
	Turn int32 `json:"turn,omitzero" check:"min=0"`
}

func (h *Head) signal(id string) int {
	return slices.IndexFunc(h.Signals, func(s OpenSignal) bool { return s.SignalID == id })
}

func (h *Head) signalSent(e *Event, p *place, d *SignalSentData) Verdict {
	switch {
	case h.signal(d.SignalID) >= 0:
		return rejected(ReasonSignal, "signal %.80q is open already", d.SignalID)
	case len(h.Signals) >= MaxSignals:
		return rejected(ReasonTooMany, "the run has %d signals that are not consumed", MaxSignals)
	}
	h.Signals = append(h.Signals, OpenSignal{SignalID: d.SignalID, Name: excerpt(d.Name), Since: e.Time, Position: p.at})
	h.endSignalWaits()
	h.unattended() // a run without an executor gets one
	return Verdict{Kind: Applied, Boundary: true}
}

// Signalled reports whether the run has a signal with which no turn was started.
func (h *Head) Signalled() bool { return h.hears("") }

// hears reports whether the run has such a signal that ends a wait under an interrupt id; see [Hears].
func (h *Head) hears(interruptID string) bool {
	return slices.ContainsFunc(h.Signals, func(s OpenSignal) bool { return s.Turn == 0 && Hears(interruptID, s.SignalID) })
}

// endSignalWaits ends the waits for a signal once there is one.
func (h *Head) endSignalWaits() {
	h.unasked(func(o *OpenInterrupt) bool { return o.Reason == WaitSignal && h.hears(o.InterruptID) })
}

// unknownSignal returns the first id that names no open signal, or that occurs twice; "" if there is none. Signals of
// the same turn count as open, for a turn that starts again.
func (h *Head) unknownSignal(ids []string, turn int32) string {
	for i, id := range ids {
		at := h.signal(id)
		if at < 0 || h.Signals[at].Turn != 0 && h.Signals[at].Turn != turn || slices.Contains(ids[:i], id) {
			return id
		}
	}
	return ""
}

// takeSignals assigns open signals to a turn that starts, and takes the others from it: the turn is started again, or
// is over.
func (h *Head) takeSignals(ids []string, turn int32) {
	for i := range h.Signals {
		switch s := &h.Signals[i]; {
		case slices.Contains(ids, s.SignalID):
			s.Turn = turn
		case s.Turn == turn:
			s.Turn = 0
		}
	}
	h.endSignalWaits()
}

// consumeSignals consumes the signals of a turn, and those with the ids.
func (h *Head) consumeSignals(turn int32, ids ...string) {
	if len(h.Signals) == 0 {
		return
	}
	h.Signals = nilIfEmpty(slices.DeleteFunc(h.Signals, func(s OpenSignal) bool {
		return slices.Contains(ids, s.SignalID) || s.Turn != 0 && s.Turn == turn
	}))
}

func (h *Head) signalConsumed(d *SignalConsumedData) Verdict {
	if id := h.unknownSignal(d.SignalIDs, 0); id != "" {
		return rejected(ReasonSignal, "signal %.80q is not open", id)
	}
	h.consumeSignals(0, d.SignalIDs...)
	return Verdict{Kind: Applied, Boundary: true}
}

// StateSignal is a signal and what became of it.
type StateSignal struct {
	SignalSentData
	// EventID and Time of signal.sent.
	EventID string `json:"event_id"`
	Time    string `json:"time,omitzero"`
	// Turn whose start named the signal; 0 for none.
	Turn int32 `json:"turn,omitzero"`
	// ConsumedAt is the time of the event that consumed it; empty as long as it is open.
	ConsumedAt string `json:"consumed_at,omitzero"`
}

// signals updates the signals of the state from the head.
func (s *State) signals(e *Event) {
	for s.consumed < len(s.Signals) && s.Signals[s.consumed].ConsumedAt != "" {
		s.consumed++
	}
	for i := s.consumed; i < len(s.Signals); i++ {
		signal := &s.Signals[i]
		if signal.ConsumedAt != "" {
			continue
		}
		at := slices.IndexFunc(s.Head.Signals, func(o OpenSignal) bool { return o.Position.ID == signal.EventID })
		switch {
		case at < 0:
			amend(s, signalsOf, i).ConsumedAt = e.Time
		case s.Head.Signals[at].Turn != signal.Turn:
			amend(s, signalsOf, i).Turn = s.Head.Signals[at].Turn
		}
	}
}
