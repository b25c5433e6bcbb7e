package transcript

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// standing says how much of a transcript a run has already.
type standing struct {
	// steps are those that the run has, then those that it lacks, as they are to be published.
	steps []step
	// done counts the steps that the run has.
	done int
	// notes say what stays as it was imported first, because no event can change it.
	notes []string
	// more says what the run has beyond the transcript, which is then an older copy of it; empty when it has nothing.
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
	// uncompacted: a compaction of the transcript is not in the run, so that no later message may be.
	uncompacted bool
	// grown are the turns that ended before the transcript had all of them.
	grown map[int32]bool
	byKey map[schema.CallKey]*schema.Call
	// own are calls whose result was recorded from another place of the source than the message that brings it.
	own map[schema.CallKey]*Call
	// stale: the token counts of a turn are those of its first import.
	stale bool
	// moreSteps: the trajectory has other steps than the messages of the run.
	moreSteps bool
	notes     []string
}

// compare finds what of the plan a run has. The run is a beginning of the transcript, or compare fails with [ErrDiverged] and says
// where they differ. It makes an import safe to repeat: after a crash, and after the transcript grew.
//
// A transcript grows anywhere behind its last message, also inside its last turn, which the run ended already. What is new of
// such a turn is published behind its end.
func compare(s *schema.State, run *Run, steps []step) (*standing, error) {
	c := &cursor{s: s, run: run, grown: make(map[int32]bool), byKey: make(map[schema.CallKey]*schema.Call, len(s.Calls)), own: make(map[schema.CallKey]*Call)}
	c.index()
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
		if len(lacked) > 1 { // beside its end
			return nil, fmt.Errorf("%w: %s", ErrDiverged, more)
		}
		// All of it is there, and how the run went on and ended is the run's.
		return &standing{steps: steps, done: len(steps), more: more}, nil
	}
	return &standing{steps: append(held, lacked...), done: len(held), notes: c.notes}, nil
}

// index finds the calls by their keys, and the turns to which an earlier import added behind their end.
func (c *cursor) index() {
	began := make(map[int32]schema.Epoch, len(c.s.Turns))
	for i := range c.s.Turns {
		began[c.s.Turns[i].Turn] = c.s.Turns[i].Epoch
	}
	for i := range c.s.Messages {
		if m := &c.s.Messages[i]; m.Epoch > began[m.Turn] {
			c.grown[m.Turn] = true
		}
	}
	for i := range c.s.Calls {
		call := &c.s.Calls[i]
		c.byKey[call.CallKey] = call
		if call.Epoch > began[call.Turn] {
			c.grown[call.Turn] = true
		}
	}
}

// surplus says what the run has that the transcript lacks; empty when there is nothing.
func (c *cursor) surplus() string {
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

// take reports whether the state has what a step publishes, and returns the steps that publish what it lacks.
func (c *cursor) take(st *step) (has bool, lacked []step, err error) {
	switch d := st.data.(type) {
	case *schema.RunStartedData:
		return true, nil, c.started()
	case *schema.MessageAddedData:
		rest, err := c.messagesOf(st, []schema.Message{d.Message})
		return len(rest) == 0, c.added(st, rest), err
	case *schema.TurnStartedData:
		return c.turnStarted(st, d)
	case *schema.ToolCalledData:
		has, err = c.called(st.call)
	case *schema.ToolReturnedData:
		has, err = c.returned(st.call)
	case *schema.TurnEndedData:
		return c.turnEnded(st, d)
	case *schema.ContextCompactedData:
		has, err = c.compacted(d)
	default:
		return false, nil, fmt.Errorf("%s is no event of a transcript", st.data.EventName())
	}
	if has || err != nil {
		return has, nil, err
	}
	c.grown[st.turn] = true
	return false, []step{*st}, nil
}

// started compares what the run was started with.
func (c *cursor) started() error {
	started := c.s.Started
	if started == nil || started.Labels["format"] != string(c.run.Format) {
		return fmt.Errorf("it was not imported from a transcript of format %s", c.run.Format)
	}
	switch agent := c.s.Head.Agent; {
	case agent == c.run.Agent:
	case agent == agentUnknown && c.run.Parent != nil:
		// Which agent it is was not yet known.
		c.notes = append(c.notes, fmt.Sprintf("run %s stays of agent %s: the transcript now says %s", c.run.ID, agent, c.run.Agent))
	default:
		return fmt.Errorf("the run is of agent %s, the transcript of %s", agent, c.run.Agent)
	}
	return nil
}

// turnStarted: a new turn may begin with messages that stood behind the last one when the transcript was imported before.
func (c *cursor) turnStarted(st *step, d *schema.TurnStartedData) (has bool, lacked []step, err error) {
	started := c.turns < len(c.s.Turns)
	if started && c.s.Turns[c.turns].Turn != d.Turn {
		return false, nil, fmt.Errorf("turn %d stands where turn %d belongs", c.s.Turns[c.turns].Turn, d.Turn)
	}
	rest, err := c.messagesOf(st, d.Messages)
	switch {
	case err != nil:
		return false, nil, err
	case started && len(rest) > 0:
		return false, nil, fmt.Errorf("messages at the beginning of turn %d: %d, in the transcript: %d", d.Turn, len(d.Messages)-len(rest), len(d.Messages))
	case started:
		c.turns++
		return true, nil, nil
	}
	begin, data := *st, *d
	data.Messages = rest
	begin.data = &data
	return false, []step{begin}, nil
}

// turnEnded: messages that the turn's end would bring are added behind it when the turn has ended already.
func (c *cursor) turnEnded(st *step, d *schema.TurnEndedData) (has bool, lacked []step, err error) {
	rest, err := c.messagesOf(st, d.Messages)
	if err != nil {
		return false, nil, err
	}
	var ended *schema.TurnEndedData
	if c.turns > 0 && c.s.Turns[c.turns-1].Turn == d.Turn {
		ended = c.s.Turns[c.turns-1].Ended
	}
	if ended == nil {
		end, data := *st, *d
		data.Messages = rest
		end.data = &data
		return false, []step{end}, nil
	}
	lacked = c.added(st, rest)
	if same(endOf(ended), endOf(d)) {
		return true, lacked, nil
	}
	if !c.grown[d.Turn] {
		return false, nil, fmt.Errorf("turn %d ended otherwise: other token counts, model or finish reason", d.Turn)
	}
	c.stale = true
	c.notes = append(c.notes, fmt.Sprintf("run %s: the transcript was imported before turn %d was complete, whose token counts stay as they were; "+
		"those of the whole run are in its end", c.run.ID, d.Turn))
	return true, lacked, nil
}

// endOf is what two imports of a turn's end must have in common. How long it took depends on what was seen of it.
func endOf(d *schema.TurnEndedData) *schema.TurnEndedData {
	return &schema.TurnEndedData{Turn: d.Turn, FinishReasons: d.FinishReasons, ResponseID: d.ResponseID, Model: d.Model, Usage: d.Usage}
}

// added are the steps that add messages to the turn of a step.
func (c *cursor) added(st *step, messages []schema.Message) []step {
	out := make([]step, len(messages))
	for i := range messages {
		out[i] = *st
		out[i].data, out[i].call = &schema.MessageAddedData{Message: messages[i]}, nil
		c.grown[st.turn] = true
	}
	return out
}

// messagesOf moves past the messages of a step and returns those that the state lacks.
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
	case got.Turn != turn && got.Turn != 0:
		// A message that was the transcript's last was added outside any turn.
		return false, fmt.Errorf("message %d is of turn %d, in the transcript of turn %d", c.messages+1, got.Turn, turn)
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

// sameMessage compares two messages. Steps of a trajectory may come later than their message: the run's end has them then.
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

// adapted is a message that carries a result itself where the call has recorded another text of it: a trajectory tells an
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

func (c *cursor) called(want *Call) (bool, error) {
	if c.calls >= len(c.s.Calls) {
		return false, nil
	}
	got := &c.s.Calls[c.calls]
	if got.CallKey != want.Key || got.Name != want.Name || len(got.Refs) == 0 && !schema.SameJSON(got.Arguments, want.Arguments) {
		return false, fmt.Errorf("call %d is %s(%s) of turn %d, in the transcript %s(%s) of turn %d, or has other arguments",
			c.calls+1, got.Name, got.ToolCallID, got.Turn, want.Name, want.Key.ToolCallID, want.Key.Turn)
	}
	c.calls++
	return true, nil
}

func (c *cursor) returned(want *Call) (bool, error) {
	got := c.byKey[want.Key]
	if got == nil || got.Outcome == schema.OutcomeOpen {
		return false, nil
	}
	if got.Outcome != schema.OutcomeReturned {
		return true, nil // it was settled otherwise, and that stands
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
		return false, fmt.Errorf("compaction %d is behind turn %d, in the transcript behind turn %d", c.compactions+1, got.ThroughTurn, want.ThroughTurn)
	}
	c.compactions++
	return true, nil
}

// end is the data of run.ended. It brings what changed of the run as a whole since it was started.
func (c *cursor) end() *schema.RunEndedData {
	d := endData(c.run)
	if c.stale && d.Usage == nil {
		d.Usage = c.run.usage()
	}
	before, _ := detailOf(c.s.Started.Source, c.run.Format)
	now, _ := detailOf(c.run.Source, c.run.Format)
	if before.Content == now.Content && (c.moreSteps || !same(before.Members, now.Members) || !same(before.Absent, now.Absent) || !same(before.Steps, now.Steps)) {
		end, _ := detailOf(d.Source, c.run.Format)
		end.Run, end.Absent = now.Members, now.Absent
		if c.moreSteps || before.Steps != nil {
			end.Steps = append(now.Steps, c.run.trajectory()...)
		}
		if size := len(marshalValue(end.Steps)); size > maxRunSource {
			c.notes = append(c.notes, fmt.Sprintf("run %s: steps of the trajectory stay as they were imported first: the new ones have %d bytes", c.run.ID, size))
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
		return true // what is in the blob store is not compared
	}
	return same(&end, want)
}

// usage sums up the turns' token counts; nil when there are none.
func (r *Run) usage() *schema.Usage {
	var sum schema.Usage
	for _, s := range r.Steps {
		if s.Turn == nil || s.Turn.Usage == nil {
			continue
		}
		u := s.Turn.Usage
		sum.InputTokens += u.InputTokens
		sum.OutputTokens += u.OutputTokens
		sum.CacheReadInputTokens += u.CacheReadInputTokens
		sum.CacheCreationInputTokens += u.CacheCreationInputTokens
		sum.ReasoningOutputTokens += u.ReasoningOutputTokens
	}
	if sum.IsZero() {
		return nil
	}
	return &sum
}

func same(a, b any) bool {
	x, err := json.Marshal(a, json.Deterministic(true))
	y, err2 := json.Marshal(b, json.Deterministic(true))
	return err == nil && err2 == nil && schema.SameJSON(x, y)
}
