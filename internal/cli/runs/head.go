package runs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// printHead shows the state of a run: its open calls, its waits, and its hand-offs. more are further pairs of name and
// value. The daemon decides whether the run is quarantined, because it knows the fleet's limit of claims.
func printHead(a *base.App, h *schema.Head, quarantined bool, pauses []schema.Pause, more ...string) error {
	now := a.Now()
	parent := ""
	if h.Parent != nil {
		parent = h.Parent.Run
		if h.Parent.ToolCallID != "" { // a run from an offer has none
			parent += ", " + h.Parent.CallKey().Text()
		}
	}
	lastError := ""
	if h.LastError != nil {
		lastError = h.LastError.Type + ": " + h.LastError.Message
	}
	started := output.Ago(h.StartedAt, now)
	if h.EndedAt != "" {
		started += ", ended " + output.Ago(h.EndedAt, now)
	}
	counts := strings.Join([]string{
		output.Plural(h.Counts.Events, "event"), output.Plural(h.Counts.Turns, "turn"), output.Plural(h.Counts.Messages, "message"),
		output.Plural(h.Counts.ToolCalls, "call"), output.Plural(h.Counts.ToolResults, "result"),
	}, ", ")
	fields := []string{
		"run", h.Run, "agent", h.Agent, "model tier", h.ModelTier, "priority", output.Number(h.Priority), "executor", h.Executor, "instance", h.Instance, "task", h.Task, "thread", h.ThreadID,
		"parent", parent, "continues", continuesText(h),
		"status", story.HeadStatus(h, quarantined, pauses...), "paused", story.PausesText(a.Prompt, pauses), "claims", story.ClaimsText(h, quarantined), "ended by", endedBy(h), "limit reached", h.Limit,
		"epoch", output.Number(h.Epoch), "sequence", output.Number(h.Sequence), "turn", turnText(h), "phase", h.Phase,
		"phases done", strings.Join(h.CompletedPhases, ", "), "labels", story.LabelsText(h.Labels),
		"counts", counts, "made", madeText(h.Counts), "rejected", rejectedText(h.Counts), "signals", signalsText(h), "tokens", story.TokensText(h.Usage), "last error", lastError,
		"summary", h.Summary, "started", started, "updated", output.Ago(h.UpdatedAt, now), "position", output.Position(h.Position),
		"digest", h.Digest,
	}
	fields = append(fields, "left behind", leftBehindText(h))
	if h.SizeWarning {
		fields = append(fields, "too long", fmt.Sprintf("a hand-off has more than %d characters", schema.HandoffSizeWarning))
	}
	if err := output.Fields(a.Stdout, append(fields, more...)...); err != nil {
		return err
	}
	for _, g := range h.Gaps {
		if _, err := fmt.Fprintf(a.Stdout, "gap: epoch %d misses %d to %d (%s), seen at %d\n", g.Epoch, g.From, g.To, output.Printable(string(g.Reason)), g.At.Stream); err != nil {
			return err
		}
	}
	return cmp.Or(printCalls(a, h), printWaits(a, h.Interrupts), printSignals(a, h.Signals), printHandoffs(a, h.Handoffs))
}

// leftBehindText names the records that rewinds left behind.
func leftBehindText(h *schema.Head) string {
	list := make([]string, len(h.Superseded))
	for i, r := range h.Superseded {
		list[i] = fmt.Sprintf("%d-%d", r.After+1, r.Through)
		if r.After+1 == r.Through {
			list[i] = output.Number(r.Through)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "records " + strings.Join(list, ", ")
}

// signalsText counts the unanswered signals.
func signalsText(h *schema.Head) string {
	n := len(h.Signals)
	switch {
	case n == 0:
		return ""
	case h.Status.Terminal():
		return fmt.Sprintf("the run ended with %s unread", output.Plural(n, "signal"))
	}
	return fmt.Sprintf("%d not read yet", n)
}

// printSignals lists the open signals.
func printSignals(a *base.App, signals []schema.OpenSignal) error {
	rows := make([][]string, len(signals))
	for i, s := range signals {
		rows[i] = []string{s.SignalID, s.Name, output.Number(s.Turn), output.Ago(s.Since, a.Now())}
	}
	return printBelow(a, []output.Column{
		{Title: "signal"},
		{Title: "name", Shrinks: true},
		{Title: "shown in turn", Right: true},
		{Title: "since", Drop: 1},
	}, rows)
}

// turnText is the last turn, the limit, and whether the turn is open and for what purpose.
func turnText(h *schema.Head) string {
	t := output.Number(h.Turn)
	if h.MaxTurns > 0 {
		t = fmt.Sprintf("%d of at most %d", min(h.Turn, h.MaxTurns), h.MaxTurns)
		if h.Turn > h.MaxTurns {
			t += ", and " + output.Number(h.Turn-h.MaxTurns) + " to sum up"
		}
	}
	switch {
	case h.TurnOpen && h.TurnPurpose != "":
		t += fmt.Sprintf(" (open, %s)", h.TurnPurpose)
	case h.TurnOpen:
		t += " (open)"
	}
	return t
}

// continuesText names the run whose work this run continues.
func continuesText(h *schema.Head) string {
	if h.Handoff != nil {
		return fmt.Sprintf("%s, by hand-off %s", h.Handoff.Run, h.Handoff.HandoffID)
	}
	if h.Base != nil {
		return fmt.Sprintf("%s at %s, as a fork", h.Base.Run, h.Base.Point)
	}
	return h.ResumedFrom
}

// endedBy says whether a completed run ended according to its completion contract.
func endedBy(h *schema.Head) string {
	if h.Status == schema.StatusFailed {
		return "" // the limit has a field
	}
	switch h.Completion() {
	case schema.CompletionTool:
		return "call " + h.CompletedBy + ", by its completion contract"
	case schema.CompletionLimit:
		return "its executor after a limit, not a completion contract"
	case schema.CompletionExecutor:
		return "its executor, not a completion contract"
	}
	return ""
}

// printCalls lists open calls; without any it prints nothing. A call of an ended run, or of a run without an executor,
// does not run.
func printCalls(a *base.App, h *schema.Head) error {
	rows := make([][]string, len(h.OpenCalls))
	for i, c := range h.OpenCalls {
		fate := "running"
		switch {
		case c.State == schema.CallLate:
			fate = "in doubt, late result"
		case c.State == schema.CallHeld:
			fate = "in doubt, held"
		case c.State == schema.CallInDoubt:
			fate = "in doubt"
		case slices.ContainsFunc(h.Interrupts, func(w schema.OpenInterrupt) bool {
			return w.Reason == schema.WaitToolApproval && w.CallKey() == c.CallKey
		}):
			fate = "not allowed yet"
		case c.State.Requested():
			fate = "requested"
		case h.Status.Terminal():
			fate = "no outcome"
		case h.Status.Claimable(), h.Unattended != "":
			fate = "begun, no executor"
		}
		rows[i] = []string{output.Number(c.Turn), c.ToolCallID, output.Number(c.Occurrence), c.Name, string(c.Replay), fate, output.Ago(c.Since, a.Now())}
	}
	return printBelow(a, []output.Column{
		{Title: "turn", Right: true},
		{Title: "call"},
		{Title: "occ.", Right: true},
		{Title: "tool", Shrinks: true},
		{Title: "replay", Drop: 2},
		{Title: "fate"},
		{Title: "since", Drop: 1},
	}, rows)
}

// printOverdue lists work that takes longer than allowed.
func printOverdue(a *base.App, list []schema.Overdue) error {
	rows := make([][]string, len(list))
	for i, o := range list {
		work := "the model"
		if o.ToolCallID != "" {
			work = "tool " + o.Tool
		}
		rows[i] = []string{work, output.Number(o.Turn), o.ToolCallID, output.Ago(o.Since, a.Now()), standstill.Limit(&o).String()}
	}
	return printBelow(a, []output.Column{
		{Title: "overdue", Shrinks: true},
		{Title: "turn", Right: true},
		{Title: "call", Drop: 1},
		{Title: "since"},
		{Title: "limit", Right: true},
	}, rows)
}

// printWaits lists the waits of a run.
func printWaits(a *base.App, waits []schema.OpenInterrupt) error {
	rows := make([][]string, len(waits))
	for i, w := range waits {
		rows[i] = []string{w.InterruptID, w.Reason, w.ToolCallID, w.Message, output.Ago(w.Since, a.Now()), untilText(w.ExpiresAt)}
	}
	return printBelow(a, []output.Column{
		{Title: "waits for"},
		{Title: "reason", Drop: 3},
		{Title: "call", Drop: 1},
		{Title: "asks", Shrinks: true},
		{Title: "since", Drop: 2},
		{Title: "expires"},
	}, rows)
}

// untilText is the time at which something expires, or that it never does.
func untilText(at string) string {
	if at == "" {
		return "never"
	}
	return output.LocalTime(at)
}

// printHandoffs lists the open hand-offs.
func printHandoffs(a *base.App, handoffs []schema.OpenHandoff) error {
	rows := make([][]string, len(handoffs))
	for i, o := range handoffs {
		rows[i] = []string{o.HandoffID, o.Status, o.Kind, o.Reason, o.NextAgent, output.ByText(o.By, o.Claimed), o.ChildRun, output.Ago(o.Since, a.Now())}
	}
	return printBelow(a, []output.Column{
		{Title: "hand-off"},
		{Title: "status"},
		{Title: "kind", Drop: 1},
		{Title: "reason", Shrinks: true, Drop: 3},
		{Title: "to agent", Drop: 5},
		{Title: "by", Drop: 2},
		{Title: "child run"},
		{Title: "since", Drop: 4},
	}, rows)
}

// printBelow prints a table with an empty line before it; without rows it prints nothing.
func printBelow(a *base.App, columns []output.Column, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	columns, rows = withoutEmpty(columns, rows)
	return output.Table(a.Stdout, columns, rows)
}

// withoutEmpty removes empty columns.
func withoutEmpty(columns []output.Column, rows [][]string) ([]output.Column, [][]string) {
	for i := range slices.Backward(columns) {
		if slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "" }) {
			continue
		}
		columns = slices.Delete(slices.Clone(columns), i, i+1)
		for j := range rows {
			rows[j] = slices.Delete(rows[j], i, i+1)
		}
	}
	return columns, rows
}

// rejectedText names the events that were not accepted; empty if all were.
func rejectedText(c schema.Counts) string {
	var list []string
	for _, n := range []struct {
		count     int64
		one, more string
	}{
		{c.DeadLetters, "dead letter", "dead letters"},
		{c.Fenced, "fenced", "fenced"},
		{c.Forked, "forked", "forked"},
		{c.Duplicates, "duplicate", "duplicates"},
		{c.Gaps, "gap", "gaps"},
	} {
		if n.count > 0 {
			list = append(list, output.Plural(n.count, n.one, n.more))
		}
	}
	return strings.Join(list, ", ")
}

// madeText counts a run's artifacts and compactions.
func madeText(c schema.Counts) string {
	var list []string
	for _, n := range []struct {
		count int64
		noun  string
	}{{c.Artifacts, "artifact"}, {c.Compactions, "compaction"}} {
		if n.count > 0 {
			list = append(list, output.Plural(n.count, n.noun))
		}
	}
	return output.Words(list...)
}
