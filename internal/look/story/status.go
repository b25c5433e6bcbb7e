package story

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// SummaryStatus is a run's status in a list, with what must not be overlooked.
func SummaryStatus(r *schema.RunSummary) string {
	t := waitingText(r.Status, r.Waits)
	if r.Quarantined {
		t += ", quarantined"
	}
	if r.Overdue > 0 {
		t += ", overdue"
	}
	if r.Held > r.InDoubt {
		return t + damageText(r.Gapped, 0) + fmt.Sprintf(", %d held", r.Held)
	}
	return t + damageText(r.Gapped, r.InDoubt)
}

// HeadStatus is a run's status with its warnings: waits, missing executor, requested cancel, quarantine, damage. pauses are
// those that select the run: as in a list, it is paused then.
func HeadStatus(h *schema.Head, quarantined bool, pauses ...schema.Pause) string {
	status := h.Status
	if len(pauses) > 0 {
		status = schema.StatusPaused
	}
	t := waitingText(status, len(h.Interrupts))
	if status == h.Status && standstill.NeverBegun(h) {
		t += ", waits for its first executor"
	}
	if h.Unattended != "" {
		t += fmt.Sprintf(", no executor (%s)", h.Unattended)
	}
	if h.CancelRequested && !h.Status.Terminal() {
		t += ", cancel requested"
	}
	if quarantined {
		t += ", quarantined"
	}
	return t + damageText(!h.Complete(), len(h.InDoubt()))
}

// PausesText says of the pauses that select a run who asked for each, since when, why, and what ends it.
func PausesText(on prompt.Prompt, pauses []schema.Pause) string {
	list := make([]string, len(pauses))
	for i := range pauses {
		p := &pauses[i]
		list[i] = fmt.Sprintf("%s, by %s: %s; ends with: %s", p.When(), output.ByText(p.By, p.Claimed), p.Reason, on.Command(p.EndsWith()))
	}
	return strings.Join(list, "; ")
}

// waitingText is the status, with the number of things waited for where it says more than the status.
func waitingText(s schema.Status, waits int) string {
	switch {
	case s == schema.StatusWaiting && waits > 1:
		return fmt.Sprintf("%s for %d", s, waits)
	case s != schema.StatusWaiting && waits > 0:
		return fmt.Sprintf("%s, %d unanswered", s, waits)
	}
	return string(s)
}

func damageText(gapped bool, inDoubt int) string {
	t := ""
	if gapped {
		t = ", gapped"
	}
	if inDoubt > 0 {
		t += fmt.Sprintf(", %d in doubt", inDoubt)
	}
	return t
}

// ClaimsText says what keeps a run from being claimed, or soon will.
func ClaimsText(h *schema.Head, quarantined bool) string {
	switch {
	case quarantined:
		return fmt.Sprintf("%d in a row made no progress: no executor is given the run any more", h.Stalled)
	case h.Stalled > 0 && !h.Status.Terminal():
		return fmt.Sprintf("%d since its last progress", h.Stalled)
	}
	return ""
}

// LabelsText lists labels by their names.
func LabelsText(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for k, v := range labels {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// ReusedText counts the calls that do not run again.
func ReusedText(p *schema.Plan) string {
	if len(p.Reused) == 0 {
		return "no call"
	}
	failed := 0
	for i := range p.Reused {
		if p.Reused[i].Outcome == schema.OutcomeFailed {
			failed++
		}
	}
	t := output.Plural(len(p.Reused), "call") + ", by recorded outcome"
	if failed > 0 {
		t += fmt.Sprintf("; %d of them failed", failed)
	}
	return t
}

// NotReusedText counts what becomes of the others.
func NotReusedText(p *schema.Plan) string {
	var list []string
	for _, action := range []schema.CallAction{
		schema.CallMake, schema.CallRerun, schema.CallAdopt, schema.CallVerify, schema.CallHold, schema.CallWait, schema.CallDeny,
	} {
		n := 0
		for i := range p.Calls {
			if p.Calls[i].Action == action {
				n++
			}
		}
		if n > 0 {
			list = append(list, fmt.Sprintf("%d %s", n, action))
		}
	}
	if len(list) == 0 {
		return "no call"
	}
	return strings.Join(list, ", ")
}
