package schema_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// lifeStates are the states of a run in a fleet, in the order of the page's columns.
var lifeStates = []string{"new", "running", "waiting", "waiting, unattended", "waiting, cancelled", "orphaned", "interrupted", "ended"}

// lifeState names the state of a head.
func lifeState(h *schema.Head) string {
	switch {
	case h.Status == "":
		return "new"
	case h.Status.Terminal():
		return "ended"
	case h.Unattended != "":
		return "waiting, unattended"
	case h.Status == schema.StatusWaiting && h.CancelRequested:
		return "waiting, cancelled"
	default:
		return string(h.Status)
	}
}

// lifeRun is a run in one of the states. It has an open turn, a call in doubt and an open hand-off, and an open signal if
// asked. In a waiting state it has the given number of waits. ended is how it ended.
func lifeRun(t *testing.T, state string, waits int, unread bool, ended schema.Status) *testRun {
	t.Helper()
	r := newTestRun(t)
	if state == "new" {
		return r
	}
	must := func(v schema.Verdict) { require.Equal(t, schema.Applied, v.Kind, v.Detail) }
	r.start()
	must(r.write(&schema.TurnStartedData{Turn: 1}, 1))
	must(r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"}, 1))
	r.takeover("ex-2")
	must(r.write(&schema.HandoffOfferedData{HandoffID: "h-1", Reason: "error"}, 0))
	control := func(d schema.Data) { must(r.event(r.makeControl(d, r.head.Epoch))) }
	if unread {
		control(&schema.SignalSentData{SignalID: "s-1", Name: "note"})
	}
	if strings.HasPrefix(state, "waiting") {
		for i := range waits {
			must(r.write(&schema.RunWaitingData{InterruptID: fmt.Sprintf("i-%d", i+1), Reason: schema.WaitHumanInput}, 0))
		}
	}
	switch state {
	case "waiting, unattended":
		must(r.write(&schema.RunInterruptedData{Reason: "waiting"}, 0))
	case "waiting, cancelled":
		control(&schema.RunCancelRequestedData{})
	case "orphaned":
		control(&schema.RunOrphanedData{})
	case "interrupted":
		must(r.write(&schema.RunInterruptedData{}, 0))
	case "ended":
		must(r.write(&schema.RunEndedData{Status: string(ended)}, 0))
	}
	require.Equal(t, state, lifeState(&r.head))
	return r
}

// lifeEvent is something that may happen to a run.
type lifeEvent struct {
	name string
	// waits of a run that waits; 1 unless said otherwise.
	waits int
	data  schema.Data
	// control: it comes from the daemon or an operator.
	control bool
	// unread: the run has a signal that no turn was started with.
	unread bool
}

// lifeEvents has every type of the vocabulary, in each of the forms that may differ.
func lifeEvents() []lifeEvent {
	var events []lifeEvent
	for _, d := range samples() {
		name := d.EventName()
		switch d := d.(type) {
		case *schema.RunResumedData:
			for _, reason := range []string{"claim", "input", "reopen", "request", "restart", "rewind"} {
				again := *d
				again.Reason, again.To = reason, nil
				events = append(events, lifeEvent{name + " " + reason, 1, &again, true, false})
			}
		case *schema.RunInputData:
			events = append(events, lifeEvent{name + ", the last answer", 1, d, true, false}, lifeEvent{name + ", one of several", 2, d, true, false})
		case *schema.RunOrphanedData:
			events = append(events, lifeEvent{name + ", no unread signal", 1, d, true, false}, lifeEvent{name + ", an unread signal", 1, d, true, true})
		case *schema.RunInterruptedData:
			told := &schema.RunInterruptedData{Reason: schema.InterruptedWaiting}
			events = append(events, lifeEvent{name + ", no unread signal", 1, d, false, false}, lifeEvent{name + ", reason waiting", 1, told, false, true},
				lifeEvent{name + ", an unread signal", 1, d, false, true})
		case *schema.SignalConsumedData:
			events = append(events, lifeEvent{name, 1, d, false, true})
		case *schema.RunStartedData:
			events = append(events, lifeEvent{name, 1, d, false, false})
		case *schema.RunEndedData:
			for _, status := range []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled} {
				events = append(events, lifeEvent{name + " " + string(status), 1, &schema.RunEndedData{Status: string(status)}, false, false})
			}
		case *schema.HandoffOfferedData:
			events = append(events, lifeEvent{name, 1, &schema.HandoffOfferedData{HandoffID: "h-2", Reason: "error"}, false, false})
		case *schema.HandoffAcceptedData:
			events = append(events, lifeEvent{name, 1, &schema.HandoffAcceptedData{HandoffID: "h-1"}, true, false})
		case *schema.ToolSettledData:
			again := &schema.ToolSettledData{ToolCallID: d.ToolCallID, How: schema.SettledRerun}
			over := &schema.ToolSettledData{ToolCallID: d.ToolCallID, How: schema.SettledAbandoned}
			events = append(events, lifeEvent{name + " by the executor", 1, over, false, false}, lifeEvent{name + " as rerun by an operator", 1, again, true, false},
				lifeEvent{name + " otherwise by an operator", 1, over, true, false})
		case *schema.TurnAnsweredData:
			events = append(events, lifeEvent{name, 1, &schema.TurnAnsweredData{Turn: 1, Message: d.Message}, false, false})
		case *schema.TurnStartedData:
			events = append(events, lifeEvent{name, 1, &schema.TurnStartedData{Turn: 1}, false, false})
		case *schema.SignalSentData:
			events = append(events, lifeEvent{name, 1, &schema.SignalSentData{SignalID: "s-2", Name: "note"}, true, false})
		case *schema.ToolCalledData:
			events = append(events, lifeEvent{name, 1, &schema.ToolCalledData{ToolCallID: "c2", Name: "ls"}, false, false})
		default:
			events = append(events, lifeEvent{name, 1, d, schema.ControlOnly(name), false})
		}
	}
	return events
}

// happen returns the state after an event, or "refused".
func (l lifeEvent) happen(t *testing.T, state string, ended schema.Status) string {
	t.Helper()
	r := lifeRun(t, state, l.waits, l.unread, ended)
	turn := int32(0)
	if strings.HasPrefix(l.name, "tool.") {
		turn = 1
	}
	data := l.data
	if d, ok := data.(*schema.RunResumedData); ok && d.Reason == schema.TakeoverRewind {
		rewind := *d
		rewind.To = r.rewindTo(max(len(r.log), 1))
		data = &rewind
	}
	e, err := r.w.Event(data, turn, r.now(), 0)
	require.NoError(t, err)
	if l.control {
		epoch := max(r.head.Epoch, 1)
		if d, ok := data.(*schema.RunResumedData); ok {
			epoch++
			from := *d
			from.From = schema.From{Epoch: max(r.head.Epoch, 1), Sequence: r.head.Sequence, Digest: r.head.Digest}
			if from.From.Digest == "" {
				from.From.Digest = schema.Hash{}.String()
			}
			data = &from
		}
		e = r.makeControl(data, epoch)
		e.Turn = turn
	}
	v := r.event(e)
	after := lifeState(&r.head)
	switch {
	case v.Kind == schema.Applied:
		return after
	case after == state:
		return "refused"
	default: // still a sign of life
		return "refused, " + after
	}
}

// lifeRow is the effect of an event on a run in each state.
type lifeRow struct {
	events []string
	cells  []string
}

func lifeTable(t *testing.T) []lifeRow {
	t.Helper()
	var rows []lifeRow
	for _, event := range lifeEvents() {
		cells := make([]string, len(lifeStates))
		for i, state := range lifeStates {
			cells[i] = event.happen(t, state, schema.StatusCompleted)
			if state == "ended" {
				for _, ended := range []schema.Status{schema.StatusFailed, schema.StatusCancelled} {
					require.Equal(t, cells[i], event.happen(t, state, ended), "%s behind %s: the page has one column for all ends", event.name, ended)
				}
			}
		}
		if i := slices.IndexFunc(rows, func(r lifeRow) bool { return slices.Equal(r.cells, cells) }); i >= 0 {
			rows[i].events = append(rows[i].events, event.name)
			continue
		}
		rows = append(rows, lifeRow{[]string{event.name}, cells})
	}
	return rows
}

// label names the events of a row: all of one type are named by the type.
func (r *lifeRow) label() string {
	var types []string
	forms := map[string][]string{}
	for _, event := range r.events {
		name, form, _ := strings.Cut(event, " ")
		name = strings.TrimSuffix(name, ",")
		if forms[name] == nil {
			types = append(types, name)
		}
		forms[name] = append(forms[name], form)
	}
	all := map[string]int{}
	for _, event := range lifeEvents() {
		name, _, _ := strings.Cut(event.name, " ")
		all[strings.TrimSuffix(name, ",")]++
	}
	out := make([]string, 0, len(types))
	for _, name := range types {
		if len(forms[name]) == all[name] {
			out = append(out, "`"+name+"`")
			continue
		}
		out = append(out, "`"+name+"` ("+strings.Join(forms[name], ", ")+")")
	}
	return strings.Join(out, ", ")
}

// The page's table is derived from the fold: every event in every state. go test ./schema -update writes it.
func TestRunStates_Table_EqualsFold(t *testing.T) {
	rows := lifeTable(t)
	var b strings.Builder
	fmt.Fprintf(&b, "| event | %s |\n|%s\n", strings.Join(lifeStates, " | "), strings.Repeat("---|", len(lifeStates)+1))
	for _, row := range rows {
		cells := slices.Clone(row.cells)
		for i := range cells {
			switch cells[i] {
			case lifeStates[i]:
				cells[i] = "·"
			case "refused":
				cells[i] = "–"
			default:
				cells[i] = strings.Replace(cells[i], "refused, ", "– ", 1)
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", row.label(), strings.Join(cells, " | "))
	}
	requireGenerated(t, filepath.Join("..", "docs", "events.md"), "statuses", b.String())
}

// requireGenerated compares the generated part of a page, between its markers, with the expected text.
func requireGenerated(t *testing.T, file, part, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- "+part+": made by a test -->\n", "<!-- end of "+part+" -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok, "%s has no mark %q", file, begin)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no mark %q", file, end)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, got, "go test ./schema -update writes it again")
}

func TestRunWaiting_TimerWithoutATime_IsInvalid(t *testing.T) {
	t.Parallel()
	_, err := schema.MarshalData(&schema.RunWaitingData{InterruptID: "nap", Reason: schema.WaitTimer})
	require.ErrorContains(t, err, "/expires_at: is required with reason timer")
	_, err = schema.MarshalData(&schema.RunWaitingData{InterruptID: "nap", Reason: schema.WaitTimer, ExpiresAt: "2026-01-02T03:04:05Z"})
	require.NoError(t, err)
}

func TestLiveOf_Timers_SayForWhat(t *testing.T) {
	t.Parallel()
	timer := func(ids ...string) *schema.Head {
		h := &schema.Head{Run: "r", Status: schema.StatusWaiting}
		for _, id := range ids {
			h.Interrupts = append(h.Interrupts, schema.OpenInterrupt{InterruptID: id, Reason: schema.WaitTimer, ExpiresAt: "2026-01-02T03:04:05Z"})
		}
		return h
	}
	none, sleep, retry := schema.LiveOf(timer()), schema.LiveOf(timer("night")), schema.LiveOf(timer("retry.1.1", "night"))
	require.Empty(t, none.Timer)
	require.Equal(t, schema.TimerSleep, sleep.Timer)
	require.Equal(t, schema.TimerRetry, retry.Timer)
	other := retry
	other.Timer = schema.TimerSleep
	require.False(t, other.Same(&retry))
	require.False(t, schema.LiveOf(timer("retry.1.1")).Attended)
}
