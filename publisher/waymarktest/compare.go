package waymarktest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// difference is how a trial differs from the run without a crash.
type difference struct {
	trial *trial
	lines []string
}

func (d *difference) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s:\n", d.trial.run, d.trial.point)
	for _, line := range d.lines {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	history := d.trial.history
	b.WriteString("history:\n")
	if more := len(history) - mostHistory; more > 0 {
		fmt.Fprintf(&b, "  … %d lines before\n", more)
		history = history[more:]
	}
	for _, line := range history {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return b.String()
}

// mostHistory bounds the lines of a history in a report; the last ones are shown.
const mostHistory = 80

func (d *difference) addf(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// compare says how b differs from a, the run without a crash.
func compare(a, b *trial) *difference {
	d := &difference{trial: b}
	if b.failed != "" {
		d.addf("the run did not end: %s", b.failed)
		return d
	}
	d.effects(a, b)
	d.end(a.state, b.state)
	d.conversation(a, b)
	d.calls(a.state, b.state)
	return d
}

// counted counts the effects by name, without the id of the run.
func (t *trial) counted() (counts map[string]int, by map[string]effect) {
	counts, by = make(map[string]int), make(map[string]effect)
	once := make(map[string]bool)
	for _, e := range t.outside.effects {
		name := strings.ReplaceAll(e.name, t.run, "RUN")
		by[name] = e
		if e.idempotent != "" && t.policy(e.key) == schema.ReplayIdempotent {
			if once[e.idempotent+"\n"+name] {
				continue
			}
			once[e.idempotent+"\n"+name] = true
		}
		counts[name]++
	}
	return counts, by
}

func (t *trial) policy(key schema.CallKey) schema.Replay {
	if call := t.state.Call(key); call != nil {
		return call.Replay
	}
	return ""
}

func (d *difference) effects(a, b *trial) {
	want, _ := a.counted()
	got, by := b.counted()
	names := make([]string, 0, len(want)+len(got))
	for name := range want {
		names = append(names, name)
	}
	for name := range got {
		if want[name] == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if want[name] != got[name] {
			d.addf("effect %q happened %s, and %s without a crash%s", name, times(got[name]), times(want[name]), b.advice(name, by))
		}
	}
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	default:
		return fmt.Sprintf("%d times", n)
	}
}

// advice is what to do about an effect that happened again.
func (t *trial) advice(name string, by map[string]effect) string {
	e, ok := by[name]
	if !ok {
		return ""
	}
	if e.tool == "" {
		return ": it was made outside of a tool; make it in one, or pass the context of the tool on"
	}
	policy := t.policy(e.key)
	if policy.Rerunnable() {
		return fmt.Sprintf(": tool %s is %s, so it is run again; if it must not be, its policy is hold, verify, or idempotent with the key of its call", e.tool, policy)
	}
	return fmt.Sprintf(": by tool %s (%s)", e.tool, policy)
}

func (d *difference) end(a, b *schema.State) {
	if a.Head.Status != b.Head.Status {
		d.addf("it ends as %s, not as %s", b.Head.Status, a.Head.Status)
	}
	if a.Ended == nil || b.Ended == nil {
		return
	}
	if x, y := plain(a.Ended.Output, a.Head.Run), plain(b.Ended.Output, b.Head.Run); !reflect.DeepEqual(x, y) {
		d.addf("its output is %s, not %s", short(b.Ended.Output), short(a.Ended.Output))
	}
	if x, y := strings.ReplaceAll(a.Ended.Summary, a.Head.Run, "RUN"), strings.ReplaceAll(b.Ended.Summary, b.Head.Run, "RUN"); x != y {
		d.addf("its summary is %q, not %q", b.Ended.Summary, a.Ended.Summary)
	}
	if x, y := a.Ended.Error, b.Ended.Error; (x == nil) != (y == nil) || x != nil && x.Type != y.Type {
		d.addf("its error is %s, not %s", errorText(y), errorText(x))
	}
}

// calls compares the tool calls in their order. An agent without a conversation has nothing else to compare.
func (d *difference) calls(a, b *schema.State) {
	for i := range max(len(a.Calls), len(b.Calls)) {
		was, is := callText(a, i), callText(b, i)
		if was != is {
			d.addf("call %d is %s, not %s", i+1, is, was)
			return
		}
	}
}

func callText(s *schema.State, i int) string {
	if i >= len(s.Calls) {
		return "not made"
	}
	c := &s.Calls[i]
	arguments, err := json.Marshal(plain(c.Arguments, s.Head.Run), json.Deterministic(true))
	if err != nil {
		arguments = c.Arguments
	}
	return fmt.Sprintf("%s %s in turn %d (%s)", c.Name, short(arguments), c.Turn, c.Outcome)
}

func errorText(e *schema.Error) string {
	if e == nil {
		return "none"
	}
	return fmt.Sprintf("%s: %.200s", e.Type, e.Message)
}

func (d *difference) conversation(a, b *trial) {
	x, y := a.state.Conversation(), b.state.Conversation()
	for i := range min(len(x), len(y)) {
		if !reflect.DeepEqual(messageOf(&x[i], a.run), messageOf(&y[i], b.run)) {
			d.addf("message %d of the conversation is %s, not %s", i+1, messageText(&y[i]), messageText(&x[i]))
			return
		}
	}
	if len(x) != len(y) {
		d.addf("the conversation has %d messages, not %d", len(y), len(x))
	}
}

// messageOf is a message as values, without the id of its run.
func messageOf(m *schema.Message, run string) any {
	b, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return plain(b, run)
}

// plain is JSON as values, without the id of its run.
func plain(b []byte, run string) any {
	if len(b) == 0 {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(b), run, "RUN")), &v); err != nil {
		return string(b)
	}
	return v
}

func messageText(m *schema.Message) string {
	if m == nil {
		return "none"
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return short(b)
}

// short is a text that fits into a line.
func short(b []byte) string {
	const most = 300
	if len(b) == 0 {
		return "nothing"
	}
	if len(b) > most {
		return strings.ToValidUTF8(string(b[:most]), "") + "…"
	}
	return string(b)
}

// history is the log of a run, an event a line.
func (c *crashes) history(ctx context.Context, t *trial) []string {
	c.w.tb.Helper()
	var lines []string
	lives := 0
	err := c.w.Reader().Events(ctx, t.run, func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return err
		}
		if e.Name() == (&schema.RunResumedData{}).EventName() {
			lives++
			if slices.Contains(t.killed, lives-1) {
				lines = append(lines, fmt.Sprintf("── killed; life %d", lives))
			} else if lives > 1 {
				lines = append(lines, fmt.Sprintf("── life %d", lives))
			}
		}
		line := fmt.Sprintf("%3d  %-16s", rec.Stream, e.Name())
		var d struct {
			ID   string         `json:"tool_call_id"`
			Name string         `json:"name"`
			How  string         `json:"how"`
			Turn int            `json:"turn"`
			By   jsontext.Value `json:"result"`
		}
		if json.Unmarshal(e.Data, &d) == nil {
			if d.Name != "" {
				line += " " + d.Name
			}
			if d.ID != "" {
				line += " call " + d.ID
			}
			if d.How != "" {
				line += " " + d.How
			}
			if len(d.By) > 0 {
				line += " → " + short(d.By[:min(len(d.By), 80)])
			}
		}
		lines = append(lines, strings.TrimRight(line, " "))
		return nil
	})
	if err != nil {
		lines = append(lines, "reading on failed: "+err.Error())
	}
	return lines
}
