package transcript

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// standing describes how much of a transcript a run already has.
type standing struct {
	// steps are those that the run has, followed by those to be published.
	steps []step
	// done counts the steps that the run has.
	done int
	// notes list data that stays as first imported, because no event can change it.
	notes []string
	// more describes data of the run beyond the transcript, which is then an older copy; empty if there is none.
	more string
}

// complete reports whether the run has the whole transcript.
func (st *standing) complete() bool { return st.done == len(st.steps) }

// onlyEnd reports whether the run lacks only the transcript's end.
func (st *standing) onlyEnd() bool {
	if st.done != len(st.steps)-1 {
		return false
	}
	_, end := st.steps[st.done].data.(*schema.RunEndedData)
	return end
}

// cursor walks a state in the order of the plan.
type cursor struct {
	s           *schema.State
	run         *Run
	messages    int
	calls       int
	compactions int
	turns       int
	results     int
	// uncompacted: a compaction of the transcript is not in the run, so no later message may be.
	uncompacted bool
	byKey       map[schema.CallKey]*schema.Call
	// own are calls whose result was recorded from another part of the source than the message with it.
	own map[schema.CallKey]*Call
	// longer names an answer that is longer than in the transcript; empty if none is.
	longer string
	// moreSteps: the trajectory has other steps than the run's messages.
	moreSteps bool
	notes     []string
}

// compare finds the part of the plan that a run already has. If the run is not a beginning of the transcript, it
// returns [ErrDiverged] with the difference. It makes an import safe to repeat: after a crash, and after the transcript
// grew.
//
// A transcript may grow anywhere after its last message. If that is in the middle of an answer, the run has a turn with
// the beginning of the answer, and the rest is the next turn.
func compare(s *schema.State, run *Run, executor string) (*standing, error) {
	steps := plan(run.cut(answers(s, run.Format)), executor)
	c := &cursor{s: s, run: run, byKey: make(map[schema.CallKey]*schema.Call, len(s.Calls)), own: make(map[schema.CallKey]*Call)}
	for i := range s.Calls {
		c.byKey[s.Calls[i].CallKey] = &s.Calls[i]
	}
	var held, lacked []step
	for i := range steps {
		if _, end := steps[i].data.(*schema.RunEndedData); end {
			last := steps[i]
			last.data = c.end()
			if len(lacked) == 0 && sameEnd(s.Ended, last.data) {
				held = append(held, last)
			} else {
				lacked = append(lacked, last)
			}
			continue
		}
		has, rest, err := c.take(&steps[i])
		if err != nil {
			return nil, fmt.Errorf("%w: event %d (%s): %w", ErrDiverged, i+1, steps[i].data.EventName(), err)
		}
		if has {
			held = append(held, steps[i])
		}
		lacked = append(lacked, rest...)
	}
	if more := c.surplus(); more != "" {
		if len(lacked) > 1 { // besides its end
			return nil, fmt.Errorf("%w: %s", ErrDiverged, more)
		}
		// The run has the whole transcript, and its continuation and end are its own.
		return &standing{steps: steps, done: len(steps), more: more}, nil
	}
	return &standing{steps: append(held, lacked...), done: len(held), notes: c.notes}, nil
}

// answers are the source message numbers of a run's answers, in order.
func answers(s *schema.State, f Format) []int {
	said := make(map[int32]int, len(s.Turns))
	for i := range s.Messages {
		if m := &s.Messages[i]; m.Role == schema.RoleAssistant && said[m.Turn] == 0 {
			d, _ := detailOf(m.Source, f)
			said[m.Turn] = max(len(d.Said), 1)
		}
	}
	var list []int
	for i := range s.Turns {
		if t := &s.Turns[i]; t.Answer != nil {
			list = append(list, said[t.Turn])
		}
	}
	return list
}

// surplus describes data that the run has but the transcript lacks; empty if there is none.
func (c *cursor) surplus() string {
	if c.longer != "" {
		return c.longer
	}
	results := 0
	for i := range c.s.Calls {
		if c.s.Calls[i].Outcome == schema.OutcomeReturned {
			results++
		}
	}
	for _, n := range []struct {
		what      string
		has, want int
	}{
		{"message", len(c.s.Messages), c.messages},
		{"turn", len(c.s.Turns), c.turns},
		{"tool call", len(c.s.Calls), c.calls},
		{"result", results, c.results},
		{"compaction", len(c.s.Compactions), c.compactions},
	} {
		if n.has > n.want {
			return fmt.Sprintf("the run has %s, the transcript %d", plural(n.has, n.what), n.want)
		}
	}
	return ""
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// take reports whether the state already has a step, and returns the steps for missing parts.
func (c *cursor) take(st *step) (has bool, lacked []step, err error) {
	switch d := st.data.(type) {
	case *schema.RunStartedData:
		return true, nil, c.started()
	case *schema.MessageAddedData:
		rest, err := c.messagesOf(st, []schema.Message{d.Message})
		return len(rest) == 0, c.added(st, rest), err
	case *schema.TurnStartedData:
		return c.turnStarted(st, d)
	case *schema.TurnAnsweredData:
		has, err = c.answered(st, d)
	case *schema.ToolCalledData:
		got := c.byKey[st.call.Key]
		has = got != nil && (got.Outcome != schema.OutcomeOpen || got.BegunAt != "")
	case *schema.ToolReturnedData:
		has, err = c.returned(st.call)
	case *schema.TurnEndedData:
		has = c.turns > 0 && c.s.Turns[c.turns-1].Turn == d.Turn && c.s.Turns[c.turns-1].EndedAt != ""
	case *schema.ContextCompactedData:
		has, err = c.compacted(d)
	default:
		return false, nil, fmt.Errorf("%s is not an event of a transcript", st.data.EventName())
	}
	if has || err != nil {
		return has, nil, err
	}
	return false, []step{*st}, nil
}

// started compares the start of the run.
func (c *cursor) started() error {
	started := c.s.Started
	if started == nil || started.Labels["format"] != string(c.run.Format) {
		return fmt.Errorf("it was not imported from a transcript of format %s", c.run.Format)
	}
	switch agent := c.s.Head.Agent; {
	case agent == c.run.Agent:
	case agent == agentUnknown && c.run.Parent != nil:
		// The agent was unknown before.
		c.notes = append(c.notes, fmt.Sprintf("run %s keeps agent %s, although the transcript now has %s", c.run.ID, agent, c.run.Agent))
	default:
		return fmt.Errorf("the run has agent %s, the transcript %s", agent, c.run.Agent)
	}
	return nil
}

// turnStarted: a new turn may begin with messages that came after the last one when the transcript was imported before.
func (c *cursor) turnStarted(st *step, d *schema.TurnStartedData) (has bool, lacked []step, err error) {
	rest, err := c.messagesOf(st, d.Messages)
	switch {
	case err != nil || len(rest) == 0:
		return err == nil, nil, err
	case c.turns < len(c.s.Turns):
		return false, nil, fmt.Errorf("messages at the beginning of turn %d: %d, in the transcript: %d", d.Turn, len(d.Messages)-len(rest), len(d.Messages))
	}
	begin, data := *st, *d
	data.Messages = rest
	begin.data = &data
	return false, []step{begin}, nil
}

// answered compares an answer and its calls.
func (c *cursor) answered(st *step, d *schema.TurnAnsweredData) (bool, error) {
	if c.turns >= len(c.s.Turns) {
		return false, nil
	}
	t := &c.s.Turns[c.turns]
	switch {
	case t.Turn != d.Turn:
		return false, fmt.Errorf("found turn %d instead of turn %d", t.Turn, d.Turn)
	case t.Answer == nil && t.EndedAt != "":
		return false, fmt.Errorf("turn %d ended without an answer", d.Turn)
	}
	c.turns++
	if t.Answer == nil {
		return false, nil
	}
	there, err := c.message(d.Turn, &d.Message)
	if err == nil && !there {
		err = fmt.Errorf("turn %d has no message", d.Turn)
	}
	for _, call := range st.answer.Calls {
		if err == nil {
			err = c.called(call)
		}
	}
	if err == nil && c.longer == "" && !same(&schema.StateAnswer{
		FinishReasons: t.Answer.FinishReasons, ResponseID: t.Answer.ResponseID, Model: t.Answer.Model, Usage: t.Answer.Usage,
	}, &schema.StateAnswer{FinishReasons: d.FinishReasons, ResponseID: d.ResponseID, Model: d.Model, Usage: d.Usage}) { // the duration depends on the observed part
		err = fmt.Errorf("turn %d has another answer: other token counts, model or finish reason", d.Turn)
	}
	return err == nil, err
}

// added are the steps that add messages to the turn of a step.
func (c *cursor) added(st *step, messages []schema.Message) []step {
	out := make([]step, len(messages))
	for i := range messages {
		out[i] = *st
		out[i].data = &schema.MessageAddedData{Message: messages[i]}
	}
	return out
}

// messagesOf advances past the messages of a step and returns the missing ones.
func (c *cursor) messagesOf(st *step, messages []schema.Message) (rest []schema.Message, err error) {
	for i := range messages {
		want := c.adapted(st.turn, messages[i])
		there, err := c.message(st.turn, &want)
		if err != nil {
			return nil, err
		}
		if !there {
			rest = append(rest, want)
		}
	}
	return rest, nil
}

func (c *cursor) message(turn int32, want *schema.Message) (bool, error) {
	if c.messages >= len(c.s.Messages) {
		return false, nil
	}
	got := &c.s.Messages[c.messages]
	switch {
	case c.uncompacted:
		return false, fmt.Errorf("a compaction is missing before message %d", c.messages+1)
	case got.Turn != turn && got.Turn != 0 && turn != 0:
		// A message that was the transcript's last was added outside any turn, and is so in an older copy.
		return false, fmt.Errorf("message %d belongs to turn %d, in the transcript to turn %d", c.messages+1, got.Turn, turn)
	case c.beginning(got, want):
		c.longer = fmt.Sprintf("the answer of turn %d is longer", turn)
	case len(got.Refs) == 0 && !c.sameMessage(&got.Message, want), got.Role != want.Role, len(got.Parts) != len(want.Parts):
		has, wants := brief(&got.Message), brief(want)
		if has == wants {
			return false, fmt.Errorf("message %d, %s, differs from the transcript further on or in its details", c.messages+1, has)
		}
		return false, fmt.Errorf("message %d is %s, in the transcript %s", c.messages+1, has, wants)
	}
	c.messages++
	return true, nil
}

// beginning reports whether the transcript has only the first of the messages of the run's answer.
func (c *cursor) beginning(got *schema.StateMessage, want *schema.Message) bool {
	of := func(m *schema.Message) []saidDetail {
		d, _ := detailOf(m.Source, c.run.Format)
		if len(d.Said) == 0 {
			return []saidDetail{{Parts: len(m.Parts), Source: m.Source}}
		}
		return d.Said
	}
	all, first := of(&got.Message), of(want)
	return len(got.Refs) == 0 && len(first) < len(all) && len(want.Parts) <= len(got.Parts) &&
		same(first, all[:len(first)]) && same(want.Parts, got.Parts[:len(want.Parts)])
}

// sameMessage compares two messages. Steps of a trajectory may come later than their message: then they are in the
// run's end.
func (c *cursor) sameMessage(got, want *schema.Message) bool {
	if same(got, want) {
		return true
	}
	if c.run.Format != SWEAgent || !same(withoutSteps(got), withoutSteps(want)) {
		return false
	}
	c.moreSteps = true
	return true
}

// brief quotes enough of a message to find it.
func brief(m *schema.Message) string {
	const most = 60
	text := []rune(textOf(m))
	switch {
	case len(text) > most:
		return fmt.Sprintf("%s %q…", m.Role, string(text[:most]))
	case len(text) > 0:
		return fmt.Sprintf("%s %q", m.Role, string(text))
	default:
		return fmt.Sprintf("%s with %s", m.Role, plural(len(m.Parts), "part"))
	}
}

// adapted is a message with the recorded text of its result, if the call has another text: a trajectory has an
// observation before the message with it is written.
func (c *cursor) adapted(turn int32, m schema.Message) schema.Message {
	copied := false
	for i := range m.Parts {
		p := &m.Parts[i]
		key := schema.CallKey{Turn: turn, ToolCallID: p.ID, Occurrence: max(p.Occurrence, 1)}
		if p.CallTurn != 0 {
			key.Turn = p.CallTurn
		}
		call := c.own[key]
		if p.Type != schema.PartToolCallResponse || call == nil || len(p.Response) > 0 {
			continue
		}
		if !copied {
			m.Parts, copied = append([]schema.Part(nil), m.Parts...), true
		}
		m.Parts[i].Response = call.Result
	}
	return m
}

func (c *cursor) called(want *Call) error {
	if c.calls >= len(c.s.Calls) {
		return fmt.Errorf("call %s of turn %d is missing", want.Key.ToolCallID, want.Key.Turn)
	}
	got := &c.s.Calls[c.calls]
	if got.CallKey != want.Key || got.Name != want.Name || len(got.Refs) == 0 && !schema.SameJSON(got.Arguments, want.Arguments) {
		return fmt.Errorf("call %d is %s(%s) of turn %d, in the transcript %s(%s) of turn %d, or has other arguments",
			c.calls+1, got.Name, got.ToolCallID, got.Turn, want.Name, want.Key.ToolCallID, want.Key.Turn)
	}
	c.calls++
	return nil
}

func (c *cursor) returned(want *Call) (bool, error) {
	got := c.byKey[want.Key]
	if got == nil || got.Outcome == schema.OutcomeOpen {
		return false, nil
	}
	if got.Outcome != schema.OutcomeReturned {
		if got.Outcome == schema.OutcomeAbandoned && len(got.Result) == 0 {
			c.own[want.Key] = want // the message with the result has it, too
		}
		return true, nil // it was settled in another way, which is final
	}
	c.results++
	if len(got.Refs) > 0 || schema.SameJSON(got.Result, want.Result) {
		return true, nil
	}
	if d, _ := detailOf(got.ResultSource, c.run.Format); d.From == fromTrajectory && len(want.ResultSource) == 0 {
		c.own[want.Key] = want
		return true, nil
	}
	return false, fmt.Errorf("call %s of turn %d has another result", want.Key.ToolCallID, want.Key.Turn)
}

func (c *cursor) compacted(want *schema.ContextCompactedData) (bool, error) {
	if c.compactions >= len(c.s.Compactions) {
		c.uncompacted = true
		return false, nil
	}
	got := &c.s.Compactions[c.compactions]
	// The summary is not compared: it is a message of its own, which may have been written later.
	if got.ThroughTurn != want.ThroughTurn {
		return false, fmt.Errorf("compaction %d is after turn %d, in the transcript after turn %d", c.compactions+1, got.ThroughTurn, want.ThroughTurn)
	}
	c.compactions++
	return true, nil
}

// end is the data of run.ended. It has the changes of the run as a whole since its start.
func (c *cursor) end() *schema.RunEndedData {
	d := endData(c.run)
	before, _ := detailOf(c.s.Started.Source, c.run.Format)
	now, _ := detailOf(c.run.Source, c.run.Format)
	if before.Content == now.Content && (c.moreSteps || !same(before.Members, now.Members) || !same(before.Absent, now.Absent) || !same(before.Steps, now.Steps)) {
		end, _ := detailOf(d.Source, c.run.Format)
		end.Run, end.Absent = now.Members, now.Absent
		if c.moreSteps || before.Steps != nil {
			end.Steps = append(now.Steps, c.run.trajectory()...)
		}
		if size := len(form.Marshal(end.Steps)); size > maxRunSource {
			c.notes = append(c.notes, fmt.Sprintf("run %s: steps of the trajectory stay as first imported: the new ones have %d bytes", c.run.ID, size))
			end.Steps = nil
		}
		d.Source = end.source(c.run.Format)
	}
	return d
}

// sameEnd reports whether a run ended as the transcript does.
func sameEnd(got *schema.RunEndedData, want schema.Data) bool {
	if got == nil {
		return false
	}
	end := *got
	if len(end.Refs) > 0 {
		return true // content in the blob store is not compared
	}
	return same(&end, want)
}

func same(a, b any) bool {
	x, err := json.Marshal(a, json.Deterministic(true))
	y, err2 := json.Marshal(b, json.Deterministic(true))
	return err == nil && err2 == nil && schema.SameJSON(x, y)
}
