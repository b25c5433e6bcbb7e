package waymarktest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Replay replays a recorded run against the current agent, without its model and its tools. [Recorded.Model] answers as
// the recorded model did. Turn.Tool, also in a [publisher.Loop], returns the recorded result of a tool instead of
// running it. People answer as recorded. All other code runs for real. The test fails at the first divergence: another
// message to the model, call, question, phase, limit or end. It also fails if the agent did not use Recorded.Model.
//
// file is the output of waymark events RUN --all --no-follow --json --raw, of a run that has completed or failed. A run
// with fields in the blob store (above 256 KiB) cannot be replayed, because they are not in the file.
//
// config changes the executor's configuration, such as to the Policy of the recorded run; nil changes nothing.
func Replay(tb testing.TB, file string, config func(*publisher.Config), agent func(*Recorded) publisher.Work) {
	tb.Helper()
	r, err := readRecorded(file)
	if err != nil {
		tb.Fatalf("waymarktest: replay: %v", err)
	}
	t := r.trials(Start(tb), config, agent).try(nil)
	if said := r.divergence(t); said != "" {
		tb.Errorf("waymarktest: run %s, replayed from %s, diverges from its record:\n%s", r.state.Head.Run, file, said)
		return
	}
	tb.Logf("waymarktest: run %s was replayed: %d turns, %d calls, %d questions, no divergence",
		r.state.Head.Run, len(t.state.Turns), len(t.state.Calls), len(t.state.Waits))
}

// ReplayFromEach tests a deploy with a recorded run. It lets the current agent take the run over after each record, as
// the executors of the next version take over a living run, and go on as in [Replay]. The test fails if the rest of
// the run diverges from the record. It begins at the first answer of the model or other work: what only a new run would
// see is no divergence, such as another system message. A call in doubt is settled as rerun, and plays its record.
// Each takeover takes place in a world of its own.
func ReplayFromEach(tb testing.TB, file string, config func(*publisher.Config), agent func(*Recorded) publisher.Work) {
	tb.Helper()
	r, err := readRecorded(file)
	if err != nil {
		tb.Fatalf("waymarktest: replay: %v", err)
	}
	var said []string
	for _, stop := range r.stops {
		from := &Recorded{state: r.state, shown: r.shown, given: maps.Clone(stop.given)}
		last := r.events[stop.events-1]
		age := time.Since(schema.ParseTime(last.Time))
		w := Start(tb)
		c := from.trials(w, func(cfg *publisher.Config) {
			cfg.Now = func() time.Time { return time.Now().Add(-age) }
			if config != nil {
				config(cfg)
			}
		}, agent)
		c.recorded = r.events[:stop.events]
		from.asked = true // the answers may all be recorded
		if diverges := from.divergence(c.try(nil)); diverges != "" {
			said = append(said, fmt.Sprintf("after record %d (%s): %s", stop.events, last.Name(), diverges))
		}
		w.close()
	}
	if len(said) > 0 {
		tb.Errorf("waymarktest: run %s, taken over from %s after each of its records, diverges %s:\n%s",
			r.state.Head.Run, file, times(len(said)), strings.Join(said, "\n"))
		return
	}
	tb.Logf("waymarktest: run %s was taken over after %d records, no divergence", r.state.Head.Run, len(r.stops))
}

// trials are those of an agent against the record.
func (r *Recorded) trials(w *World, config func(*publisher.Config), agent func(*Recorded) publisher.Work) *crashes {
	started := r.state.Started
	c := &crashes{w: w, run: r.state.Head.Run, tool: r.play, versions: []Agent{func(*Outside) publisher.Work { return agent(r) }}}
	c.spec = Crash{Answer: r.answer, Config: config, Run: publisher.RunSpec{
		Agent: started.Agent, Task: started.Task, ThreadID: started.ThreadID, Model: started.Model, ModelTier: started.ModelTier,
		Priority: started.Priority, Provider: started.Provider, Labels: started.Labels, MaxTurns: started.MaxTurns, MaxTokens: started.MaxTokens, Complete: started.CompletionTool,
	}}
	return c
}

// Recorded is a recorded run to be replayed. It is safe for concurrent use.
type Recorded struct {
	state *schema.State
	// events of the record, and where an executor may stop in them.
	events []*schema.Event
	stops  []stop
	// shown is the conversation before each answer.
	shown map[int32][]schema.Message

	mu sync.Mutex
	// said is the first divergence; empty for none.
	said string
	// asked: the agent asked Model.
	asked bool
	// given maps questions of the replay to the positions of the same questions in the record.
	given map[schema.Position]int
}

// stop is a place in the record where the run has a model's answer or other work, and has not ended.
type stop struct {
	// events before it.
	events int
	// given are the questions before it, as [Recorded.given] has them.
	given map[schema.Position]int
}

// errDiverged ends a replayed run.
var errDiverged = errors.New("the run diverges from its record")

// readRecorded reads a file of structured events, one per line.
func readRecorded(file string) (*Recorded, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: write it with: waymark events RUN --all --no-follow --json --raw > FILE", err)
	}
	r := &Recorded{shown: make(map[int32][]schema.Message), given: make(map[schema.Position]int)}
	n := 0
	for line := range bytes.Lines(b) {
		if n++; len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var in ce.Event
		if err := in.UnmarshalJSON(line); err != nil {
			return nil, fmt.Errorf("%s:%d: not a structured CloudEvent: %w", file, n, err)
		}
		e, err := schema.FromCloudEvent(in)
		if err == nil {
			err = r.fold(e, schema.StreamSequence(n)) //nolint:gosec // a number of lines
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
	}
	switch s := r.state; {
	case s == nil || s.Started == nil:
		return nil, fmt.Errorf("%s: no run.started: export the whole run", file)
	case s.Started.Base != nil || s.Started.Handoff != nil:
		return nil, fmt.Errorf("%s: run %s is a fork or carries out a hand-off of run %s, which is not in the file", file, s.Head.Run, s.Started.ResumedFrom)
	case s.Ended == nil || s.Head.Status == schema.StatusCancelled:
		return nil, fmt.Errorf("%s: run %s is %s: export a run that has completed or failed", file, s.Head.Run, s.Head.Status)
	case len(r.shown)+len(s.Calls)+len(s.Waits)+len(s.Phases) == 0:
		return nil, fmt.Errorf("%s: run %s has no model answer, no call, no question and no phase: there is nothing to replay", file, s.Head.Run)
	}
	return r, nil
}

// fold adds an event.
func (r *Recorded) fold(e *schema.Event, at schema.StreamSequence) error {
	if r.state == nil {
		r.state = schema.NewState("", e.Subject)
	}
	if e.Subject != r.state.Head.Run {
		return fmt.Errorf("an event of run %s after events of run %s: export only one run", e.Subject, r.state.Head.Run)
	}
	header, body := e.Encode()
	rec := schema.NewRecord(at, header, body)
	before := r.state.Conversation()
	v := r.state.Apply(schema.NoKeys, &rec)
	r.events = append(r.events, e)
	switch {
	case v.Kind == schema.Rejected && slices.Contains(damages, v.Reason):
		return fmt.Errorf("event %s is not valid after the events before it (%s): export the whole run, in order", e.ID, v.Reason)
	case v.Kind != schema.Applied:
		return nil
	}
	if refs := schema.RefsOf(v.Data); refs != nil && len(*refs) > 0 {
		return fmt.Errorf("the content of event %s is in the blob store, or encrypted: such a run cannot be replayed", e.ID)
	}
	if d, ok := v.Data.(*schema.TurnAnsweredData); ok {
		r.shown[d.Turn] = before
	}
	s := r.state
	if s.Head.Status.Terminal() || len(r.shown)+len(s.Calls)+len(s.Waits)+len(s.Phases) == 0 {
		return nil
	}
	here := stop{events: len(r.events), given: make(map[schema.Position]int)}
	if n := len(r.stops); n > 0 {
		maps.Copy(here.given, r.stops[n-1].given)
	}
	for _, o := range s.Head.Interrupts {
		here.given[o.Position] = slices.IndexFunc(s.Waits, func(w schema.StateWait) bool { return w.InterruptID == o.InterruptID && w.Input == nil })
	}
	r.stops = append(r.stops, here)
	return nil
}

// damages are the reasons of rejected events that a log never has, unless earlier events are missing. A log may have
// other rejected events: those of fenced executors, and late answers.
var damages = []schema.Reason{
	schema.ReasonInvalidAttribute, schema.ReasonInvalidData, schema.ReasonEpochAhead, schema.ReasonGap, schema.ReasonLost, schema.ReasonForked,
	schema.ReasonAlreadyStarted, schema.ReasonTurnOrder, schema.ReasonUnknownCall,
}

// Model answers as the model of the recorded run did. It is a [publisher.Model].
func (r *Recorded) Model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	shown, ok := r.shown[request.Turn]
	switch {
	case !ok:
		return publisher.Answer{}, r.divergef("the model is asked in turn %d; the recorded run has no answer there: it ended as %s in turn %d, with %s and %s",
			request.Turn, r.state.Head.Status, r.state.Head.Turn, limitText(r.state), completionText(r.state))
	case request.Limit != "" && !r.limited(request.Turn):
		return publisher.Answer{}, r.divergef("the run reaches its limit %s before turn %d; the recorded run does not", request.Limit, request.Turn)
	}
	for i := range max(len(shown), len(request.Messages)) {
		var was, is *schema.Message
		if i < len(shown) {
			was = &shown[i]
		}
		if i < len(request.Messages) {
			is = &request.Messages[i]
		}
		if was == nil || is == nil || !reflect.DeepEqual(messageOf(was, r.state.Head.Run), messageOf(is, r.state.Head.Run)) {
			return publisher.Answer{}, r.divergef("in turn %d message %d to the model differs\n  recorded: %s\n  now:      %s",
				request.Turn, i+1, messageText(was), messageText(is))
		}
	}
	return r.answerOf(request.Turn), nil
}

// limited reports whether a recorded turn is the last one of a run at its limit.
func (r *Recorded) limited(turn int32) bool {
	return slices.ContainsFunc(r.state.Turns, func(t schema.StateTurn) bool { return t.Turn == turn && t.Purpose == schema.PurposeRecovery })
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

// Tool returns the recorded result of a call. It is a [publisher.ToolFunc]. Turn.Tool and [publisher.Loop] use it by
// themselves: call it only in agents that run tools by other means and record their results with Turn.Return.
func (r *Recorded) Tool(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	d, err := r.play(inv.Key, inv.Name, inv.Arguments)
	return publisher.ToolResult{Result: []byte(d.Result), IsError: d.IsError, Source: []byte(d.Source)}, err
}

// play answers a call.
func (r *Recorded) play(key schema.CallKey, name string, arguments []byte) (schema.ToolReturnedData, error) {
	key.Occurrence = max(key.Occurrence, 1)
	none := schema.ToolReturnedData{}
	c := r.state.Call(key)
	switch {
	case c == nil:
		return none, r.divergef("call %s of tool %s in turn %d is not recorded", key.ToolCallID, name, key.Turn)
	case c.Name != name || !reflect.DeepEqual(plain(c.Arguments, r.state.Head.Run), plain(arguments, r.state.Head.Run)):
		return none, r.divergef("call %s in turn %d differs\n  recorded: %s %s\n  now:      %s %s",
			key.ToolCallID, key.Turn, c.Name, short(c.Arguments), name, short(arguments))
	case c.Outcome == schema.OutcomeReturned:
		return schema.ToolReturnedData{Result: c.Result, IsError: c.IsError, Source: c.ResultSource}, nil
	case c.Outcome == schema.OutcomeFailed && (c.Error == nil || c.Error.Type != schema.DeniedType):
		return none, recordedFailure{c.Error}
	}
	return none, r.divergef("call %s of tool %s in turn %d runs, but in the record it was denied, or abandoned by a person: pass the Policy of the recorded run to Replay",
		key.ToolCallID, name, key.Turn)
}

// recordedFailure is the failure of a recorded call.
type recordedFailure struct{ recorded *schema.Error }

func (f recordedFailure) Error() string {
	if f.recorded == nil {
		return "failed"
	}
	return f.recorded.Message
}

// ToolFailure returns the recorded failure.
func (f recordedFailure) ToolFailure() schema.Error {
	if f.recorded == nil {
		return schema.Error{Type: "failed"}
	}
	return *f.recorded
}

// answer is a person's recorded answer.
func (r *Recorded) answer(o schema.OpenInterrupt) publisher.Input {
	asked := questionOf(&schema.StateWait{RunWaitingData: schema.RunWaitingData{
		InterruptID: o.InterruptID, Reason: o.Reason, ToolCallID: o.ToolCallID, Occurrence: o.Occurrence,
	}, Turn: o.Turn})
	r.mu.Lock()
	at, again := r.given[o.Position]
	for i := 0; !again && i < len(r.state.Waits); i++ {
		if questionOf(&r.state.Waits[i]) == asked && !slices.Contains(slices.Collect(maps.Values(r.given)), i) {
			at, again, r.given[o.Position] = i, true, i
		}
	}
	r.mu.Unlock()
	if again && r.state.Waits[at].Input != nil {
		in := r.state.Waits[at].Input
		return publisher.Input{Status: in.Status, Payload: []byte(in.Payload), By: in.By}
	}
	_ = r.divergef("the run waits for %s (%s), which is not recorded, or not answered there", o.Reason, o.Message)
	return publisher.Input{Status: schema.InputCancelled}
}

// questionOf identifies a question within its run. Two executors may ask about one call under different ids.
func questionOf(w *schema.StateWait) string {
	if w.Reason == schema.WaitToolApproval {
		return fmt.Sprintf("%s %+v", w.Reason, w.CallKey())
	}
	return w.Reason + " " + w.InterruptID
}

func questionText(s *schema.State, w *schema.StateWait) string {
	if w.Reason == schema.WaitToolApproval {
		name := ""
		if c := s.Call(w.CallKey()); c != nil {
			name = " of tool " + c.Name
		}
		return fmt.Sprintf("the approval of call %s%s in turn %d (%s)", w.ToolCallID, name, w.Turn, w.Message)
	}
	return fmt.Sprintf("%s %s (%s)", w.Reason, w.InterruptID, w.Message)
}

// questions compares the questions of the two runs to people.
func (d *difference) questions(a, b *schema.State) {
	plainly := func(text string, s *schema.State) string { return strings.ReplaceAll(text, s.Head.Run, "RUN") }
	asked := make(map[string][]*schema.StateWait)
	for i := range b.Waits {
		key := plainly(questionOf(&b.Waits[i]), b)
		asked[key] = append(asked[key], &b.Waits[i])
	}
	for i := range a.Waits {
		was := &a.Waits[i]
		if incidental(was) {
			continue // its cause is not replayed
		}
		var is *schema.StateWait
		if key := plainly(questionOf(was), a); len(asked[key]) > 0 {
			is, asked[key] = asked[key][0], asked[key][1:]
		}
		switch {
		case is == nil:
			d.addf("no person is asked for %s; %s the run waits for it", questionText(a, was), d.other)
		case plainly(is.Message, b) != plainly(was.Message, a):
			d.addf("a person is asked for %s; %s it is %s", questionText(b, is), d.other, questionText(a, was))
		case !reflect.DeepEqual(plain(is.ResponseSchema, b.Head.Run), plain(was.ResponseSchema, a.Head.Run)):
			d.addf("the answer to %s has the schema %s; %s it has %s", questionText(b, is), short(is.ResponseSchema), d.other, short(was.ResponseSchema))
		}
	}
}

// phases compares the completed phases by name: their outputs depend on the real world.
func (d *difference) phases(a, b *schema.State) {
	for _, phase := range a.Head.CompletedPhases {
		if !slices.Contains(b.Head.CompletedPhases, phase) {
			d.addf("phase %s is not completed; %s it is", phase, d.other)
		}
	}
}

// divergef notes the first divergence.
func (r *Recorded) divergef(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = cmp.Or(r.said, fmt.Sprintf(format, args...))
	return publisher.Permanent(errDiverged)
}

// inRecord names the other side of a replay's comparison.
const inRecord = "in the record"

// divergence is the first divergence, or all differences of the whole run; empty for none.
func (r *Recorded) divergence(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.said != "":
		return r.said
	case !r.asked && slices.ContainsFunc(t.state.Turns, func(turn schema.StateTurn) bool { return turn.Answer != nil }):
		return "the agent asked another model: pass Recorded.Model to it as its model"
	}
	d := compare(&trial{run: r.state.Head.Run, state: r.state, outside: new(outside)}, t, inRecord)
	return strings.Join(d.lines, "\n")
}
