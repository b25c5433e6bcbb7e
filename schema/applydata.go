package schema

import (
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// controlOnly are the types that an executor never writes with its own sequence.
func controlOnly(name string) bool {
	switch name {
	case RunResumed, RunInput, RunCancelRequested, RunOrphaned, HandoffAccepted, HandoffDeclined, HandoffClosed:
		return true
	}
	return false
}

// afterEnd are the types that may follow run.ended. A person's tool.settled may, too: see [Head.toolSettled].
func afterEnd(name string) bool {
	switch name {
	case HandoffOffered, HandoffAccepted, HandoffDeclined, HandoffClosed, CheckpointMarked, RunResumed:
		return true
	}
	return false
}

// applyData changes the head by an event whose place is lawful and whose data is valid.
func (h *Head) applyData(e *Event, p *place, data Data) Verdict {
	progress := h.progress(e, p, data)
	v := h.applyKnown(e, p, data)
	if progress && v.Kind == Applied {
		h.Stalled = 0
	}
	return v
}

// progress reports whether an event, if it is lawful, brings the run to where it was not before, or is a person's word
// that it should be tried again. What a new executor repeats after each takeover does neither: an open turn that is
// started again, its messages and calls, a call settled to run again, what is waited for or offered already, a note to
// the model that it was resumed, another compaction.
func (h *Head) progress(e *Event, p *place, data Data) bool {
	switch d := data.(type) {
	case *TurnEndedData, *ToolReturnedData, *ToolFailedData, *RunInputData, *RunCancelRequestedData, *RunEndedData:
		return true
	case *ToolSettledData:
		return p.control || d.How != SettledRerun
	case *TurnStartedData:
		// A turn behind an open one counts when its writer opened both: it got that far.
		return !h.TurnOpen || d.Turn > h.Turn && h.TurnEpoch == h.Epoch
	case *MessageAddedData:
		return !h.inOpenTurn(e) && (d.Message.Role == RoleAssistant || d.Message.Role == RoleTool)
	case *PhaseCompletedData:
		return !slices.Contains(h.CompletedPhases, d.Phase)
	case *RunWaitingData:
		return h.interrupt(d.InterruptID) < 0
	case *HandoffOfferedData:
		return h.openHandoff(handoffID(e, d)) < 0
	default:
		return false
	}
}

// applyKnown is applyData without the count of claims.
func (h *Head) applyKnown(e *Event, p *place, data Data) Verdict {
	name := data.EventName()
	switch {
	case p.control && !controlOnly(name) && name != ToolSettled && name != CheckpointMarked:
		return rejected(ReasonNotControl, "%s is an executor's event and came as a control event", name)
	case e.Sequence != 0 && controlOnly(name), name == RunResumed && !p.control:
		return rejected(ReasonNotControl, "%s is a control event and came as an executor's", name)
	case h.Status.Terminal() && !afterEnd(name) && (name != ToolSettled || !p.control):
		return rejected(ReasonRunEnded, "the run is %s", h.Status)
	}
	applied := Verdict{Kind: Applied, Boundary: true}
	switch d := data.(type) {
	case *RunStartedData:
		return h.runStarted(d)
	case *RunResumedData:
		h.runResumed(e, d)
	case *RunWaitingData:
		return h.runWaiting(e, p, d)
	case *RunInputData:
		return h.runInput(d)
	case *RunCancelRequestedData:
		h.CancelRequested = true
		h.unattended()
	case *RunOrphanedData:
		if h.Unattended == "" && !h.Status.Claimable() { // how it was left stands
			h.leave(StatusOrphaned)
		}
	case *RunInterruptedData:
		if d.Reason == InterruptedShutdown && h.Stalled > 0 {
			h.Stalled-- // its executor was told to stop: that says nothing about the run
		}
		h.leave(StatusInterrupted)
	case *RunEndedData:
		h.Status = Status(d.Status)
		h.CompletedBy = d.CompletedBy
		h.EndedAt = e.Time
		h.Summary = excerpt(d.Summary)
		h.Interrupts = nil
		if d.Error != nil {
			h.setError(d.Error)
		}
	case *TurnStartedData:
		return h.turnStarted(e, d)
	case *TurnEndedData:
		return h.turnEnded(d)
	case *MessageAddedData:
		h.Counts.Messages++
		if h.inOpenTurn(e) {
			h.TurnMessages++
		}
	case *ToolCalledData:
		return h.toolCalled(e, d)
	case *ToolReturnedData:
		return h.toolClosed(e, d.ToolCallID, &h.Counts.ToolResults)
	case *ToolFailedData:
		return h.toolClosed(e, d.ToolCallID, &h.Counts.ToolFailures)
	case *ToolDecidedData:
		applied.Boundary = false
		if i := h.findOpen(e.Turn, d.ToolCallID); i >= 0 && d.Decision == DecisionAllow {
			h.OpenCalls[i].Allowed = false // it may be begun now
		}
	case *LimitReachedData:
		h.Limit = d.Limit
		applied.Boundary = false
	case *ToolSettledData:
		return h.toolSettled(e, p, d)
	case *PhaseStartedData:
		if slices.Contains(h.CompletedPhases, d.Phase) {
			return rejected(ReasonPhaseCompleted, "phase %.80q is completed and is never run again", d.Phase)
		}
		h.Phase = d.Phase
	case *PhaseCompletedData:
		if !slices.Contains(h.CompletedPhases, d.Phase) {
			if len(h.CompletedPhases) >= MaxCompletedPhases {
				return rejected(ReasonTooMany, "more than %d completed phases", MaxCompletedPhases)
			}
			h.CompletedPhases = append(h.CompletedPhases, d.Phase)
		}
		if h.Phase == d.Phase {
			h.Phase = ""
		}
	case *ContextCompactedData:
		h.Counts.Compactions++
	case *HandoffOfferedData:
		return h.handoffOffered(e, p, d)
	case *HandoffAcceptedData:
		return h.handoffAccepted(d)
	case *HandoffDeclinedData:
		return h.handoffDeclined(d.HandoffID)
	case *HandoffClosedData:
		return h.handoffOver(d.HandoffID)
	case *ArtifactAddedData:
		h.Counts.Artifacts++
		applied.Boundary = false
	case *CheckpointMarkedData:
		return h.marked(p, d)
	case *ErrorRaisedData:
		h.Counts.Errors++
		h.setError(&d.Error)
	}
	return applied
}

func nilIfEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func (h *Head) setError(e *Error) {
	h.LastError = &Error{Type: excerpt(e.Type), Message: excerpt(e.Message), Code: excerpt(e.Code), Retryable: e.Retryable}
}

func (h *Head) runStarted(d *RunStartedData) Verdict {
	if h.Agent != "" {
		return rejected(ReasonAlreadyStarted, "the run was started by agent %s", h.Agent)
	}
	if d.Base != nil {
		if h.Counts.Events != 1 || h.Epoch != 1 {
			return rejected(ReasonAlreadyStarted, "a fork begins with its base, and the run has %d events", h.Counts.Events-1)
		}
		h.fork(d.Base)
	}
	h.Agent, h.Executor, h.Instance = d.Agent, d.Executor, d.Instance
	if ValidName(d.ResumedFrom) {
		h.ResumedFrom = d.ResumedFrom
	}
	if d.Handoff != nil {
		h.Handoff = &HandoffSource{Run: d.Handoff.Run, HandoffID: d.Handoff.HandoffID, OfferHash: d.Handoff.OfferHash}
	}
	h.Task, h.ThreadID = excerpt(d.Task), d.ThreadID
	h.MaxTurns = d.MaxTurns
	if d.Parent != nil {
		h.Parent = &Parent{Run: d.Parent.Run, Turn: d.Parent.Turn, ToolCallID: d.Parent.ToolCallID}
	}
	if len(d.Labels) > 0 {
		h.Labels = maps.Clone(d.Labels)
	}
	return Verdict{Kind: Applied, Boundary: true}
}

func (h *Head) runResumed(e *Event, d *RunResumedData) {
	h.Epoch, h.Sequence = e.Epoch, 0
	h.Executor, h.Instance, h.RequestID = d.Executor, d.Instance, d.RequestID
	h.Counts.Resumes++
	if h.Status.Terminal() {
		h.EndedAt, h.Summary, h.CompletedBy, h.Limit, h.CancelRequested = "", "", "", "", false
	}
	h.Unattended = ""
	switch d.Reason {
	case TakeoverClaim, TakeoverRestart:
		h.Stalled++
	default:
		// Somebody wants it tried again.
		h.Stalled = 0
	}
	h.Status = h.active()
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		if c.Cleared {
			c.Epoch = h.Epoch
			continue
		}
		c.InDoubt = true
		c.Held = c.Replay == ReplayHold
	}
}

// leave says that the run has no executor any more. One that waits goes on waiting.
func (h *Head) leave(as Status) {
	h.Status = as
	if len(h.Interrupts) > 0 && !h.CancelRequested {
		h.Status, h.Unattended = StatusWaiting, as
	}
}

// unattended makes a run that has no executor claimable, because there is something to do for it.
func (h *Head) unattended() {
	if h.Unattended != "" {
		h.Status, h.Unattended = h.Unattended, ""
	}
}

func (h *Head) interrupt(id string) int {
	return slices.IndexFunc(h.Interrupts, func(o OpenInterrupt) bool { return o.InterruptID == id })
}

func (h *Head) runInput(d *RunInputData) Verdict {
	i := h.interrupt(d.InterruptID)
	if i < 0 {
		return rejected(ReasonUnknownInterrupt, "the run does not wait for %.80q", d.InterruptID)
	}
	h.allowed(&h.Interrupts[i], d)
	h.Interrupts = nilIfEmpty(slices.Delete(h.Interrupts, i, i+1))
	h.answered()
	return Verdict{Kind: Applied, Boundary: true}
}

// allowed notes a person's word that a call may run.
func (h *Head) allowed(o *OpenInterrupt, d *RunInputData) {
	var answer struct {
		Decision string `json:"decision"`
	}
	if o.Reason != WaitToolApproval || d.Status != "" && d.Status != InputResolved ||
		json.Unmarshal(d.Payload, &answer) != nil || answer.Decision != DecisionAllow {
		return
	}
	key := o.CallKey()
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.CallKey == key {
			c.Allowed = true
		}
	}
}

// answered lets the run go on once nothing is waited for any more.
func (h *Head) answered() {
	switch {
	case len(h.Interrupts) > 0:
	case h.Unattended != "":
		h.unattended()
	case h.Status == StatusWaiting:
		h.Status = h.active()
	}
}

// noDoubt ends the waiting for the settlement of a call.
func (h *Head) noDoubt(key CallKey) {
	if len(h.Interrupts) == 0 {
		return
	}
	h.Interrupts = nilIfEmpty(slices.DeleteFunc(h.Interrupts, func(o OpenInterrupt) bool {
		return o.Reason == WaitToolInDoubt && o.CallKey() == key
	}))
	h.answered()
}

// uncleared: an executor of the run has written, and may now begin what was cleared.
func (h *Head) uncleared() {
	for i := range h.OpenCalls {
		h.OpenCalls[i].Cleared = false
	}
}

// expiry is when a wait expires, by the server's clock: as long behind the event's arrival as expires_at is behind the event's own time,
// both of which are of the executor's clock. Without one of the times expires_at is taken as it is.
func expiry(e *Event, d *RunWaitingData, rec *Record) string {
	if rec.Stored == 0 || d.ExpiresAt == "" {
		return d.ExpiresAt
	}
	asked, err := time.Parse(time.RFC3339Nano, e.Time)
	if err != nil {
		return d.ExpiresAt
	}
	ends, err := time.Parse(time.RFC3339Nano, d.ExpiresAt)
	if err != nil {
		return d.ExpiresAt
	}
	return FormatTime(time.Unix(0, rec.Stored).Add(ends.Sub(asked)))
}

func (h *Head) runWaiting(e *Event, p *place, d *RunWaitingData) Verdict {
	o := OpenInterrupt{
		InterruptID: d.InterruptID, Reason: d.Reason, ToolCallID: d.ToolCallID, Occurrence: d.Occurrence,
		Message: excerpt(d.Message), Since: e.Time, ExpiresAt: expiry(e, d, p.Record), Position: p.at,
	}
	call := -1
	if d.ToolCallID != "" {
		o.Turn = e.Turn
		if o.Turn == 0 {
			o.Turn = h.Turn
		}
		// At most one call of a turn and id is open; it is the one that is meant.
		call = h.findOpen(e.Turn, d.ToolCallID)
		if call >= 0 && (d.Occurrence == 0 || d.Occurrence == h.OpenCalls[call].Occurrence) {
			o.Turn, o.Occurrence = h.OpenCalls[call].Turn, h.OpenCalls[call].Occurrence
		} else {
			call = -1
		}
		o.Occurrence = max(o.Occurrence, 1)
	}
	if d.Reason == WaitToolInDoubt {
		// Nothing would ever end the waiting for what is settled.
		switch {
		case call < 0:
			return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", d.ToolCallID, o.Turn)
		case !h.OpenCalls[call].InDoubt:
			return rejected(ReasonNotInDoubt, "call %.80q of turn %d is not in doubt", d.ToolCallID, o.Turn)
		}
	}
	switch i := h.interrupt(d.InterruptID); {
	case i >= 0:
		h.Interrupts[i] = o
	case len(h.Interrupts) >= MaxInterrupts:
		return rejected(ReasonTooMany, "the run waits for %d things already", MaxInterrupts)
	default:
		h.Interrupts = append(h.Interrupts, o)
	}
	if d.Reason == WaitToolInDoubt {
		h.OpenCalls[call].Held = true
	}
	h.Status = StatusWaiting
	return Verdict{Kind: Applied, Boundary: true}
}

func (h *Head) turnStarted(e *Event, d *TurnStartedData) Verdict {
	v := Verdict{Kind: Applied, Boundary: true}
	switch {
	case d.Turn > h.Turn:
		h.openTurn(d.Turn)
	case d.Turn == h.Turn && h.TurnOpen && (h.Epoch > h.TurnEpoch || e.Epoch == 0):
		// The executor that opened it is gone, and its unfinished messages with it. Closed calls stay.
		h.Counts.Messages -= h.TurnMessages
		h.TurnMessages = 0
		h.TurnEpoch = h.Epoch
		v.Superseded = true
	default:
		return rejected(ReasonTurnOrder, "turn %d, the run is at turn %d", d.Turn, h.Turn)
	}
	if d.Purpose == PurposeRecovery {
		h.TurnPurpose = d.Purpose
	}
	h.TurnMessages += int64(len(d.Messages))
	h.Counts.Messages += int64(len(d.Messages))
	return v
}

func (h *Head) openTurn(turn int32) {
	h.Turn, h.TurnOpen, h.TurnEpoch = turn, true, h.Epoch
	h.TurnCalls, h.TurnMessages, h.TurnPurpose = nil, 0, ""
	h.Counts.Turns++
}

func (h *Head) turnEnded(d *TurnEndedData) Verdict {
	switch {
	case d.Turn == h.Turn && h.TurnOpen:
	case d.Turn > h.Turn:
		// An executor that only says how turns ended.
		h.openTurn(d.Turn)
	default:
		return rejected(ReasonTurnOrder, "turn %d is not open, the run is at turn %d", d.Turn, h.Turn)
	}
	h.TurnOpen = false
	h.Counts.Messages += int64(len(d.Messages))
	if d.Usage != nil {
		h.Usage.add(*d.Usage)
	}
	if d.Error != nil {
		h.setError(d.Error)
	}
	return Verdict{Kind: Applied, Boundary: true}
}

// inOpenTurn reports whether an event belongs to the open turn; without a turn attribute it does.
func (h *Head) inOpenTurn(e *Event) bool {
	return h.TurnOpen && (e.Turn == 0 || e.Turn == h.Turn)
}

func (h *Head) toolCalled(e *Event, d *ToolCalledData) Verdict {
	turn := e.Turn
	if turn == 0 {
		turn = h.Turn
	}
	if turn < h.Turn {
		return rejected(ReasonTurnOrder, "call of turn %d, the run is at turn %d", turn, h.Turn)
	}
	if h.findOpenExact(turn, d.ToolCallID) >= 0 {
		return rejected(ReasonCallOpen, "call %.80q of turn %d is open", d.ToolCallID, turn)
	}
	opened := turn > h.Turn
	switch {
	case len(h.OpenCalls) >= MaxOpenCalls:
		return rejected(ReasonTooMany, "%d calls are open already", MaxOpenCalls)
	case !opened && len(h.TurnCalls) >= MaxTurnCalls:
		return rejected(ReasonTooMany, "turn %d has %d calls already", turn, MaxTurnCalls)
	case h.callBytes(opened)+len(d.ToolCallID)+len(excerpt(d.Name)) > MaxCallBytes:
		return rejected(ReasonTooMany, "the ids and names of the turn's and all open calls pass %d bytes", MaxCallBytes)
	}
	if opened {
		h.openTurn(turn)
	}
	key := CallKey{Turn: turn, ToolCallID: d.ToolCallID, Occurrence: 1}
	if turn == 0 {
		// Without turns nothing bounds the ids to remember, so the count of all calls tells them apart.
		key.Occurrence = int(h.Counts.ToolCalls) + 1
	}
	for _, id := range h.TurnCalls {
		if id == d.ToolCallID {
			key.Occurrence++
		}
	}
	replay := d.Replay
	if replay == "" {
		replay = ReplayHold
	}
	h.OpenCalls = append(h.OpenCalls, OpenCall{CallKey: key, Name: excerpt(d.Name), Replay: replay, Since: e.Time, Epoch: h.Epoch})
	h.Counts.ToolCalls++
	return Verdict{Kind: Applied, Boundary: true, Call: key, Opened: opened}
}

// callBytes is what the ids and names of calls take in the head; those of the turn go when a new one opens.
// Few calls cannot pass the cap and are not counted.
func (h *Head) callBytes(newTurn bool) int {
	n := 0
	if len(h.OpenCalls)+len(h.TurnCalls) < MaxCallBytes/(2*(MaxIdentifier+len("…"))) {
		return n
	}
	for i := range h.OpenCalls {
		n += len(h.OpenCalls[i].ToolCallID) + len(h.OpenCalls[i].Name)
	}
	if !newTurn {
		for _, id := range h.TurnCalls {
			n += len(id)
		}
	}
	return n
}

func (h *Head) findOpenExact(turn int32, id string) int {
	return slices.IndexFunc(h.OpenCalls, func(c OpenCall) bool { return c.Turn == turn && c.ToolCallID == id })
}

func (h *Head) toolClosed(e *Event, id string, count *int64) Verdict {
	i := h.findOpen(e.Turn, id)
	if i < 0 {
		if (e.Turn == 0 || e.Turn == h.Turn) && slices.Contains(h.TurnCalls, id) {
			// One more result of a settled call: kept in the log as evidence, the first stands.
			return Verdict{Kind: Evidence}
		}
		return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", id, e.Turn)
	}
	*count++
	h.noDoubt(h.OpenCalls[i].CallKey)
	return Verdict{Kind: Applied, Boundary: true, Call: h.closeCall(i)}
}

func (h *Head) closeCall(i int) CallKey {
	key := h.OpenCalls[i].CallKey
	h.OpenCalls = nilIfEmpty(slices.Delete(h.OpenCalls, i, i+1))
	if key.Turn == h.Turn && key.Turn != 0 {
		h.TurnCalls = append(h.TurnCalls, key.ToolCallID)
	}
	return key
}

func (h *Head) toolSettled(e *Event, p *place, d *ToolSettledData) Verdict {
	i := h.findOpen(e.Turn, d.ToolCallID)
	if i < 0 {
		return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", d.ToolCallID, e.Turn)
	}
	c := &h.OpenCalls[i]
	// An ended run has no executor: the outcome of each open call is for a person to say, and no executor can run it again.
	ended := h.Status.Terminal()
	if ended && d.How == SettledRerun {
		return rejected(ReasonRunEnded, "the run is %s, and a call runs again only after a resume with reason reopen", h.Status)
	}
	if !c.InDoubt && !ended {
		return rejected(ReasonNotInDoubt, "call %.80q of turn %d is not in doubt", d.ToolCallID, c.Turn)
	}
	if d.How == SettledAdopted && !c.Late && len(d.Result) == 0 && len(d.Refs) == 0 {
		return rejected(ReasonInvalidData, "call %.80q has no late result to adopt", d.ToolCallID)
	}
	h.Counts.Settled++
	h.noDoubt(c.CallKey)
	if d.How == SettledRerun {
		c.InDoubt, c.Held, c.Late, c.Epoch = false, false, false, h.Epoch
		c.Cleared = p.control
		return Verdict{Kind: Applied, Boundary: true, Call: c.CallKey}
	}
	return Verdict{Kind: Applied, Boundary: true, Call: h.closeCall(i)}
}

func (h *Head) marked(p *place, d *CheckpointMarkedData) Verdict {
	m := Mark{Name: d.Name, Position: p.at, Epoch: h.Epoch, Sequence: h.Sequence, Turn: h.Turn}
	i := slices.IndexFunc(h.Marks, func(o Mark) bool { return o.Name == d.Name })
	switch {
	case i >= 0:
		h.Marks[i] = m
	case len(h.Marks) >= MaxMarks:
		return rejected(ReasonTooMany, "the run has %d marks already", MaxMarks)
	default:
		h.Marks = append(h.Marks, m)
	}
	return Verdict{Kind: Applied, Boundary: true}
}
