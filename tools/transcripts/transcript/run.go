package transcript

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Formats, which are also the names of the agents.
const (
	OpenAIChat = "openai-chat"
	ClaudeCode = "claude-code"
	SWEAgent   = "swe-agent"
)

// ErrFormat is returned by [Read] for a file in none of the formats. Convert it to one of them first.
var ErrFormat = errors.New("not a transcript: expected messages (openai-chat), lines with a type (claude-code) or a history (swe-agent)")

// Run is one run of an agent, as a transcript tells it.
type Run struct {
	// ID comes from the conversation or from the file's name; it is a valid run id.
	ID string
	// Agent is the format, or the kind of a sub-agent.
	Agent string
	// Format is one of the formats.
	Format string
	Model  string
	// Parent of a sub-agent's run; nil for other runs.
	Parent *schema.Parent
	Turns  []*Turn
	// Rest are the messages after the last turn.
	Rest []schema.Message
	End  publisher.RunEnd
}

// Turn is one answer of the model, with the messages that led to it and the results of its calls.
type Turn struct {
	// Compacted says that the model continued with a summary before this turn; nil if it did not.
	Compacted *schema.ContextCompactedData
	// New messages to the model.
	New    []schema.Message
	Answer publisher.Answer
	// Results in the order of the file.
	Results []Result
}

// Result is the result of one of a turn's calls.
type Result struct {
	// Call is the index of the call in the answer.
	Call int
	publisher.ToolResult
}

// Calls counts the run's calls.
func (r *Run) Calls() int {
	n := 0
	for _, t := range r.Turns {
		n += len(t.Answer.Calls)
	}
	return n
}

// Messages counts the run's messages, answers included.
func (r *Run) Messages() int {
	n := len(r.Rest)
	for _, t := range r.Turns {
		n += len(t.New) + 1
	}
	return n
}

// Rename gives the run another id, made safe.
func (r *Run) Rename(id string) { r.ID = safe(id) }

// Read reads the runs of a file. It returns [ErrFormat] for an unknown format.
func Read(path string) ([]*Run, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	runs, err := parse(name, b, func() (map[string][]byte, error) { return subagentFiles(path) })
	if err != nil {
		return nil, fmt.Errorf("read transcript %s: %w", path, err)
	}
	return runs, nil
}

// parse reads the runs of a file's content. files returns the files of the session's sub-agents, by agent id.
func parse(name string, b []byte, files func() (map[string][]byte, error)) ([]*Run, error) {
	values, err := valuesOf(b)
	if err != nil {
		return nil, err
	}
	if len(values) == 1 && values[0].Kind() == '[' {
		var list []jsontext.Value
		if err := json.Unmarshal(values[0], &list); err != nil {
			return nil, err
		}
		if len(list) > 0 && member(list[0], "role") == nil {
			values = list
		}
	}
	switch {
	case len(values) == 0:
		return nil, ErrFormat
	case member(values[0], "history") != nil:
		return sweRuns(name, values)
	case member(values[0], "messages") != nil, values[0].Kind() == '[':
		return chatRuns(name, values)
	case member(values[0], "type") != nil:
		owned, err := files()
		if err != nil {
			return nil, err
		}
		return sessionRuns(name, values, owned)
	default:
		return nil, ErrFormat
	}
}

// builder makes turns of messages.
type builder struct {
	run *Run
	// pending messages are new to the model in the next turn.
	pending   []schema.Message
	compacted *schema.ContextCompactedData
	// open are the calls without a result, in order.
	open []openCall
}

// openCall is a call without a result.
type openCall struct {
	// id in the file, empty for none. In the run, the call is number call of turn turn.
	id         string
	turn, call int
	// occurrence of the id in the turn.
	occurrence int
}

func newBuilder(run *Run) *builder { return &builder{run: run} }

// add appends a message to the run.
func (b *builder) add(m *message) {
	if m.Role == schema.RoleAssistant {
		b.answer(m)
		return
	}
	for _, r := range m.results {
		b.result(m, r)
	}
	b.pending = append(b.pending, m.Message)
}

// answer begins a turn, or extends the current one with a part of the same answer.
func (b *builder) answer(m *message) {
	n := len(b.run.Turns)
	if n == 0 || m.told.ResponseID == "" || b.run.Turns[n-1].Answer.ResponseID != m.told.ResponseID {
		t := &Turn{Compacted: b.compacted, New: b.pending}
		t.Answer.Message.Role = schema.RoleAssistant
		b.run.Turns = append(b.run.Turns, t)
		b.pending, b.compacted = nil, nil
		n++
	}
	a := &b.run.Turns[n-1].Answer
	if m.told.Usage == nil {
		m.told.Usage = a.Usage
	}
	if m.told.FinishReasons == nil {
		m.told.FinishReasons = a.FinishReasons
	}
	a.ResponseID, a.Model, a.Usage, a.FinishReasons, a.Time = m.told.ResponseID, m.told.Model, m.told.Usage, m.told.FinishReasons, m.told.Time
	if b.run.Model == "" {
		b.run.Model = a.Model
	}
	for _, c := range m.calls {
		open := openCall{id: c.ID, turn: n, call: len(a.Calls), occurrence: 1}
		if !identifier(c.ID) {
			c.ID = fmt.Sprintf("call-%d", len(a.Calls)+1)
		}
		if !identifier(c.Name) {
			c.Name = "unnamed"
		}
		for i := range a.Calls {
			if a.Calls[i].ID == c.ID {
				open.occurrence++
			}
		}
		part := &m.Parts[c.part]
		*part = schema.CallPart(c.ID, c.Name)
		if open.occurrence > 1 {
			part.Occurrence = open.occurrence
		}
		a.Calls = append(a.Calls, c.ToolCall)
		b.open = append(b.open, open)
	}
	a.Message.Parts = append(a.Message.Parts, m.Parts...)
}

// result gives a result to its call: the latest one with its id. A result without an id is that of the oldest call.
func (b *builder) result(m *message, r result) {
	at := slices.IndexFunc(b.open, func(o openCall) bool { return r.id == "" || o.id == r.id })
	for i := at + 1; r.id != "" && i < len(b.open); i++ {
		if b.open[i].id == r.id && b.open[i].turn > b.open[at].turn {
			at = i
		}
	}
	part := &m.Parts[r.part]
	if at < 0 {
		*part = schema.Text(textOf(r.Result))
		return
	}
	o := b.open[at]
	b.open = slices.Delete(b.open, at, at+1)
	t := b.run.Turns[o.turn-1]
	t.Results = append(t.Results, Result{o.call, r.ToolResult})
	*part = schema.ResponsePart(t.Answer.Calls[o.call].ID)
	part.CallTurn = int32(o.turn) //nolint:gosec // a number of messages
	if o.occurrence > 1 {
		part.Occurrence = o.occurrence
	}
}

// awaits reports whether the last answer has a call without a result, and no message follows it.
func (b *builder) awaits() bool {
	return len(b.pending) == 0 && slices.ContainsFunc(b.open, func(o openCall) bool { return o.turn == len(b.run.Turns) })
}

// finish returns the run. An agent that stopped before its tools answered was cancelled.
func (b *builder) finish() *Run {
	b.run.Rest = b.pending
	if n := len(b.run.Turns); n > 0 && b.run.End.Error == nil && slices.ContainsFunc(b.open, func(o openCall) bool { return o.turn == n }) {
		b.run.End.Status, b.run.End.Summary = schema.StatusCancelled, "the transcript ends before the results of all calls"
	}
	return b.run
}
