package referencefold

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Difference is one thing that the model and the fold do not agree about.
type Difference struct {
	// What differs, in a word or two.
	What string
	// Model and Fold are the values of both.
	Model, Fold string
}

// String is one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: the model says %s, the fold %s", d.What, d.Model, d.Fold)
}

// differences collects differences.
type differences []Difference

func (d *differences) compare(what string, model, fold any) {
	if m, f := fmt.Sprint(model), fmt.Sprint(fold); m != f {
		*d = append(*d, Difference{what, m, f})
	}
}

// Differences returns where a head differs from the log's state. Both are of the same events.
func (m *Model) Differences(h *schema.Head) []Difference {
	var d differences
	status, unattended := m.Status()
	d.compare("events", len(m.Accepted), h.Counts.Events)
	d.compare("digest", m.Digest(), h.Digest)
	d.compare("epoch", m.epoch, h.Epoch)
	d.compare("sequence", m.last, h.Sequence)
	d.compare("position", m.at, h.Position)
	d.compare("agent", m.agent, h.Agent)
	d.compare("executor", m.executor, h.Executor)
	d.compare("instance", m.instance, h.Instance)
	d.compare("request", m.request, h.RequestID)
	d.compare("status", status, h.Status)
	d.compare("unattended", unattended, h.Unattended)
	d.compare("claims without progress", m.claims, h.Stalled)
	d.compare("cancel requested", m.cancelled, h.CancelRequested)
	d.compare("paused", m.paused, h.Paused)
	d.compare("turn", m.turn, h.Turn)
	d.compare("turn open", m.open, h.TurnOpen)
	d.compare("turn answered", m.answered, h.TurnAnswered)
	d.compare("open calls", m.OpenCalls(), OpenCallsOf(h))
	waits := make([]string, 0, len(h.Interrupts))
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		about := ""
		if key := w.CallKey(); w.Reason == schema.WaitToolInDoubt {
			about = fmt.Sprintf(" for %d/%s/%d", key.Turn, key.ToolCallID, key.Occurrence)
		}
		waits = append(waits, w.InterruptID+about)
	}
	slices.Sort(waits)
	d.compare("waits", m.waitsText(), waits)
	offers := map[string]bool{}
	for i := range h.Handoffs {
		offers[h.Handoffs[i].HandoffID] = h.Handoffs[i].Status == schema.HandoffStatusAccepted
	}
	d.compare("hand-offs", m.offers, offers)
	signals := make([]signal, 0, len(h.Signals))
	for i := range h.Signals {
		signals = append(signals, signal{h.Signals[i].SignalID, h.Signals[i].Turn})
	}
	d.compare("signals", append([]signal{}, m.signals...), signals)
	d.compare("records", m.records, h.Records)
	d.compare("superseded", m.superseded, withoutTokens(h.Superseded))
	phases := slices.Sorted(maps.Keys(m.phases))
	folded := slices.Sorted(slices.Values(h.CompletedPhases))
	d.compare("completed phases", phases, folded)
	return d
}

func callText(turn int32, id string, occurrence int, name string, replay schema.Replay, epoch schema.Epoch, requested, doubt, late bool, scope string) string {
	if len(name) > shortName {
		name = "a long name" // it is shortened in a checkpoint
	}
	return strings.TrimSpace(fmt.Sprintf("%d/%s/%d %s (%s) in epoch %d requested=%t doubt=%t late=%t %s", turn, id, occurrence, name, replay, epoch, requested, doubt, late, scope))
}

// shortName is the length up to which no checkpoint shortens the name of a tool.
const shortName = 64

func (m *Model) waitsText() []string {
	all := make([]string, 0, len(m.waits))
	for id, c := range m.waits {
		if c != nil {
			id += fmt.Sprintf(" for %d/%s/%d", c.turn, c.id, c.occurrence)
		}
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// OpenCalls lists the open calls, and which of them are in doubt, in the form of [OpenCallsOf] for a head.
func (m *Model) OpenCalls() string {
	var all []string
	for _, c := range m.calls {
		if !c.closed {
			all = append(all, callText(c.turn, c.id, c.occurrence, c.name, c.replay, c.epoch, c.requested, c.doubt, c.late, c.scope))
		}
	}
	return strings.Join(all, "; ")
}

// OpenCallsOf lists a head's open calls, and which of them are in doubt.
func OpenCallsOf(h *schema.Head) string {
	var all []string
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		all = append(all, callText(c.Turn, c.ToolCallID, c.Occurrence, c.Name, c.Replay, c.Epoch, c.State.Requested(), c.State.InDoubt(), c.State == schema.CallLate, c.Scope))
	}
	return strings.Join(all, "; ")
}

// StateDifferences returns where a state differs from the log's: in its head, its messages, and its calls. The
// content of a fork's base is not in the fork's log, and the model does not keep messages from before a rewind: for
// those it only compares the head.
func (m *Model) StateDifferences(s *schema.State) []Difference {
	d := differences(m.Differences(&s.Head))
	if s.Head.Base != nil || len(m.superseded) > 0 {
		return d
	}
	said, folded := make([]string, 0, len(m.messages)), make([]string, 0, len(s.Messages))
	for _, msg := range m.messages {
		said = append(said, fmt.Sprintf("%d %s %s", msg.turn, msg.role, msg.text))
	}
	for i := range s.Messages {
		msg := &s.Messages[i]
		folded = append(folded, fmt.Sprintf("%d %s %s", msg.Turn, msg.Role, partsText(msg.Parts)))
	}
	d.compare("messages", said, folded)
	calls, closed := make([]string, 0, len(m.calls)), make([]string, 0, len(s.Calls))
	for _, c := range m.calls {
		calls = append(calls, fmt.Sprintf("%d/%s/%d %s %s", c.turn, c.id, c.occurrence, c.outcome, c.result))
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		result := string(c.Result)
		if c.Outcome == schema.OutcomeFailed && c.Error != nil {
			result = c.Error.Message
		}
		closed = append(closed, fmt.Sprintf("%d/%s/%d %s %s", c.Turn, c.ToolCallID, c.Occurrence, c.Outcome, result))
	}
	d.compare("calls", calls, closed)
	return d
}
