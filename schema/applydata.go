package schema

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// applyData changes the head by an event whose place and data are valid.
func (h *Head) applyData(e *Event, p *place, data Data) Verdict {
	progress := h.progress(e, p, data)
	v := h.applyKnown(e, p, data)
	if _, end := data.(*TurnEndedData); progress && v.Kind == Applied && (v.Over || !end) {
		h.Stalled = 0
		switch data.(type) {
		case *TurnAnsweredData, *PhaseCompletedData:
			h.LastError = nil // the next try was successful
		}
	}
	return v
}

// progress reports whether a valid event brings the run further than before, or is a person's order to try again.
// Events that a new executor repeats after each takeover are no progress: a reopened turn with its messages and
// calls, a call settled as rerun, a repeated wait or offer, a note to the model about the takeover, another
// compaction.
func (h *Head) progress(e *Event, p *place, data Data) bool {
	switch d := data.(type) {
	case *TurnEndedData, *ToolReturnedData, *ToolFailedData, *RunInputData, *RunCancelRequestedData, *RunEndedData, *SignalConsumedData:
		return true
	case *ToolSettledData:
		return p.control || d.How != SettledRerun
	case *TurnAnsweredData:
		return !h.TurnOpen || d.Turn == h.Turn || h.TurnEpoch == h.Epoch
	case *TurnStartedData:
		// A turn after an open one counts when the same epoch opened both: its executor got that far.
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

// applyKnown is applyData without the claim count.
func (h *Head) applyKnown(e *Event, p *place, data Data) Verdict {
	name := data.EventName()
	known := vocabulary[name]
	switch {
	case p.control && !known.control && name != ToolSettled && name != CheckpointMarked:
		return rejected(ReasonNotControl, "%s is an executor's event and came as a control event", name)
	case e.Sequence != 0 && known.control, name == RunResumed && !p.control:
		return rejected(ReasonNotControl, "%s is a control event and came as an executor's", name)
	case h.Status.Terminal() && !known.afterEnd && (name != ToolSettled || !p.control):
		return rejected(ReasonRunEnded, "the run is %s", h.Status)
	}
	applied := Verdict{Kind: Applied, Boundary: true}
	switch d := data.(type) {
	case *RunStartedData:
		return h.runStarted(e, p, d)
	case *RunResumedData:
		h.runResumed(e, p, d)
	case *RunWaitingData:
		return h.runWaiting(e, p, d)
	case *SignalSentData:
		return h.signalSent(e, p, d)
	case *SignalConsumedData:
		return h.signalConsumed(d)
	case *StateSetData, *StateDeletedData:
		applied.Boundary = false
	case *RunInputData:
		return h.runInput(d)
	case *RunCancelRequestedData:
		h.CancelRequested, h.CancelPosition = true, p.at
		h.unattended()
	case *RunPausedData:
		h.Paused = true
	case *RunOrphanedData:
		if h.Unattended == "" && !h.Status.Claimable() { // the first reason stays
			if d.Unheld && h.Stalled > 0 {
				h.Stalled-- // its executor never knew of it
			}
			h.leave(StatusOrphaned, false)
		}
	case *RunInterruptedData:
		h.leave(StatusInterrupted, d.Reason == InterruptedWaiting)
		waits := d.Reason == InterruptedWaiting && h.Status == StatusWaiting
		if uncounted := d.Reason == InterruptedShutdown || d.Reason == InterruptedUnavailable || d.Reason == InterruptedPaused || waits; uncounted && h.Stalled > 0 {
			h.Stalled-- // its executor was stopped, lacks a key or an answer, was paused, or started to wait after a signal: no fault of the run
		}
	case *RunEndedData:
		h.Status = Status(d.Status)
		h.CompletedBy = d.CompletedBy
		h.EndedAt = e.Time
		h.Summary = shown(d.Summary, d.Refs, "/summary")
		h.Interrupts = nil
		if d.Error != nil {
			h.setError(d.Error, d.Refs)
		}
		applied.Abandoned = h.abandon(true)
		applied.Over = h.turnOver()
	case *TurnStartedData:
		return h.turnStarted(e, d)
	case *TurnAnsweredData:
		return h.turnAnswered(e, d)
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
		if i := h.FindOpen(e.Turn, d.ToolCallID, d.Occurrence); i >= 0 && !h.allowed(&h.OpenCalls[i]) {
			return rejected(ReasonNotAllowed, "call %.80q of turn %d is not allowed, and has a result", d.ToolCallID, h.OpenCalls[i].Turn)
		}
		return h.toolClosed(e, d.ToolCallID, d.Occurrence, &h.Counts.ToolResults)
	case *ToolFailedData:
		return h.toolClosed(e, d.ToolCallID, d.Occurrence, &h.Counts.ToolFailures)
	case *ToolDecidedData:
		applied.Boundary = false
		if i := h.FindOpen(e.Turn, d.ToolCallID, d.Occurrence); i >= 0 {
			c := &h.OpenCalls[i]
			applied.Call = c.CallKey
			switch {
			case !d.Binds():
			case d.Decision != DecisionAllow:
				c.Decision = d.Decision
			case c.Decision == DecisionDeny || h.approving(c.CallKey):
				return rejected(ReasonNotAllowed, "call %.80q of turn %d is denied, or a person is asked about it", c.ToolCallID, c.Turn)
			default:
				c.Decision = ""
			}
		}
	case *LimitReachedData:
		if h.Limit == "" || h.TurnPurpose != PurposeRecovery {
			h.LimitTurn = h.Turn
		}
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
		h.setError(&d.Error, d.Refs)
	}
	return applied
}

// add puts the content of an applied event into the state.
func (s *State) add(v Verdict) {
	e := v.Event
	s.opened(v)
	switch d := v.Data.(type) {
	case *RunStartedData:
		s.start(d)
		for i := range d.State {
			v := &d.State[i]
			s.setValue(e, &StateSetData{Key: v.Key, Value: v.Value, Refs: refsBelow(d.Refs, fmt.Sprintf("/state/%d", i))})
		}
		if d.Base != nil {
			s.doubted()
		}
	case *RunResumedData:
		s.Takeovers = append(s.Takeovers, *d)
		s.Ended = nil
		if d.To != nil {
			s.cutBack(d.To.Records)
		}
		s.doubted()
	case *RunWaitingData:
		w := StateWait{RunWaitingData: *d}
		w.Extra = withoutMembers(d.Extra, "turn", "input")
		if d.ToolCallID != "" {
			w.Turn = s.Head.callTurn(e)
		}
		push(s, waitsOf, w)
		if d.Reason == WaitToolInDoubt {
			s.doubted()
		}
	case *RunInputData:
		for i := range slices.Backward(s.Waits) {
			if w := &s.Waits[i]; w.InterruptID == d.InterruptID && w.Input == nil {
				amend(s, waitsOf, i).Input = d
				break
			}
		}
	case *RunEndedData:
		s.Ended = d
	case *TurnStartedData:
		s.turnStarted(e, d, v.Superseded)
	case *TurnAnsweredData:
		s.turnAnswered(e, d, v.Calls)
	case *TurnEndedData:
		s.turnEnded(e, d, v.Over)
	case *SignalSentData:
		signal := StateSignal{SignalSentData: *d, EventID: e.ID, Time: e.Time}
		signal.Extra = withoutMembers(d.Extra, "event_id", "time", "turn", "consumed_at")
		s.Signals = append(s.Signals, signal)
	case *StateSetData:
		s.setValue(e, d)
	case *StateDeletedData:
		s.deleteValue(d.Key)
	case *MessageAddedData:
		turn := e.Turn
		if turn == 0 && s.Head.TurnOpen {
			turn = s.Head.Turn
		}
		s.addMessage(e, turn, d.Message, d.Refs, "/message")
	case *ToolCalledData:
		if c := s.amendCall(v.Call); c != nil {
			c.begun(e, d, s.Head.Epoch)
			break
		}
		push(s, callsOf, newCall(v.Call, d, e.Time, s.Head.Epoch))
	case *ToolReturnedData:
		if c := s.amendCall(v.Call); c != nil {
			c.returned(d)
			c.ClosedAt = e.Time
		}
	case *ToolFailedData:
		if c := s.amendCall(v.Call); c != nil {
			c.Outcome, c.InDoubt, c.Error, c.DurationMS, c.ClosedAt = OutcomeFailed, false, &d.Error, d.DurationMS, e.Time
			c.addRefs(d.Refs)
		}
	case *ToolSettledData:
		if c := s.amendCall(v.Call); c != nil {
			c.settled(e, d, s.Head.Epoch)
		}
	case *ToolDecidedData:
		decision := StateDecision{ToolDecidedData: *d, Turn: s.Head.callTurn(e), Epoch: s.Head.Epoch, Time: e.Time}
		decision.Extra = withoutMembers(d.Extra, "turn", "epoch", "time")
		if v.Call.Occurrence != 0 {
			decision.Occurrence = v.Call.Occurrence // the event may leave it out
		}
		push(s, decisionsOf, decision)
	case *PhaseStartedData:
		p := s.phase(d.Phase)
		p.Index = d.Index
		p.Attempts++
	case *PhaseCompletedData:
		p := s.phase(d.Phase)
		p.Index, p.Completed, p.Output, p.Refs = d.Index, true, d.Output, d.Refs
	case *LimitReachedData:
		push(s, limitsOf, *d)
	case *ContextCompactedData:
		compaction := StateCompaction{ContextCompactedData: *d, At: len(s.Messages), Time: e.Time}
		compaction.Extra = withoutMembers(d.Extra, "at", "time")
		push(s, compactionsOf, compaction)
	case *HandoffOfferedData:
		s.offered(handoffID(e, d), withoutRepeats(d))
	case *HandoffAcceptedData:
		s.handoff(d.HandoffID, "accepted", d.By, d.Claimed, d.Reason, d.ChildRun, d.Refs)
	case *HandoffDeclinedData:
		s.handoff(d.HandoffID, "declined", d.By, d.Claimed, d.Reason, d.ChildRun, d.Refs)
	case *HandoffClosedData:
		s.handoff(d.HandoffID, "closed", d.By, d.Claimed, d.Reason, d.ChildRun, d.Refs)
	case *ArtifactAddedData:
		push(s, artifactsOf, StateArtifact{ArtifactAddedData: *d, Turn: e.Turn, Time: e.Time})
	case *ErrorRaisedData:
		push(s, errorsOf, *d)
	case *RunCancelRequestedData, *RunPausedData, *RunOrphanedData, *RunInterruptedData, *SignalConsumedData, *CheckpointMarkedData:
		// The head has all of its content.
	}
}

func nilIfEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func (h *Head) setError(e *Error, refs []Ref) {
	h.LastError = &Error{Type: excerpt(e.Type), Message: shown(e.Message, refs, "/error/message"), Code: shown(e.Code, refs, "/error/code"), Retryable: e.Retryable}
}

func (h *Head) runStarted(e *Event, p *place, d *RunStartedData) Verdict {
	if h.Agent != "" {
		return rejected(ReasonAlreadyStarted, "the run was started by agent %s", h.Agent)
	}
	if d.Base != nil {
		if h.Counts.Events != 1 || h.Epoch != 1 {
			return rejected(ReasonAlreadyStarted, "a fork begins with its base, and the run has %d events", h.Counts.Events-1)
		}
		h.fork(d.Base, cmp.Or(StoredTime(p.Record.Stored), e.Time))
	}
	h.Agent, h.Executor, h.Instance = d.Agent, d.Executor, d.Instance
	h.ModelTier, h.Priority = excerpt(d.ModelTier), d.Priority
	h.Build = d.Version.first(h.Build)
	if ValidName(d.ResumedFrom) {
		h.ResumedFrom = d.ResumedFrom
	}
	if d.Handoff != nil {
		h.Handoff = &HandoffSource{Run: d.Handoff.Run, HandoffID: d.Handoff.HandoffID, OfferHash: d.Handoff.OfferHash}
	}
	h.ThreadID = d.ThreadID
	h.ShowStart(d)
	h.MaxTurns, h.MaxTokens, h.CompletionTool = d.MaxTurns, d.MaxTokens, d.CompletionTool
	if d.Parent != nil {
		h.Parent = &Parent{Run: d.Parent.Run, Turn: d.Parent.Turn, ToolCallID: d.Parent.ToolCallID, Occurrence: d.Parent.Occurrence, Depth: d.Parent.Depth}
	}
	return Verdict{Kind: Applied, Boundary: true}
}

// ShowStart sets the task and the labels of the head from the data of the run's start. [EncryptedText] replaces a value
// that is encrypted there: call it again with decrypted data to show the values.
func (h *Head) ShowStart(d *RunStartedData) {
	h.Task = shown(d.Task, d.Refs, "/task")
	if len(d.Labels) == 0 {
		return
	}
	h.Labels = maps.Clone(d.Labels)
	for key := range h.Labels {
		if len(d.Refs) > 0 && isEncrypted(d.Refs, "/labels/"+pointerToken(key)) {
			h.Labels[key] = EncryptedText
		}
	}
}

func (h *Head) runResumed(e *Event, p *place, d *RunResumedData) {
	h.Epoch, h.Sequence = e.Epoch, 0
	h.Executor, h.Instance, h.RequestID = d.Executor, d.Instance, d.RequestID
	h.Counts.Resumes++
	if h.Status.Terminal() {
		h.EndedAt, h.Summary, h.CompletedBy, h.Limit, h.LimitTurn, h.CancelRequested = "", "", "", "", 0, false
	}
	h.Unattended, h.Paused = "", false
	switch d.Reason {
	case TakeoverClaim, TakeoverRestart:
		h.Stalled++
	default:
		// A person wants the run tried again. The error explains the attempts before.
		h.Stalled, h.LastError = 0, nil
	}
	if d.To != nil {
		h.rewind(d.To, e.Time, cmp.Or(StoredTime(p.Record.Stored), e.Time)) // each open call is judged there
		return
	}
	h.Status = h.active()
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; !c.State.Requested() { // otherwise not begun, or its policy lets it run again
			c.doubt()
		}
	}
}

// HasWork reports whether there is something for an executor to do: a run that waits has a request to cancel, or a signal
// that no turn was started with; any other run has not ended.
func (h *Head) HasWork() bool {
	return !h.Status.Terminal() && (len(h.Interrupts) == 0 || h.CancelRequested || h.Signalled())
}

// leave records that the run has no executor any more. Without work a waiting run goes on waiting, and with signals that
// its executor has read.
func (h *Head) leave(as Status, read bool) {
	h.Status = as
	if !h.HasWork() || read && len(h.Interrupts) > 0 && !h.CancelRequested {
		h.Status, h.Unattended = StatusWaiting, as
	}
}

// unattended makes a run without an executor claimable, because there is work to do for it.
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
	h.Interrupts = nilIfEmpty(slices.Delete(h.Interrupts, i, i+1))
	h.answered()
	return Verdict{Kind: Applied, Boundary: true}
}

// answered resumes the run once it waits for nothing.
func (h *Head) answered() {
	switch {
	case len(h.Interrupts) > 0:
	case h.Unattended != "":
		h.unattended()
	case h.Status == StatusWaiting:
		h.Status = h.active()
	}
}

// noDoubt ends the wait for the settlement of a call.
func (h *Head) noDoubt(key CallKey) {
	h.unasked(func(o *OpenInterrupt) bool { return o.Reason == WaitToolInDoubt && o.CallKey() == key })
}

// unasked ends waiting without an answer.
func (h *Head) unasked(which func(*OpenInterrupt) bool) {
	n := len(h.Interrupts)
	if n == 0 {
		return
	}
	h.Interrupts = nilIfEmpty(slices.DeleteFunc(h.Interrupts, func(o OpenInterrupt) bool { return which(&o) }))
	if len(h.Interrupts) < n {
		h.answered()
	}
}

// moved returns to + (at − from), or at itself if one of the times is missing.
// With from and at of one clock and to of the server's, it translates a deadline from an executor's clock.
func moved(at, from, to string) string {
	var times [3]time.Time
	for i, text := range []string{at, from, to} {
		var err error
		if times[i], err = time.Parse(time.RFC3339Nano, text); err != nil {
			return at
		}
	}
	return FormatTime(times[2].Add(times[0].Sub(times[1])))
}

func (h *Head) runWaiting(e *Event, p *place, d *RunWaitingData) Verdict {
	o := OpenInterrupt{
		InterruptID: d.InterruptID, Reason: d.Reason, ToolCallID: d.ToolCallID, Occurrence: d.Occurrence,
		Message: shown(d.Message, d.Refs, "/message"), Since: e.Time, ExpiresAt: moved(d.ExpiresAt, e.Time, StoredTime(p.Record.Stored)), Position: p.at,
	}
	call := -1
	if d.ToolCallID != "" {
		o.Turn = h.callTurn(e)
		if call = h.FindOpen(e.Turn, d.ToolCallID, d.Occurrence); call >= 0 {
			o.Turn, o.Occurrence = h.OpenCalls[call].Turn, h.OpenCalls[call].Occurrence
		}
		o.Occurrence = max(o.Occurrence, 1)
	}
	if d.Reason == WaitSignal && h.hears(d.InterruptID) {
		return rejected(ReasonSignal, "the run has a signal")
	}
	if d.Reason == WaitToolInDoubt {
		// A settled call would end no wait, so the wait is refused; one with a late result has its outcome.
		switch {
		case call < 0:
			return rejected(ReasonUnknownCall, "call %.80q of turn %d is not open", d.ToolCallID, o.Turn)
		case h.OpenCalls[call].State == CallLate, !h.OpenCalls[call].State.InDoubt() && (!h.OpenCalls[call].State.Requested() || !h.OpenCalls[call].Replay.Rerunnable()):
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
	v := Verdict{Kind: Applied, Boundary: true}
	if call >= 0 {
		v.Call = h.OpenCalls[call].CallKey
	}
	if d.Reason == WaitToolInDoubt {
		c := &h.OpenCalls[call]
		c.State = CallHeld
		if c.Replay.Rerunnable() {
			c.Replay = ReplayHold // the executor's policy is stricter than the recorded one, and counts from now on
		}
	}
	h.Status = StatusWaiting
	return v
}

func (h *Head) marked(p *place, d *CheckpointMarkedData) Verdict {
	if d.Fork {
		return h.forked(d.Name)
	}
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

// forked notes that a run is forked from this one.
func (h *Head) forked(fork string) Verdict {
	switch {
	case slices.Contains(h.Forks, fork):
	case len(h.Forks) >= MaxForks:
		return rejected(ReasonTooMany, "the run has %d forks already", MaxForks)
	default:
		h.Forks = append(h.Forks, fork)
	}
	return Verdict{Kind: Applied, Boundary: true}
}
