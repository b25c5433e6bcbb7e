package main

import (
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// maxSteps bounds the next steps that are shown of one kind.
const maxSteps = 3

// printSteps prints what a person can do about the run now, each with the command that does it.
func printSteps(a *app, h *schema.Head, quarantined bool) error {
	if a.cli.Quiet || a.cli.JSON {
		return nil
	}
	for _, step := range steps(h, quarantined) {
		if _, err := fmt.Fprintln(a.stderr, printable(step)); err != nil {
			return err
		}
	}
	return nil
}

func steps(h *schema.Head, quarantined bool) []string {
	var list []string
	if quarantined {
		list = append(list, "see what it does before it stops: "+onFleet(h.Fleet, "runs get "+h.Run+" --view state")+"; let the fleet try again with: "+onFleet(h.Fleet, "release "+h.Run))
	}
	shown := 0
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		if w.Reason == schema.WaitToolInDoubt {
			continue // its call is in doubt, and settling it is the answer
		}
		if shown++; shown > maxSteps {
			list = append(list, "see all that it asks with: "+onFleet(h.Fleet, "input "+h.Run))
			break
		}
		list = append(list, answerStep(h, w))
	}
	shown = 0
	for _, c := range h.InDoubt() {
		if shown++; shown > maxSteps {
			break
		}
		list = append(list, "settle a call in doubt with: "+settleCommand(h, c.CallKey)+" --how abandoned|decided|rerun")
	}
	for i := range h.Handoffs {
		if o := &h.Handoffs[i]; o.Status == schema.HandoffStatusOffered {
			list = append(list, "see the offer with: "+onFleet(h.Fleet, "handoff ls "+h.Run))
			break
		}
	}
	return list
}

// answerStep says how to answer something that a run waits for.
func answerStep(h *schema.Head, w *schema.OpenInterrupt) string {
	command := onFleet(h.Fleet, "input "+h.Run+" "+shellWord(w.InterruptID))
	if w.Reason == schema.WaitToolApproval {
		return "allow or deny the call with: " + command + " --allow|--deny"
	}
	return "answer with: " + command + " --text TEXT|--json-value JSON"
}

// settleCommand is the command that settles a call, but for how.
func settleCommand(h *schema.Head, key schema.CallKey) string {
	command := onFleet(h.Fleet, fmt.Sprintf("settle %s %d %s", h.Run, key.Turn, shellWord(key.ToolCallID)))
	if key.Occurrence > 1 {
		command += fmt.Sprintf(" --occurrence %d", key.Occurrence)
	}
	return command
}

// onFleet is a command of this program, on the fleet in question.
func onFleet(fleet, command string) string {
	if fleet == "" || fleet == schema.DefaultFleet {
		return "waymark " + command
	}
	return "waymark --fleet " + fleet + " " + command
}

// shellWord writes text from outside so that a shell reads it as one word and nothing else.
func shellWord(s string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.:/@%+=,", r)
	}
	if s != "" && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
