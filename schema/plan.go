package schema

import (
	"cmp"
	"fmt"
	"slices"
)

// What the next executor does with a run.
const (
	// PlanContinue: it continues the work.
	PlanContinue = "continue"
	// PlanWait: nothing can be done until a person or system answers or settles; no executor is needed.
	PlanWait = "wait"
	// PlanCancel: it ends the run, because of a cancel request.
	PlanCancel = "cancel"
	// PlanEnded: the run has ended. Only a resume with reason reopen continues it, and then as planned.
	PlanEnded = "ended"
)

// What becomes of the run's current turn.
const (
	// TurnContinue: its answer or some of its calls are recorded; the turn continues after them.
	TurnContinue = "continue"
	// TurnRepeat: the turn began and the model's answer is not recorded; the model is asked again.
	TurnRepeat = "repeat"
	// TurnNext: no turn is open; the next one begins.
	TurnNext = "next"
)

// CallAction says what becomes of a call.
type CallAction string

// Actions.
const (
	// CallReuse: the recorded outcome is returned; the tool does not run.
	CallReuse CallAction = "reuse"
	// CallMake: the tool runs for the first time.
	CallMake CallAction = "make"
	// CallRerun: the tool runs, and may have run before.
	CallRerun CallAction = "rerun"
	// CallAdopt: the late result of the older executor is used.
	CallAdopt CallAction = "adopt"
	// CallVerify: the executor asks the tool's verify subject what became of the call.
	CallVerify CallAction = "verify"
	// CallHold: a person must settle it.
	CallHold CallAction = "hold"
	// CallWait: a person must approve it first; it has not run.
	CallWait CallAction = "wait"
	// CallDeny: it was denied and has not run; its failure is recorded.
	CallDeny CallAction = "deny"
)

// Plan is what the next executor of a run would do, including the takeover itself. [PlanOf] makes it from the record
// alone. An executor's own approval policy is asked only when a call without a decision is about to run, so the plan
// does not include its decisions.
type Plan struct {
	Fleet    string `json:"fleet"`
	Run      string `json:"run"`
	Agent    string `json:"agent,omitzero"`
	Executor string `json:"executor,omitzero"`
	Status   Status `json:"status"`
	// Next is continue, wait, cancel or ended.
	Next string `json:"next"`
	// Quarantined: no executor can claim the run automatically, after the default number of claims; it must be
	// released or resumed by name.
	Quarantined bool `json:"quarantined,omitzero"`
	// Pauses that select the run, as in [GetReply]; not from [PlanOf].
	Pauses []Pause `json:"pauses,omitzero"`
	// Full are the limits for whose places the run waits, as in [GetReply]; not from [PlanOf].
	Full []Limit `json:"full,omitzero"`
	// Incomplete: events of the run are known to be missing; a resume must allow gaps.
	Incomplete bool `json:"incomplete,omitzero"`
	// From is the point at which the next executor continues.
	From PlanPoint `json:"from"`
	// Epoch of the next executor.
	Epoch Epoch    `json:"epoch"`
	Turn  PlanTurn `json:"turn"`
	// Calls without an outcome, in the order of recording. What becomes of each is its Action.
	Calls []PlanCall `json:"calls"`
	// Reused are the calls whose outcome is recorded, in order: none of them runs again.
	Reused []PlanCall `json:"reused"`
	// Waits are the open waits of the run.
	Waits []OpenInterrupt `json:"waits"`
	// PhasesSkipped are completed and never run again; PhaseRestarted was interrupted and begins again at its start,
	// empty for none.
	PhasesSkipped  []string `json:"phases_skipped"`
	PhaseRestarted string   `json:"phase_restarted,omitzero"`
	// Versions of living executors that claim runs of the agent, if they are other ones than the run's; see
	// [Plan.Compare].
	Versions []PlanVersion `json:"versions,omitzero"`
	// MoreVersions counts the executors with versions beyond [MaxVersions].
	MoreVersions int `json:"more_versions,omitzero"`
}

// NextText says in words what the next executor does, and what keeps it from that.
func (p *Plan) NextText() string {
	switch {
	case len(p.Pauses) > 0:
		return "nothing: the run is paused, so no executor can claim it (waymark unpause)"
	case p.Quarantined:
		return QuarantinedText
	case len(p.Full) > 0:
		return "nothing: the run " + FullText(p.Full) + " (waymark limit ls)"
	}
	return NextText(p.Next)
}

// PlanVersion is a version under which the run would go on.
type PlanVersion struct {
	Build string `json:"build,omitzero"`
	// Since is the turn that recorded the version of the run, 0 for its start, and Changes are what is other since, in
	// words; see [Drift].
	Since   int32    `json:"since"`
	Changes []string `json:"changes"`
	// After is the build that goes on with the run instead while one of its executors lives, and Asks says that a person
	// must allow this version; see [DriftRule].
	After string `json:"after,omitzero"`
	Asks  bool   `json:"asks,omitzero"`
}

// Text is the line above the changes.
func (v *PlanVersion) Text() string {
	at := "the run's start"
	if v.Since > 0 {
		at = fmt.Sprintf("turn %d", v.Since)
	}
	text := fmt.Sprintf("Executors with build %s would go on with other code than that of %s", cmp.Or(v.Build, "unknown"), at)
	if v.After != "" {
		text += ", once no executor with build " + v.After + " is alive"
	}
	if v.Asks {
		text += ", if a person allows it"
	}
	return text
}

// Compare adds those versions of the run's agent to the plan that differ from the recorded one.
func (p *Plan) Compare(s *State, versions []Version) {
	for i := range versions {
		if changes, since, asks := s.Drift(&versions[i]); len(changes) > 0 {
			v := PlanVersion{Build: versions[i].Build, Since: since, Changes: changes, Asks: asks}
			if v.Build != s.Head.Build {
				v.After = s.Head.Build
			}
			p.Versions = append(p.Versions, v)
		}
	}
}

// PlanPoint is a point of a run.
type PlanPoint struct {
	Epoch    Epoch    `json:"epoch"`
	Sequence Sequence `json:"sequence"`
	Turn     int32    `json:"turn"`
	Position Position `json:"position"`
	// Time of the last accepted event, RFC 3339.
	Time string `json:"time,omitzero"`
}

// PlanTurn is what becomes of the turn.
type PlanTurn struct {
	// Turn of the next work, from 1.
	Turn int32 `json:"turn"`
	// Action is continue, repeat or next.
	Action string `json:"action"`
	// Messages of the turn that are recorded. A repeat supersedes them.
	Messages int64 `json:"messages"`
}

// PlanCall is a call and what becomes of it.
type PlanCall struct {
	CallKey
	Name   string     `json:"name"`
	Replay Replay     `json:"replay,omitzero"`
	Action CallAction `json:"action"`
	// Why is the reason in words.
	Why string `json:"why"`
	// Outcome to reuse.
	Outcome Outcome `json:"outcome,omitzero"`
	// IdempotencyKey for the tool on a rerun.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// VerifySubject to ask. Commands are for the case that the tool does not know.
	VerifySubject string `json:"verify_subject,omitzero"`
	// InterruptID of the call's wait.
	InterruptID string `json:"interrupt_id,omitzero"`
	// Commands settle a call that is held, or that its tool knows nothing about: one for each decision; none while the
	// run's executor may work on it.
	Commands []string `json:"commands,omitzero"`
}

// Settleable reports whether the command settle settles an open call: one that an earlier executor may have run, each of
// an ended run, and one that was begun in a run that has no executor now, which the next epoch puts in doubt.
func (h *Head) Settleable(c *OpenCall) bool {
	return h.Status.Terminal() || c.MayHaveRun(h.Epoch) || !c.State.Requested() && (h.Status.Claimable() || h.Unattended != "")
}

// SettleCommands are the commands by which a person settles an open call, one for each decision; none if the call
// cannot be settled now, see [Head.Settleable]. Each settles no later attempt at the call. It can be pasted unchanged;
// the result of a call that was done must be filled in. An empty fleet is left out.
func (h *Head) SettleCommands(fleet string, key CallKey) []string {
	at := h.FindOpen(key.Turn, key.ToolCallID, key.Occurrence)
	if at < 0 || h.OpenCalls[at].CallKey != key || !h.Settleable(&h.OpenCalls[at]) {
		return nil
	}
	flags := ""
	if key.Occurrence > 1 {
		flags += Flag("occurrence", fmt.Sprint(key.Occurrence))
	}
	if epoch := h.OpenCalls[at].Epoch; epoch != 0 {
		flags += Flag("epoch", fmt.Sprint(epoch))
	}
	command := "waymark settle"
	if fleet != "" {
		command += Flag("fleet", fleet)
	}
	var list []string
	for _, how := range []string{"decided --result JSON", "rerun", "abandoned"} {
		if how != "rerun" || !h.Status.Terminal() {
			list = append(list, Command(command, flags+" --how "+how, h.Run, fmt.Sprint(key.Turn), key.ToolCallID))
		}
	}
	return list
}

// PlanOf returns what the next executor would do with the run. It is pure, and changes nothing in the state.
func PlanOf(s *State) Plan {
	h := &s.Head
	p := Plan{
		Fleet: h.Fleet, Run: h.Run, Agent: h.Agent, Executor: h.Executor, Status: h.Status,
		Quarantined: h.Quarantined(0), Incomplete: !h.Complete(),
		From:  PlanPoint{Epoch: h.Epoch, Sequence: h.Sequence, Turn: h.Turn, Position: h.Position, Time: h.UpdatedAt},
		Epoch: h.Epoch + 1, Turn: h.planTurn(), Calls: []PlanCall{}, Reused: []PlanCall{},
		Waits: append([]OpenInterrupt{}, h.Interrupts...), PhasesSkipped: append([]string{}, h.CompletedPhases...),
		PhaseRestarted: h.Phase,
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		if c.Outcome != OutcomeOpen {
			p.Reused = append(p.Reused, reusedCall(c))
		}
	}
	for i := range h.OpenCalls {
		c := h.planCall(&h.OpenCalls[i], s)
		if h.Status.Terminal() {
			c.Commands = h.SettleCommands(h.Fleet, c.CallKey) // no executor settles it
		}
		p.Calls = append(p.Calls, c)
	}
	p.Next = h.planNext()
	return p
}

func reusedCall(c *Call) PlanCall {
	p := PlanCall{CallKey: c.CallKey, Name: c.Name, Replay: c.Replay, Action: CallReuse, Outcome: c.Outcome, Why: "its result is recorded"}
	switch c.Outcome {
	case OutcomeFailed:
		p.Why = "its failure is recorded"
	case OutcomeAbandoned:
		p.Why = "it was settled without a result"
	default:
	}
	return p
}

// planCall decides about an open call after a takeover by another executor. s is the state of the head, or nil if
// only the head is known: then its own idempotency key and verify subject are left out, and whether an approval was
// answered.
func (h *Head) planCall(o *OpenCall, s *State) PlanCall {
	p := PlanCall{CallKey: o.CallKey, Name: o.Name, Replay: o.Replay, Action: CallRerun}
	key := o.IdempotencyKey(h.Run)
	var c *Call
	if s != nil {
		c = s.Call(o.CallKey)
	}
	if c != nil && c.IdempotencyKey != "" {
		key = c.IdempotencyKey
	}
	if o.State == CallLate {
		p.Action, p.Why = CallAdopt, "the result of the older executor arrived late and is taken"
		return p
	}
	if o.Decision == DecisionDeny || o.Decision == DecisionAsk && o.State.Requested() {
		h.planUndecided(&p, o, s)
		if p.Action == CallRerun {
			p.IdempotencyKey = key
		}
		return p
	}
	switch {
	case o.State.Requested() && !o.Replay.Rerunnable():
		p.Action, p.Why, p.IdempotencyKey = CallMake, "it has not begun", key
	case o.Replay == ReplayPure && o.State.Requested():
		p.Why, p.IdempotencyKey = "its tool is pure: whether it ran is not recorded, and makes no difference", key
	case o.Replay == ReplayPure:
		p.Why, p.IdempotencyKey = "its tool is pure", key
	case o.Replay == ReplayIdempotent:
		p.Why, p.IdempotencyKey = "its tool does nothing twice under the same key", key
	case o.Replay == ReplayVerify && verifiable(o, c):
		p.Action, p.IdempotencyKey = CallVerify, key
		if c != nil {
			p.VerifySubject = c.VerifySubject
		}
		p.Why = "its tool is asked what became of it; when it cannot tell, a person settles it"
		p.Commands = h.SettleCommands(h.Fleet, o.CallKey)
	default:
		p.Action, p.Commands = CallHold, h.SettleCommands(h.Fleet, o.CallKey)
		p.Why = "whether it had its effect is not known, and its policy leaves that to a person"
		if o.Replay == ReplayVerify && c != nil {
			p.Why = "whether it had its effect is not known, and it names no subject to ask"
		}
		for i := range h.Interrupts {
			if w := &h.Interrupts[i]; w.Reason == WaitToolInDoubt && w.CallKey() == o.CallKey {
				p.InterruptID = w.InterruptID
			}
		}
	}
	return p
}

// verifiable reports whether a verify call has a subject to ask. A call that is left to a person has none if only the
// head is known.
func verifiable(o *OpenCall, c *Call) bool {
	if c == nil {
		return o.State != CallHeld
	}
	return c.VerifySubject != ""
}

// planUndecided plans a call that was not allowed: it never ran, whatever its policy.
func (h *Head) planUndecided(p *PlanCall, o *OpenCall, s *State) {
	if o.Decision == DecisionDeny {
		p.Action, p.Why = CallDeny, "it was denied and has not run"
		return
	}
	for i := range h.Interrupts {
		if w := &h.Interrupts[i]; w.Reason == WaitToolApproval && w.CallKey() == p.CallKey {
			p.Action, p.InterruptID, p.Why = CallWait, w.InterruptID, "it has not run and waits for its approval"
			return
		}
	}
	if s == nil {
		p.Action, p.Why = CallWait, "it has not run; the answer about its approval is acted on, or a person is asked"
		return
	}
	for i := range slices.Backward(s.Waits) {
		w := &s.Waits[i]
		if w.Reason != WaitToolApproval || w.CallKey() != p.CallKey || w.Input == nil {
			continue
		}
		p.InterruptID, p.Why = w.InterruptID, "it has not run; the answer about its approval is acted on"
		return
	}
	p.Action, p.Why = CallWait, "it has not run; a person is asked to approve it"
}
