package schema

import (
	"cmp"
	"fmt"
	"slices"
)

// Instructions describe in words what the next executor of a run does, from the head alone. The plan (see [PlanOf])
// knows more of each call.
type Instructions struct {
	// Next is continue, wait, cancel or ended.
	Next string `json:"next"`
	// Lines are instructions for people, the most general first.
	Lines []string `json:"instructions"`
	// LeftOut counts the calls and waits that have no line.
	LeftOut int `json:"left_out,omitzero"`
}

// NextText says in words what the next executor does.
func NextText(next string) string {
	switch next {
	case PlanWait:
		return "nothing until a wait of the run ends; no executor is needed until then"
	case PlanCancel:
		return "an executor takes the run over and ends it: a cancellation was requested"
	case PlanEnded:
		return "nothing: the run has ended. What follows is for a takeover with reason reopen"
	default:
		return "an executor takes the run over and continues it"
	}
}

// QuarantinedText describes what happens to a run in quarantine.
const QuarantinedText = "nothing: its claims made no progress, so no executor can claim it (waymark release)"

// TurnText says in words what becomes of a turn.
func TurnText(action string) string {
	switch action {
	case TurnContinue:
		return "continues where its record ends"
	case TurnRepeat:
		return "starts again: the model's answer is not recorded"
	default:
		return "begins: no turn is open"
	}
}

// planNext says what the next executor does with the run.
func (h *Head) planNext() string {
	switch {
	case h.Status.Terminal():
		return PlanEnded
	case h.CancelRequested:
		return PlanCancel
	case len(h.Interrupts) > 0:
		return PlanWait
	default:
		return PlanContinue
	}
}

// planTurn says what becomes of the turn.
func (h *Head) planTurn() PlanTurn {
	if !h.TurnOpen {
		return PlanTurn{Turn: h.Turn + 1, Action: TurnNext}
	}
	t := PlanTurn{Turn: h.Turn, Action: TurnRepeat, Messages: h.TurnMessages}
	if h.TurnAnswered || len(h.TurnCalls) > 0 || slices.ContainsFunc(h.OpenCalls, func(c OpenCall) bool { return c.Turn == h.Turn }) {
		t.Action = TurnContinue
	}
	return t
}

// InstructionsOf returns the instructions for a run; maxClaims is as for [Head.Quarantined]. It is pure, and the number
// and size of the lines are bounded.
func InstructionsOf(h *Head, maxClaims int) *Instructions {
	in := &Instructions{Next: h.planNext(), Lines: make([]string, 0, MaxOverviewLines)}
	if h.Quarantined(maxClaims) {
		in.line(QuarantinedText)
	} else {
		in.line(NextText(in.Next))
	}
	if !h.Complete() {
		in.line("events of the run are missing: a takeover must allow it")
	}
	if in.Next != PlanEnded {
		turn := h.planTurn()
		in.line(fmt.Sprintf("turn %d %s", turn.Turn, TurnText(turn.Action)))
		if h.Phase != "" {
			in.line("phase " + shortName(h.Phase) + " begins again, from its own beginning")
		}
	}
	// Held calls and questions need people, so they come before automatic steps.
	for i := range h.Interrupts {
		if w := &h.Interrupts[i]; w.Reason != WaitToolInDoubt { // the line of its call says it
			in.entry(func() string { return h.waitLine(w) })
		}
	}
	for _, held := range []bool{true, false} {
		for i := range h.OpenCalls {
			c := &h.OpenCalls[i]
			switch forPerson := c.State == CallHeld || c.State == CallBegun && c.Replay == ReplayHold || h.Status.Terminal(); {
			case forPerson != held:
			default:
				in.entry(func() string { return h.callLine(c) })
			}
		}
	}
	return in
}

// waitLine says what the run waits for.
func (h *Head) waitLine(w *OpenInterrupt) string {
	if w.Reason == WaitTimer {
		return "waits until " + w.ExpiresAt + ": " + cmp.Or(w.Message, shortName(w.InterruptID))
	}
	command := "waymark input "
	if child, ok := w.Child(); ok {
		return withCommand("waits for the end of run "+child, "waymark runs show "+child)
	}
	if w.Reason == WaitSignal {
		command = "waymark signal "
	}
	return withCommand("waits for "+shortName(w.InterruptID)+" ("+w.Reason+")", command+h.Run)
}

// callLine says what becomes of an open call.
func (h *Head) callLine(o *OpenCall) string {
	call := fmt.Sprintf("call %s (%s) of turn %d: ", shortName(o.ToolCallID), shortName(o.Name), o.Turn)
	if h.Status.Terminal() {
		return withCommand(call+"it has no outcome, and the run has ended", "waymark plan "+h.Run)
	}
	p := h.planCall(o, nil)
	text := call + string(p.Action) + ", " + p.Why
	if p.Action != CallHold {
		return text
	}
	return withCommand(text, "waymark plan "+h.Run)
}

// withCommand adds a command to a line, which is shortened for it: a truncated command would do something else.
func withCommand(text, command string) string {
	return shortLine(text, MaxOverviewLine-len(": ")-len(command)) + ": " + command
}

func (in *Instructions) line(s string) { in.Lines = append(in.Lines, shortLine(s, MaxOverviewLine)) }

// entry adds a line of a call or a wait, if there is room.
func (in *Instructions) entry(text func() string) {
	if len(in.Lines) >= MaxOverviewLines {
		in.LeftOut++
		return
	}
	in.line(text())
}
