package waymarktest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	ce "github.com/cloudevents/sdk-go/v2/event"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Replay replays a recorded run against the current agent, without its model and its tools. [Recorded.Model] answers as
// the recorded model did. Turn.Tool, also in a [publisher.Loop], returns the recorded result of a tool instead of
// running it. The test fails at the first divergence: another message to the model, a call that is not recorded, a
// question to a person that is missing or not recorded, a missing phase, or another end. It also fails if the agent did
// not use Recorded.Model, or ran a tool by other means.
//
// file is the output of waymark events RUN --all --no-follow --json --raw. If the recorded run has not ended, or a call
// in it was abandoned, it is replayed up to there. A run with fields in the blob store (above 256 KiB) cannot be
// replayed, because they are not in the file. People answer as recorded. Phases and all other code except model and
// tools run for real.
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
	c := &crashes{w: Start(tb), run: r.state.Head.Run, tool: r.play, agent: func(*Outside) publisher.Work { return agent(r) }}
	c.spec = Crash{Answer: r.answer, Config: config, Lives: 1, Run: publisher.RunSpec{
		Agent: started.Agent, Task: started.Task, ThreadID: started.ThreadID, Model: started.Model, ModelTier: started.ModelTier,
		Provider: started.Provider, Labels: started.Labels, MaxTurns: started.MaxTurns, MaxTokens: started.MaxTokens, Complete: started.CompletionTool,
	}}
	t := c.try(nil)
	if said := cmp.Or(r.unplayed(t), r.divergence(t)); said != "" {
		tb.Errorf("waymarktest: run %s, replayed from %s, diverges from its record:\n%s", r.state.Head.Run, file, said)
		return
	}
	to := ""
	if r.over != "" {
		to = " up to " + r.over
	}
	tb.Logf("waymarktest: run %s was replayed%s: %d turns, %d calls, %d questions, no divergence",
		r.state.Head.Run, to, len(t.state.Turns), len(t.state.Calls), len(t.state.Waits))
}

// Recorded is a recorded run to be replayed. It is safe for concurrent use.
type Recorded struct {
	state *schema.State
	// shown is the conversation before each answer.
	shown map[int32][]schema.Message

	// waited is the number of questions recorded before each answer.
	waited map[int32]int

	mu sync.Mutex
	// said is the first divergence; empty for none. It was found in turn saidIn.
	said   string
	saidIn int32
	// over says where the record ended before the run did; empty if it did not.
	over string
	// asked is the latest turn in which the agent asked Model, 0 for none. played are the answered calls.
	asked  int32
	played map[schema.CallKey]bool
	// given maps recorded questions to the positions of the same questions in the replay.
	given map[schema.Position]int
}

// errDiverged ends a replayed run.
var errDiverged = errors.New("the run diverges from its record")

// errOver ends the run at the end of the record.
var errOver = errors.New("the record ends here")

// readRecorded reads a file of structured events, one per line.
func readRecorded(file string) (*Recorded, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: write it with: waymark events RUN --all --no-follow --json --raw > FILE", err)
	}
	r := &Recorded{shown: make(map[int32][]schema.Message), waited: make(map[int32]int), played: make(map[schema.CallKey]bool), given: make(map[schema.Position]int)}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var in ce.Event
		if err := in.UnmarshalJSON(line); err != nil {
			return nil, fmt.Errorf("%s:%d: not a structured CloudEvent: %w", file, n, err)
		}
		e, err := schema.FromCloudEvent(in)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		if r.state != nil && e.Subject != r.state.Head.Run {
			return nil, fmt.Errorf("%s:%d: an event of run %s after events of run %s: export only one run", file, n, e.Subject, r.state.Head.Run)
		}
		if v := r.fold(e, schema.StreamSequence(n)); v.Kind == schema.Rejected && slices.Contains(damages, v.Reason) { //nolint:gosec // a number of lines
			return nil, fmt.Errorf("%s:%d: event %s is not valid after the events before it (%s): export the whole run, in order", file, n, e.ID, v.Reason)
		}
	}
	if r.state == nil || r.state.Started == nil {
		return nil, fmt.Errorf("%s: no run.started: export the whole run", file)
	}
	if len(r.shown) == 0 && len(r.state.Calls) == 0 && len(r.state.Waits) == 0 && len(r.state.Phases) == 0 {
		return nil, fmt.Errorf("%s: run %s has no model answer, no call, no question and no phase: there is nothing to replay", file, r.state.Head.Run)
	}
	switch {
	case r.state.Started.Base != nil:
		return nil, fmt.Errorf("%s: run %s is a fork of run %s, which is not in the file: such a run cannot be replayed", file, r.state.Head.Run, r.state.Started.ResumedFrom)
	case r.state.Started.Handoff != nil:
		return nil, fmt.Errorf("%s: run %s carries out a hand-off of run %s, which is not in the file: such a run cannot be replayed", file, r.state.Head.Run, r.state.Started.Handoff.Run)
	}
	for i := range r.state.Calls {
		c := &r.state.Calls[i]
		if c.Outcome != schema.OutcomeAbandoned || len(c.Settlements) == 0 {
			continue
		}
		for turn := range r.shown {
			if turn > c.Turn {
				return nil, fmt.Errorf("%s: call %s in turn %d was abandoned by a person, and the run continued: such a run cannot be replayed", file, c.ToolCallID, c.Turn)
			}
		}
	}
	if what := r.elsewhere(); what != "" {
		return nil, fmt.Errorf("%s: the content of %s is in the blob store, or encrypted: such a run cannot be replayed", file, what)
	}
	return r, nil
}

// damages are the reasons of rejected events that a log never has, unless earlier events are missing. A log may have
// other rejected events: those of fenced executors, and late answers.
var damages = []schema.Reason{
	schema.ReasonInvalidAttribute, schema.ReasonInvalidData, schema.ReasonEpochAhead, schema.ReasonGap, schema.ReasonLost, schema.ReasonForked,
	schema.ReasonAlreadyStarted, schema.ReasonTurnOrder, schema.ReasonUnknownCall,
}

// elsewhere names a value whose content is not in the file.
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
func (r *Recorded) fold(e *schema.Event, at schema.StreamSequence) schema.Verdict {
	if r.state == nil {
		r.state = schema.NewState("", e.Subject)
	}
	header, body := e.Encode()
	rec := schema.NewRecord(at, header, body)
	before, waits := r.state.Conversation(), len(r.state.Waits)
	v := r.state.Apply(schema.NoKeys, &rec)
	if d, ok := v.Data.(*schema.TurnAnsweredData); ok && v.Kind == schema.Applied {
		r.shown[d.Turn], r.waited[d.Turn] = before, waits
	}
	return v
}

// Model answers as the model of the recorded run did. It is a [publisher.Model].
func (r *Recorded) Model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	r.mu.Lock()
	r.asked = max(r.asked, request.Turn)
	r.mu.Unlock()
	shown, ok := r.shown[request.Turn]
	switch {
	case !ok && r.finished():
		return publisher.Answer{}, r.divergef(request.Turn, "the model is asked in turn %d; the recorded run has no answer there: it ended as %s in turn %d, with %s and %s",
			request.Turn, r.state.Head.Status, r.state.Head.Turn, limitText(r.state), completionText(r.state))
	case !ok:
		return publisher.Answer{}, r.end(fmt.Sprintf("turn %d, where its record ends", request.Turn))
	case request.Limit != "" && !r.limited(request.Turn):
		return publisher.Answer{}, r.divergef(request.Turn, "the run reaches its limit %s before turn %d; the recorded run does not", request.Limit, request.Turn)
	}
	for i := range max(len(shown), len(request.Messages)) {
		var was, is *schema.Message
		if i < len(shown) {
			was = &shown[i]
		}
		if i < len(request.Messages) {
			is = &request.Messages[i]
		}
		if was != nil && is != nil && reflect.DeepEqual(messageOf(was, r.state.Head.Run), messageOf(is, r.state.Head.Run)) {
			continue
		}
		text := fmt.Sprintf("in turn %d message %d to the model differs\n  recorded: %s\n  now:      %s", request.Turn, i+1, messageText(was), messageText(is))
		if request.Limit == "" && r.limited(request.Turn) {
			text = fmt.Sprintf("the recorded run reaches %s before turn %d; the run does not\n", limitText(r.state), request.Turn) + text
		}
		return publisher.Answer{}, r.divergef(request.Turn, "%s", text)
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
	r.mu.Lock()
	r.played[key] = true
	r.mu.Unlock()
	none := schema.ToolReturnedData{}
	c := r.state.Call(key)
	if c == nil && r.behind(key.Turn) {
		return none, r.end(fmt.Sprintf("call %s in turn %d, where its record ends", key.ToolCallID, key.Turn))
	}
	if c == nil {
		return none, r.divergef(key.Turn, "call %s of tool %s in turn %d is not recorded", key.ToolCallID, name, key.Turn)
	}
	if c.Name != name || !reflect.DeepEqual(plain(c.Arguments, r.state.Head.Run), plain(arguments, r.state.Head.Run)) {
		return none, r.divergef(key.Turn, "call %s in turn %d differs\n  recorded: %s %s\n  now:      %s %s",
			key.ToolCallID, key.Turn, c.Name, short(c.Arguments), name, short(arguments))
	}
	switch c.Outcome {
	case schema.OutcomeReturned:
		return schema.ToolReturnedData{Result: c.Result, IsError: c.IsError, Source: c.ResultSource}, nil
	case schema.OutcomeFailed:
		if c.Error != nil && c.Error.Type == schema.DeniedType {
			return none, r.divergef(key.Turn, "call %s of tool %s in turn %d runs, but was denied in the record: %s: pass the Policy of the recorded run to ReplayWith",
				key.ToolCallID, name, key.Turn, c.Error.Message)
		}
		return none, recordedFailure{c.Error}
	case schema.OutcomeAbandoned:
		return none, r.end(fmt.Sprintf("call %s in turn %d, which was abandoned", key.ToolCallID, key.Turn))
	case schema.OutcomeOpen:
	}
	// Its result is unknown.
	return none, r.end(fmt.Sprintf("call %s in turn %d, where its record ends", key.ToolCallID, key.Turn))
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
	r.mu.Lock()
	given, again := r.given[o.Position]
	r.mu.Unlock()
	for i := range r.state.Waits {
		wait := &r.state.Waits[i]
		if again && i != given || !again && r.taken(i) {
			continue
		}
		if questionOf(wait) != questionOf(&schema.StateWait{RunWaitingData: schema.RunWaitingData{
			InterruptID: o.InterruptID, Reason: o.Reason, ToolCallID: o.ToolCallID, Occurrence: o.Occurrence,
		}, Turn: o.Turn}) {
			continue
		}
		r.mu.Lock()
		r.given[o.Position] = i
		r.mu.Unlock()
		if wait.Input == nil {
			_ = r.end(fmt.Sprintf("%s, which its record does not answer", questionText(r.state, wait)))
			return publisher.Input{Status: schema.InputCancelled}
		}
		return publisher.Input{Status: wait.Input.Status, Payload: []byte(wait.Input.Payload), By: wait.Input.By}
	}
	call := r.state.Call(o.CallKey())
	if o.ToolCallID == "" && r.behind(r.turn()) || o.ToolCallID != "" && !r.finished() && (call == nil && r.behind(o.Turn) || call != nil && call.Outcome == schema.OutcomeOpen) {
		_ = r.end(fmt.Sprintf("the question %s (%s), where its record ends", o.InterruptID, o.Message))
		return publisher.Input{Status: schema.InputCancelled}
	}
	_ = r.divergef(0, "the run waits for %s (%s), which is not recorded", o.Reason, o.Message)
	return publisher.Input{Status: schema.InputCancelled}
}

// taken reports whether a recorded question was already matched to another one.
func (r *Recorded) taken(wait int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.given {
		if i == wait {
			return true
		}
	}
	return false
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

// questions compares the questions of the two runs to people. upTo is the number of recorded ones that the replay
// reached.
func (d *difference) questions(a, b *schema.State, upTo int) {
	plainly := func(text string, s *schema.State) string { return strings.ReplaceAll(text, s.Head.Run, "RUN") }
	asked := make(map[string][]*schema.StateWait)
	for i := range b.Waits {
		key := plainly(questionOf(&b.Waits[i]), b)
		asked[key] = append(asked[key], &b.Waits[i])
	}
	for i := range a.Waits[:upTo] {
		was := &a.Waits[i]
		if was.Reason == schema.WaitToolInDoubt {
			continue // caused by a crash, which is not replayed
		}
		var is *schema.StateWait
		if key := plainly(questionOf(was), a); len(asked[key]) > 0 {
			is, asked[key] = asked[key][0], asked[key][1:]
		}
		switch {
		case is == nil && was.Reason == schema.WaitToolApproval && d.other == inRecord:
			d.addf("no person is asked for %s; %s the run waits for it: pass the Policy of the recorded run to ReplayWith, or record a new run",
				questionText(a, was), d.other)
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

// turn is the latest turn in which the model was asked.
func (r *Recorded) turn() int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// finished reports whether the agent ended the run: if a person cancelled it, the record just ends.
func (r *Recorded) finished() bool {
	return r.state.Ended != nil && r.state.Head.Status != schema.StatusCancelled
}

// behind reports whether a turn may lie after the end of the record: the run did not end, and the model was not asked
// later.
func (r *Recorded) behind(turn int32) bool {
	if r.finished() {
		return false
	}
	for answered := range r.shown {
		if answered > turn {
			return false
		}
	}
	return true
}

// divergef notes the first divergence.
func (r *Recorded) divergef(turn int32, format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == "" && r.over == "" {
		r.said, r.saidIn = fmt.Sprintf(format, args...), turn
	}
	return publisher.Permanent(errDiverged)
}

// end notes where the record ends.
func (r *Recorded) end(at string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over == "" {
		r.over = at
	}
	return publisher.Permanent(errOver)
}

// unplayed names a part of the agent that ran for real; empty if there is none.
func (r *Recorded) unplayed(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked == 0 && slices.ContainsFunc(t.state.Turns, func(turn schema.StateTurn) bool { return turn.Answer != nil }) {
		return "the agent asked another model: pass Recorded.Model to it as its model"
	}
	for _, key := range t.ran {
		if c := t.state.Call(key); c != nil && !r.played[key] {
			return fmt.Sprintf("tool %s ran for real: call %s in turn %d has an outcome from neither Turn.Tool nor Recorded.Tool; "+
				"in the test, let the agent run it by\n  result, err := recorded.Tool(ctx, publisher.Invocation{Key: key, Name: %q, Arguments: arguments})",
				c.Name, key.ToolCallID, key.Turn, c.Name)
		}
	}
	return ""
}

// inRecord names the other side of a replay's comparison.
const inRecord = "in the record"

// divergence is the first divergence; empty for none.
func (r *Recorded) divergence(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &difference{trial: t, other: inRecord}
	switch {
	case r.said != "":
		// A question that is missing before it may be the cause.
		before, ok := r.waited[r.saidIn]
		if !ok && r.saidIn > 0 {
			before = len(r.state.Waits) // in a turn after the record
		}
		d.questions(r.state, t.state, before)
		d.lines = append(d.lines, r.said)
	case r.over != "":
		// Up to here there was no other difference.
		d.questions(r.state, t.state, len(r.state.Waits))
	case t.failed != "":
		return "it does not end: " + t.failed
	default:
		d.limits(r.state, t.state)
		d.questions(r.state, t.state, len(r.state.Waits))
		d.phases(r.state, t.state)
		d.calls(r.state, t.state)
		if r.state.Ended != nil {
			d.end(r.state, t.state)
		}
		d.conversation(&trial{run: r.state.Head.Run, state: r.state}, t)
	}
	if len(d.lines) > 0 {
		return d.lines[0]
	}
	return ""
}
