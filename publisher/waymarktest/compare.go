package waymarktest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// difference lists the differences between a trial and the run without a crash.
type difference struct {
	trial *trial
	// other names the other side of the comparison.
	other string
	lines []string
}

func (d *difference) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s:\n", d.trial.run, d.trial.point)
	for _, line := range d.lines {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	section(&b, "history", d.trial.history)
	if said := d.trial.log.said(); len(said) > 0 {
		section(&b, "log of its executors", said)
	}
	return b.String()
}

// section writes lines under a heading.
func section(b *strings.Builder, head string, lines []string) {
	fmt.Fprintf(b, "%s:\n", head)
	if more := len(lines) - mostHistory; more > 0 {
		fmt.Fprintf(b, "  … %d lines before\n", more)
		lines = lines[more:]
	}
	for _, line := range lines {
		fmt.Fprintf(b, "  %s\n", line)
	}
}

// mostHistory bounds the lines of a history in a report; the last ones are shown.
const mostHistory = 80

func (d *difference) addf(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// compare lists the differences of b from a, the run without a crash.
func compare(a, b *trial, other string) *difference {
	d := &difference{trial: b, other: other}
	if b.failed != "" {
		d.addf("the run did not end: %s", b.failed)
		return d
	}
	d.effects(b, a)
	d.questions(a.state, b.state)
	if asked := questions(b.state); asked > questions(a.state) {
		d.addf("people are asked %d questions, not %d: a repeated question needs the same InterruptID", asked, questions(a.state))
	}
	d.phases(a.state, b.state)
	d.calls(a.state, b.state)
	d.facts(a, b)
	d.conversation(a, b)
	return d
}

// withoutCrash names the other side of the comparison with a run without a crash.
const withoutCrash = "without a crash"

// deployed lists what a deploy must not do to a run that began with one version and ended with the next one.
func deployed(before, after, t *trial) *difference {
	d := &difference{trial: t, other: withoutCrash}
	if t.failed != "" {
		d.addf("the run did not end: %s", t.failed)
		return d
	}
	known := make(map[string]bool)
	for _, whole := range []*trial{before, after} {
		for i := range whole.state.Calls {
			c := &whole.state.Calls[i]
			known[nameAndArguments(c, whole.run)+string(c.Outcome)] = true
		}
	}
	for i := range t.state.Calls {
		c := &t.state.Calls[i]
		if !known[nameAndArguments(c, t.run)+string(c.Outcome)] {
			d.addf("call %d is %s; without a crash neither version has such a call", i+1, callText(t.state, i, true))
		}
	}
	if is, was := questions(t.state), max(questions(before.state), questions(after.state)); is > was {
		d.addf("people are asked %d questions, not %d", is, was)
	}
	d.effects(t, before, after)
	last := after.state
	if t.lives == 1 {
		last = before.state // it had ended when its executor was killed
	}
	d.phases(last, t.state)
	if is, was := t.state.Head.Status, last.Head.Status; is != was {
		d.addf("it ends as %s, not as %s%s", is, was, reason(t.state))
	}
	return d
}

// made are the effects by name, without the id of the run.
func (t *trial) made() map[string][]effect {
	all := make(map[string][]effect)
	for _, e := range t.outside.all() {
		name := strings.ReplaceAll(e.name, t.run, "RUN")
		all[name] = append(all[name], e)
	}
	return all
}

// effects compares how often the effects of b happened with how often they did in the other runs.
func (d *difference) effects(b *trial, others ...*trial) {
	got := b.made()
	names, wanted := maps.Clone(got), make([]map[string][]effect, len(others))
	for i, other := range others {
		wanted[i] = other.made()
		maps.Copy(names, wanted[i])
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var want []int
		for _, made := range wanted {
			want = append(want, len(made[name]))
		}
		if n := len(got[name]); n < slices.Min(want) || n > slices.Max(want) {
			d.addf("effect %q happened %s, and %s %s%s", name, times(n), times(slices.Max(want)), d.other, b.advice(got[name]))
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

// advice is the remedy for a repeated effect, or the origin of one that should not be there.
func (t *trial) advice(made []effect) string {
	var calls []string
	again := false
	for i, e := range made {
		if e.tool == "" {
			return ": it was made outside of a tool; make it in a tool, or pass on the tool's context"
		}
		again = again || slices.ContainsFunc(made[:i], func(earlier effect) bool { return earlier.call == e.call })
		calls = append(calls, fmt.Sprintf("call %s of tool %s in turn %d", e.call.ToolCallID, e.tool, e.call.Turn))
	}
	if len(made) == 0 {
		return ""
	}
	e, policy := made[len(made)-1], schema.Replay("")
	if call := t.state.Call(e.call); call != nil {
		policy = call.Replay
	}
	switch {
	case !again:
		return ": by " + strings.Join(calls, ", ")
	case policy == schema.ReplayIdempotent:
		return fmt.Sprintf(": tool %s is idempotent, so it runs again with the same key, but the outside did not get the key: pass "+
			"Invocation.IdempotencyKey to it, and report the effect with Outside.Once", e.tool)
	case policy.Rerunnable():
		return fmt.Sprintf(": tool %s is %s, so it runs again; if it must not, use the policy hold, verify, or idempotent with the call's key", e.tool, policy)
	default:
		return fmt.Sprintf(": by tool %s (%s)", e.tool, policy)
	}
}

// facts are what a run came to, by name. ended: with its end, and kept: with its artifacts and the values of its state.
func (t *trial) facts(ended, kept bool) map[string]any {
	s := t.state
	all := map[string]any{"its status": s.Head.Status}
	if ended {
		all["its output"], all["its summary"] = plain(s.Ended.Output, t.run), strings.ReplaceAll(s.Ended.Summary, t.run, "RUN")
		all["its limit"], all["its completion"] = limitText(s), completionText(s)
		all["its error"] = "none"
		if s.Ended.Error != nil {
			all["its error"] = s.Ended.Error.Type
		}
	}
	if !kept {
		return all
	}
	for i := range s.Artifacts {
		all["artifact "+strings.ReplaceAll(s.Artifacts[i].ArtifactID, t.run, "RUN")] = "there"
	}
	for i := range s.Values {
		all["value "+s.Values[i].Key] = cmp.Or[any](plain(s.Values[i].Value, t.run), "null")
	}
	return all
}

// facts compares what two runs came to.
func (d *difference) facts(a, b *trial) {
	ended, kept := a.state.Ended != nil && b.state.Ended != nil, d.other == withoutCrash
	was, is := a.facts(ended, kept), b.facts(ended, kept)
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(was[name], is[name]) {
			d.addf("%s is %v; %s it is %v", name, cmp.Or[any](is[name], "not there"), d.other, cmp.Or[any](was[name], "not there"))
		}
	}
}

// incidental reports whether a run may have a wait or not: one that a crash or a failed try raised, or for a child that
// may have ended before.
func incidental(w *schema.StateWait) bool {
	return w.Reason == schema.WaitToolInDoubt || strings.HasPrefix(w.InterruptID, schema.RetryWait) || strings.HasPrefix(w.InterruptID, schema.ChildPrefix)
}

// questions counts the questions, except incidental waits.
func questions(s *schema.State) (n int) {
	for i := range s.Waits {
		if !incidental(&s.Waits[i]) {
			n++
		}
	}
	return n
}

func limitText(s *schema.State) string {
	if len(s.Limits) == 0 {
		return "no limit"
	}
	var limits []string
	for i := range s.Limits {
		text := "the limit " + s.Limits[i].Limit
		if len(s.Limits[i].Maximum) > 0 {
			text += fmt.Sprintf(" (%s)", s.Limits[i].Maximum)
		}
		limits = append(limits, text)
	}
	return strings.Join(limits, ", ")
}

func completionText(s *schema.State) string {
	if s.Ended == nil || s.Ended.CompletedBy == "" {
		return "no completion tool"
	}
	for i := range slices.Backward(s.Calls) {
		if c := &s.Calls[i]; c.ToolCallID == s.Ended.CompletedBy {
			return fmt.Sprintf("the completion tool %s in turn %d", c.Name, c.Turn)
		}
	}
	return "call " + s.Ended.CompletedBy
}

// calls compares the tool calls, in order: for an agent that keeps no conversation there is nothing else to compare.
func (d *difference) calls(a, b *schema.State) {
	for i := range max(len(a.Calls), len(b.Calls)) {
		if callText(a, i, false) != callText(b, i, false) {
			d.addf("call %d is %s; %s it is %s", i+1, callText(b, i, true), d.other, callText(a, i, true))
			return
		}
	}
}

// callText describes a call, with or without its error: error texts may differ.
func callText(s *schema.State, i int, withError bool) string {
	if i >= len(s.Calls) {
		return "not made"
	}
	c := &s.Calls[i]
	outcome := string(c.Outcome)
	if withError && c.Error != nil {
		outcome += ": " + errorText(c.Error)
	}
	return fmt.Sprintf("%s in turn %d (%s)", nameAndArguments(c, s.Head.Run), c.Turn, outcome)
}

func nameAndArguments(c *schema.Call, run string) string {
	arguments, err := json.Marshal(plain(c.Arguments, run), json.Deterministic(true))
	if err != nil {
		arguments = c.Arguments
	}
	return c.Name + " " + short(arguments)
}

func errorText(e *schema.Error) string {
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

// messageOf is a message as plain values, without the id of its run.
func messageOf(m *schema.Message, run string) any {
	b, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return plain(b, run)
}

// plain decodes JSON to plain values, without the id of its run.
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

// short shortens a text to fit into a line.
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

// history lists the run's events in the log, one per line.
func (c *crashes) history(ctx context.Context, t *trial) []string {
	c.w.tb.Helper()
	var lines []string
	lives := 0
	err := c.w.Reader().Events(ctx, t.run, func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return err
		}
		if e.Name() == schema.RunResumed {
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
		lines = append(lines, "reading further failed: "+err.Error())
	}
	return lines
}
