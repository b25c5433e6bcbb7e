package schema

import (
	"slices"
	"strconv"
)

func (h *Head) turnStarted(e *Event, d *TurnStartedData) Verdict {
	v := Verdict{Kind: Applied, Boundary: true}
	if id := h.unknownSignal(d.Signals, d.Turn); id != "" {
		return rejected(ReasonSignal, "signal %.80q is not open", id)
	}
	switch {
	case d.Turn > h.Turn:
		v.Abandoned = h.openTurn(d.Turn)
	case d.Turn == h.Turn && h.TurnAnswered:
		return rejected(ReasonTurnOrder, "turn %d is answered; the next is %d", d.Turn, d.Turn+1)
	case d.Turn == h.Turn && h.TurnOpen && (h.Epoch > h.TurnEpoch || e.Epoch == 0):
		// The executor that opened the turn is gone, and its unfinished messages are dropped. Closed calls stay.
		h.Counts.Messages -= h.TurnMessages
		h.TurnMessages = 0
		h.TurnEpoch = h.Epoch
		v.Superseded, v.Abandoned = true, h.abandon(false)
	default:
		return rejected(ReasonTurnOrder, "turn %d, the run is at turn %d", d.Turn, h.Turn)
	}
	h.takeSignals(d.Signals, d.Turn)
	h.Build = d.Version.first(h.Build)
	if d.Purpose == PurposeRecovery {
		h.TurnPurpose = d.Purpose
	}
	h.TurnMessages += int64(len(d.Messages))
	h.Counts.Messages += int64(len(d.Messages))
	return v
}

// openTurn opens a turn. Requested calls of earlier turns are abandoned; signals that no answer consumed move to a
// later turn.
func (h *Head) openTurn(turn int32) (abandoned []CallKey) {
	abandoned = h.abandon(false)
	h.takeSignals(nil, h.Turn)
	h.Turn, h.TurnOpen, h.TurnAnswered, h.TurnEpoch = turn, true, false, h.Epoch
	h.TurnCalls, h.TurnMessages, h.TurnPurpose = nil, 0, ""
	h.Counts.Turns++
	return abandoned
}

// abandon closes requested calls and their questions; all includes calls that an operator settled as rerun.
func (h *Head) abandon(all bool) []CallKey {
	var keys []CallKey
	for i := 0; i < len(h.OpenCalls); {
		if c := &h.OpenCalls[i]; !c.State.Requested() || c.State == CallAgain && !all {
			i++
			continue
		}
		keys = append(keys, h.closeCall(i))
	}
	return keys
}

// turnOver ends an answered turn without open calls, and reports whether it did.
func (h *Head) turnOver() bool {
	over := h.TurnOpen && h.TurnAnswered && !slices.ContainsFunc(h.OpenCalls, func(c OpenCall) bool { return c.Turn == h.Turn })
	h.TurnOpen = h.TurnOpen && !over
	return over
}

func (h *Head) turnAnswered(e *Event, d *TurnAnsweredData) Verdict {
	opened := d.Turn > h.Turn
	switch {
	case opened:
	case d.Turn < h.Turn:
		return rejected(ReasonTurnOrder, "answer to turn %d, the run is at turn %d", d.Turn, h.Turn)
	case h.TurnAnswered:
		return rejected(ReasonTurnOrder, "turn %d is answered; the next is %d", d.Turn, d.Turn+1)
	case !h.TurnOpen:
		return rejected(ReasonTurnOrder, "turn %d has ended", d.Turn)
	}
	room := h.roomOf(d.Turn, len(d.Calls))
	for i := range d.Calls {
		if c := &d.Calls[i]; c.Error == nil {
			if v := room.take(c.ToolCallID, c.Name, false); v.Kind != 0 {
				return v
			}
		}
	}
	keys := make([]CallKey, len(d.Calls))
	for i := range d.Calls {
		c := &d.Calls[i]
		keys[i] = CallKey{Turn: d.Turn, ToolCallID: c.ToolCallID, Occurrence: h.CallsOf(d.Turn, c.ToolCallID) + 1}
		for _, earlier := range keys[:i] {
			if earlier.ToolCallID == c.ToolCallID {
				keys[i].Occurrence++
			}
		}
		if c.Occurrence != 0 && c.Occurrence != keys[i].Occurrence {
			return rejected(ReasonInvalidData, "call %.80q of turn %d is occurrence %d, and says %d", c.ToolCallID, d.Turn, keys[i].Occurrence, c.Occurrence)
		}
	}
	v := Verdict{Kind: Applied, Boundary: true, Calls: nilIfEmpty(keys), Opened: opened}
	if opened {
		v.Abandoned = h.openTurn(d.Turn)
	}
	h.TurnAnswered = true
	h.consumeSignals(d.Turn)
	h.TurnMessages++
	h.Counts.Messages++
	if d.Usage != nil {
		h.Usage.add(*d.Usage)
	}
	scope := h.scope()
	for i := range d.Calls {
		c := &d.Calls[i]
		h.Counts.ToolCalls++
		if c.Error != nil {
			h.Counts.ToolFailures++
			// Closed calls beyond a cap are in the log and the state, but not in the head.
			if room.take(c.ToolCallID, c.Name, true).Kind == 0 {
				h.TurnCalls = append(h.TurnCalls, c.ToolCallID)
			}
			continue
		}
		h.OpenCalls = append(h.OpenCalls, OpenCall{
			CallKey: keys[i], Name: shown(c.Name, d.Refs, "/calls/"+strconv.Itoa(i)+"/name"), Replay: c.Replay.orHold(), Since: e.Time, Epoch: h.Epoch, State: CallRequested, Scope: scope,
		})
	}
	v.Over = h.turnOver()
	return v
}

func (h *Head) turnEnded(d *TurnEndedData) Verdict {
	v := Verdict{Kind: Applied, Boundary: true, Over: true}
	switch {
	case d.Turn == h.Turn && h.TurnOpen:
		v.Abandoned = h.abandon(false)
	case d.Turn == h.Turn && h.TurnAnswered:
		// The turn ended with the last outcome of its calls. Messages and an error that arrive later are kept.
		v.Over, v.Boundary = false, len(d.Messages) > 0 || d.Error != nil
	case d.Turn > h.Turn:
		// An executor that only reports the ends of turns.
		v.Abandoned = h.openTurn(d.Turn)
	default:
		return rejected(ReasonTurnOrder, "turn %d is not open, the run is at turn %d", d.Turn, h.Turn)
	}
	h.TurnOpen = false
	h.takeSignals(nil, h.Turn)
	h.Counts.Messages += int64(len(d.Messages))
	if d.Usage != nil && !h.TurnAnswered {
		h.Usage.add(*d.Usage)
	}
	if d.Error != nil {
		h.setError(d.Error, d.Refs)
	}
	return v
}

// callTurn is the turn of an event about a call; without the attribute it is the latest. Each call belongs to a turn:
// in a run without turns it is turn 1.
func (h *Head) callTurn(e *Event) int32 {
	if e.Turn != 0 {
		return e.Turn
	}
	return max(h.Turn, 1)
}

// inOpenTurn reports whether an event belongs to the open turn; without a turn attribute it does.
func (h *Head) inOpenTurn(e *Event) bool {
	return h.TurnOpen && (e.Turn == 0 || e.Turn == h.Turn)
}

// callRoom is how much of their caps the calls of a turn and all open calls use.
type callRoom struct {
	turn               int32
	open, inTurn, size int
}

// roomOf counts the room in use before more calls of a turn. If they open the turn, calls requested before are
// abandoned and do not count.
func (h *Head) roomOf(turn int32, more int) callRoom {
	opened := turn > h.Turn
	r := callRoom{turn: turn, open: len(h.OpenCalls), inTurn: len(h.TurnCalls), size: h.callBytes(opened, more)}
	if opened {
		r.inTurn = 0
	}
	for i := range h.OpenCalls {
		switch c := &h.OpenCalls[i]; {
		case opened && c.State == CallRequested:
			r.open--
		case !opened && c.Turn == turn:
			r.inTurn++
		}
	}
	return r
}

// take refuses a call that would pass a cap. A closed call counts only as a call of its turn.
func (r *callRoom) take(id, name string, closed bool) Verdict {
	next := *r
	next.inTurn++
	next.size += len(id)
	if !closed {
		next.open++
		next.size += len(excerpt(name))
	}
	switch {
	case next.open > MaxOpenCalls:
		return rejected(ReasonTooMany, "more than %d calls would be open", MaxOpenCalls)
	case next.inTurn > MaxTurnCalls:
		return rejected(ReasonTooMany, "turn %d would have more than %d calls", r.turn, MaxTurnCalls)
	case next.size > MaxCallBytes:
		return rejected(ReasonTooMany, "the ids and names of the turn's and all open calls pass %d bytes", MaxCallBytes)
	}
	*r = next
	return Verdict{}
}

// CallRoom returns how many calls of an answer, in order, fit besides the open ones.
func (h *Head) CallRoom(turn int32, calls []RequestedCall) int {
	room := h.roomOf(turn, len(calls))
	for i := range calls {
		if room.take(calls[i].ToolCallID, calls[i].Name, calls[i].Error != nil).Kind != 0 {
			return i
		}
	}
	return len(calls)
}

// CallsOf counts the calls of a turn with an id: open ones, and of the latest turn closed ones, too.
func (h *Head) CallsOf(turn int32, id string) int {
	n := 0
	if turn == h.Turn {
		for _, closed := range h.TurnCalls {
			if closed == id {
				n++
			}
		}
	}
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.Turn == turn && c.ToolCallID == id {
			n++
		}
	}
	return n
}

// toolCalled begins a requested call, or records and begins one that was not requested.
func (h *Head) toolCalled(e *Event, d *ToolCalledData) Verdict {
	turn, begun := h.callTurn(e), -1
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		switch {
		case c.Turn != turn || c.ToolCallID != d.ToolCallID || d.Occurrence != 0 && d.Occurrence != c.Occurrence:
		case c.State.Requested() && !d.Requested:
			return h.begin(c, d)
		default:
			begun = i
		}
	}
	opened := turn > h.Turn
	switch {
	case turn < h.Turn:
		return rejected(ReasonTurnOrder, "call of turn %d, the run is at turn %d", turn, h.Turn)
	case begun >= 0:
		return rejected(ReasonCallOpen, "call %.80q of turn %d is open", d.ToolCallID, turn)
	case turn == h.Turn && !h.TurnOpen:
		return rejected(ReasonTurnOrder, "call of turn %d, which has ended", turn)
	}
	room := h.roomOf(turn, 1)
	if v := room.take(d.ToolCallID, d.Name, false); v.Kind != 0 {
		return v
	}
	key := CallKey{Turn: turn, ToolCallID: d.ToolCallID, Occurrence: h.CallsOf(turn, d.ToolCallID) + 1}
	if d.Occurrence != 0 && d.Occurrence != key.Occurrence {
		return rejected(ReasonInvalidData, "call %.80q of turn %d is occurrence %d, and says %d", d.ToolCallID, turn, key.Occurrence, d.Occurrence)
	}
	v := Verdict{Kind: Applied, Boundary: true, Call: key, Opened: opened}
	if opened {
		v.Abandoned = h.openTurn(turn)
	}
	state := CallBegun
	if d.Requested {
		state = CallRequested
	}
	h.OpenCalls = append(h.OpenCalls, OpenCall{
		CallKey: key, Name: shown(d.Name, d.Refs, "/name"), Replay: d.Replay.orHold(), Since: e.Time, Epoch: h.Epoch, State: state, Scope: h.scope(),
	})
	h.Counts.ToolCalls++
	return v
}

// begin records that the tool of a requested call is about to run.
func (h *Head) begin(c *OpenCall, d *ToolCalledData) Verdict {
	if name := excerpt(d.Name); name != c.Name && c.Name != EncryptedText {
		return rejected(ReasonInvalidData, "call %.80q of turn %d is requested of tool %.80q, and begun of %.80q", c.ToolCallID, c.Turn, c.Name, name)
	}
	policy := c.Replay
	if d.Replay != "" {
		policy = Stricter(policy, d.Replay)
	}
	switch {
	case !h.allowed(c):
		return rejected(ReasonNotAllowed, "call %.80q of turn %d is not allowed", c.ToolCallID, c.Turn)
	case !policy.Rerunnable() && c.MayHaveRun(h.Epoch):
		return rejected(ReasonCallOpen, "call %.80q of turn %d is recorded as %s and may have run: ask a person, or the tool, first", c.ToolCallID, c.Turn, c.Replay)
	}
	c.State, c.Epoch, c.Replay = CallBegun, h.Epoch, policy
	return Verdict{Kind: Applied, Boundary: true, Call: c.CallKey, Begun: true}
}

// allowed reports whether no recorded decision and no open question forbids a call.
func (h *Head) allowed(c *OpenCall) bool { return c.Decision == "" && !h.approving(c.CallKey) }

// approving reports whether a person is asked about a call.
func (h *Head) approving(key CallKey) bool {
	return slices.ContainsFunc(h.Interrupts, func(o OpenInterrupt) bool { return o.Reason == WaitToolApproval && o.CallKey() == key })
}

// callBytes returns the size of call ids and names in the head before more are added; calls of the turn are dropped
// when a new turn opens. A small number of calls cannot pass the cap and is not counted.
func (h *Head) callBytes(newTurn bool, more int) int {
	n := 0
	if len(h.OpenCalls)+len(h.TurnCalls)+more < MaxCallBytes/(2*(MaxIdentifier+len("…"))) {
		return n
	}
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; !newTurn || c.State != CallRequested {
			n += len(c.ToolCallID) + len(c.Name) + len(c.Scope)
		}
	}
	if !newTurn {
		for _, id := range h.TurnCalls {
			n += len(id)
		}
	}
	return n
}

func (h *Head) toolClosed(e *Event, id string, occurrence int, count *int64) Verdict {
	i := h.FindOpen(e.Turn, id, occurrence)
	if i < 0 {
		if (e.Turn == 0 || e.Turn == h.Turn) && slices.Contains(h.TurnCalls, id) {
			// A further result of a settled call: the log keeps it as evidence, the first result counts.
			return Verdict{Kind: Evidence}
		}
		return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", id, h.callTurn(e))
	}
	*count++
	return h.closed(i)
}

// closed closes a call by an event, and its turn after the last call of an answer.
func (h *Head) closed(i int) Verdict {
	v := Verdict{Kind: Applied, Boundary: true, Call: h.closeCall(i)}
	v.Over = h.turnOver()
	return v
}

// closeCall removes a call from the open ones, with the questions to people about it.
func (h *Head) closeCall(i int) CallKey {
	key := h.OpenCalls[i].CallKey
	h.OpenCalls = nilIfEmpty(slices.Delete(h.OpenCalls, i, i+1))
	h.unasked(func(o *OpenInterrupt) bool { return o.ToolCallID != "" && o.CallKey() == key })
	if key.Turn == h.Turn {
		h.TurnCalls = append(h.TurnCalls, key.ToolCallID)
	}
	return key
}

func (h *Head) toolSettled(e *Event, p *place, d *ToolSettledData) Verdict {
	i := h.FindOpen(e.Turn, d.ToolCallID, d.Occurrence)
	if i < 0 {
		return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", d.ToolCallID, h.callTurn(e))
	}
	c := &h.OpenCalls[i]
	// An ended run has no executor: a person settles each open call, and no executor can run it again.
	ended := h.Status.Terminal()
	if ended && d.How == SettledRerun {
		return rejected(ReasonRunEnded, "the run is %s, and a call runs again only after a resume with reason reopen", h.Status)
	}
	if !c.MayHaveRun(h.Epoch) && !ended {
		return rejected(ReasonNotInDoubt, "call %.80q of turn %d is not in doubt", d.ToolCallID, c.Turn)
	}
	if d.How == SettledAdopted && c.State != CallLate && len(d.Result) == 0 && len(d.Refs) == 0 {
		return rejected(ReasonInvalidData, "call %.80q has no late result to adopt", d.ToolCallID)
	}
	h.Counts.Settled++
	if d.How == SettledRerun {
		h.noDoubt(c.CallKey)
		c.Epoch = h.Epoch
		switch {
		case p.control:
			c.State, c.Decision = CallAgain, "" // a person's decision, not an executor's
		case c.State.InDoubt():
			c.State = CallBegun // an executor's own settlement begins the call
		}
		return Verdict{Kind: Applied, Boundary: true, Call: c.CallKey}
	}
	return h.closed(i)
}
