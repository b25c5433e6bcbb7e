package waymarktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"testing"

	ce "github.com/cloudevents/sdk-go/v2/event"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Replay plays a recorded run against an agent as it is now, without its model and without its tools: [Recorded.Model] answers as the model
// did, and [Recorded.Tools] return what the tools did. The test fails with the first divergence: another message to the model, a call that
// is not recorded, or another end.
//
// file is the output of waymark export RUN --format cloudevents. A recorded run that has not ended is played up to the end of its record.
// Fields that lie in the blob store (above 256 KiB) are not in the file: a run that has them cannot be played. Questions to people are
// answered as recorded.
func Replay(tb testing.TB, file string, agent func(*Recorded) publisher.Work) {
	tb.Helper()
	ReplayWith(tb, file, nil, agent)
}

// ReplayWith is Replay with a change of the executor's configuration, such as the Policy of the recorded run.
func ReplayWith(tb testing.TB, file string, config func(*publisher.Config), agent func(*Recorded) publisher.Work) {
	tb.Helper()
	r, err := readRecorded(file)
	if err != nil {
		tb.Fatalf("waymarktest: replay: %v", err)
	}
	started := r.state.Started
	c := &crashes{w: Start(tb), run: r.state.Head.Run, agent: func(*Outside) publisher.Work { return agent(r) }}
	c.spec = Crash{Answer: r.answer, Config: config, Lives: 1, Run: publisher.RunSpec{
		Agent: started.Agent, Task: started.Task, ThreadID: started.ThreadID, Model: started.Model, ModelTier: started.ModelTier,
		Provider: started.Provider, Labels: started.Labels, MaxTurns: started.MaxTurns,
	}}
	t := c.try(nil)
	if said := r.divergence(t); said != "" {
		tb.Errorf("waymarktest: run %s, played from %s, diverges from its record: %s", r.state.Head.Run, file, said)
		return
	}
	tb.Logf("waymarktest: run %s of %d turns and %d calls was played: no divergence", r.state.Head.Run, len(r.state.Turns), len(r.state.Calls))
}

// Recorded is a recorded run that is played. Its methods may be called from several goroutines.
type Recorded struct {
	state *schema.State
	// shown is the conversation that each answer answers.
	shown map[int32][]schema.Message

	mu sync.Mutex
	// said is the first divergence; empty for none.
	said string
	// over: the record ended before the run.
	over bool
}

// errDiverged ends a run that is played.
var errDiverged = errors.New("the run diverges from its record")

// errOver ends the run at the end of the record.
var errOver = errors.New("the record ends here")

// readRecorded reads a file of structured events, one a line.
func readRecorded(file string) (*Recorded, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: make it with waymark export RUN --format cloudevents -o FILE", err)
	}
	r := &Recorded{shown: make(map[int32][]schema.Message)}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var in ce.Event
		if err := in.UnmarshalJSON(line); err != nil {
			return nil, fmt.Errorf("%s:%d: no structured CloudEvent: %w", file, n, err)
		}
		e, err := schema.FromCloudEvent(in)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		r.fold(e, schema.StreamSequence(n)) //nolint:gosec // a number of lines
	}
	if r.state == nil || r.state.Started == nil {
		return nil, fmt.Errorf("%s: it has no run.started: export the whole run", file)
	}
	if what := r.elsewhere(); what != "" {
		return nil, fmt.Errorf("%s: the content of %s is in the blob store, or encrypted: such a run cannot be played", file, what)
	}
	return r, nil
}

// elsewhere names a message or a call whose content is not in the file.
func (r *Recorded) elsewhere() string {
	for i := range r.state.Messages {
		if len(r.state.Messages[i].Refs) > 0 {
			return fmt.Sprintf("message %d", i+1)
		}
	}
	for i := range r.state.Calls {
		if c := &r.state.Calls[i]; len(c.Refs) > 0 {
			return fmt.Sprintf("call %s in turn %d", c.ToolCallID, c.Turn)
		}
	}
	return ""
}

// fold adds an event.
func (r *Recorded) fold(e *schema.Event, at schema.StreamSequence) {
	if r.state == nil {
		r.state = schema.NewState("", e.Subject)
	}
	header, body := e.Encode()
	rec := schema.NewRecord(at, header, body)
	before := r.state.Conversation()
	v := r.state.Apply(schema.NoKeys, &rec)
	if d, ok := v.Data.(*schema.TurnAnsweredData); ok && v.Kind == schema.Applied {
		r.shown[d.Turn] = before
	}
}

// Model answers as the model of the recorded run did. It is a [publisher.Model].
func (r *Recorded) Model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	shown, ok := r.shown[request.Turn]
	if !ok {
		if r.state.Ended != nil {
			return publisher.Answer{}, r.divergef("the model is asked in turn %d; the recorded run ended in turn %d", request.Turn, r.state.Head.Turn)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = true
		return publisher.Answer{}, publisher.Permanent(errOver)
	}
	if request.Limit == "" {
		for i := range max(len(shown), len(request.Messages)) {
			var was, is *schema.Message
			if i < len(shown) {
				was = &shown[i]
			}
			if i < len(request.Messages) {
				is = &request.Messages[i]
			}
			if was == nil || is == nil || !reflect.DeepEqual(messageOf(was, r.state.Head.Run), messageOf(is, r.state.Head.Run)) {
				return publisher.Answer{}, r.divergef("in turn %d the model is shown another message %d\n  recorded: %s\n  now:      %s",
					request.Turn, i+1, messageText(was), messageText(is))
			}
		}
	}
	return r.answerOf(request.Turn), nil
}

// answerOf is the recorded answer of a turn.
func (r *Recorded) answerOf(turn int32) publisher.Answer {
	var a publisher.Answer
	for i := range r.state.Messages {
		if m := &r.state.Messages[i]; m.Turn == turn && m.Role == schema.RoleAssistant {
			a.Message = m.Message
		}
	}
	for i := range r.state.Calls {
		if c := &r.state.Calls[i]; c.Turn == turn {
			a.Calls = append(a.Calls, publisher.ToolCall{ID: c.ToolCallID, Name: c.Name, Arguments: []byte(c.Arguments), Source: []byte(c.Source)})
		}
	}
	for i := range r.state.Turns {
		if t := &r.state.Turns[i]; t.Turn == turn && t.Answer != nil {
			a.FinishReasons, a.ResponseID, a.Model, a.Usage, a.Source = t.Answer.FinishReasons, t.Answer.ResponseID, t.Answer.Model, t.Answer.Usage, []byte(t.Answer.Source)
		}
	}
	return a
}

// Tools are tools that return what those of the recorded run returned.
func (r *Recorded) Tools(tools ...publisher.Tool) []publisher.Tool {
	played := make([]publisher.Tool, len(tools))
	for i, t := range tools {
		played[i] = t
		played[i].Run = r.Tool
	}
	return played
}

// Tool returns what the tool of the recorded run returned for a call, whichever tool it is. It is a [publisher.ToolFunc], for agents that
// call Turn.Tool themselves.
func (r *Recorded) Tool(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	c := r.state.Call(inv.Key)
	if c == nil {
		return publisher.ToolResult{}, r.divergef("call %s of tool %s in turn %d is not recorded", inv.Key.ToolCallID, inv.Name, inv.Key.Turn)
	}
	if c.Name != inv.Name || !reflect.DeepEqual(plain(c.Arguments, r.state.Head.Run), plain(inv.Arguments, r.state.Head.Run)) {
		return publisher.ToolResult{}, r.divergef("call %s in turn %d is another one\n  recorded: %s %s\n  now:      %s %s",
			inv.Key.ToolCallID, inv.Key.Turn, c.Name, short(c.Arguments), inv.Name, short(inv.Arguments))
	}
	switch c.Outcome {
	case schema.OutcomeReturned:
		return publisher.ToolResult{Result: []byte(c.Result), IsError: c.IsError, Source: []byte(c.ResultSource)}, nil
	case schema.OutcomeFailed:
		if c.Error != nil && c.Error.Type == schema.DeniedType {
			return publisher.ToolResult{}, r.divergef("call %s of tool %s in turn %d runs; it was denied: %s: give the Policy of the recorded run to ReplayWith",
				inv.Key.ToolCallID, inv.Name, inv.Key.Turn, c.Error.Message)
		}
		return publisher.ToolResult{}, recordedFailure{c.Error}
	case schema.OutcomeOpen, schema.OutcomeAbandoned:
	}
	// Nobody knows what it would have returned.
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return publisher.ToolResult{}, publisher.Permanent(errOver)
}

// recordedFailure is the failure of a recorded call.
type recordedFailure struct{ recorded *schema.Error }

func (f recordedFailure) Error() string {
	if f.recorded == nil {
		return "failed"
	}
	return f.recorded.Message
}

// ToolFailure is what is recorded of it. It is not tried again: its last try is what was recorded.
func (f recordedFailure) ToolFailure() schema.Error {
	if f.recorded == nil {
		return schema.Error{Type: "failed"}
	}
	e := *f.recorded
	e.Retryable = false
	return e
}

// answer is what a person answered.
func (r *Recorded) answer(o schema.OpenInterrupt) publisher.Input {
	for i := range r.state.Waits {
		if wait := &r.state.Waits[i]; wait.InterruptID == o.InterruptID && wait.Input != nil {
			return publisher.Input{Status: wait.Input.Status, Payload: []byte(wait.Input.Payload), By: wait.Input.By}
		}
	}
	_ = r.divergef("the run waits for %s (%s), which is not recorded, or has no recorded answer", o.Reason, o.Message)
	return publisher.Input{Status: schema.InputCancelled}
}

// divergef notes the first divergence.
func (r *Recorded) divergef(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == "" {
		r.said = fmt.Sprintf(format, args...)
	}
	return publisher.Permanent(errDiverged)
}

// divergence is the first one; empty for none.
func (r *Recorded) divergence(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said != "" {
		return r.said
	}
	if r.over {
		return "" // up to here nothing was different
	}
	if t.failed != "" {
		return "it does not end: " + t.failed
	}
	d := &difference{trial: t}
	d.calls(r.state, t.state)
	if r.state.Ended != nil {
		d.end(r.state, t.state)
	}
	d.conversation(&trial{run: r.state.Head.Run, state: r.state}, t)
	if len(d.lines) > 0 {
		return d.lines[0]
	}
	return ""
}
