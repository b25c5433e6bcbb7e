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

// Replay plays a recorded run against an agent as it is now, without its model and without its tools: [Recorded.Model] answers as the model
// did, and what Turn.Tool runs, in a [publisher.Loop] too, returns what the tool did; the tool itself does not run. The test fails with the
// first divergence: what the model would be shown, a call that is not recorded, a question to a person that is not asked or not recorded, a
// phase that is not run, or another end. It fails, too, if the agent did not ask Recorded.Model, or ran a tool by itself.
//
// file is what waymark export RUN --format cloudevents wrote. A recorded run that has not ended, or in which a call was abandoned, is played
// up to there. Fields that lie in the blob store (above 256 KiB) are not in the file: a run that has them cannot be played. People answer as
// recorded. Phases, and all else that is neither model nor tool, run for real.
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
		tb.Errorf("waymarktest: run %s, played from %s, diverges from its record:\n%s", r.state.Head.Run, file, said)
		return
	}
	to := ""
	if r.over != "" {
		to = " up to " + r.over
	}
	tb.Logf("waymarktest: run %s was played%s: %d turns, %d calls, %d questions, no divergence",
		r.state.Head.Run, to, len(t.state.Turns), len(t.state.Calls), len(t.state.Waits))
}

// Recorded is a recorded run that is played. Its methods may be called from several goroutines.
type Recorded struct {
	state *schema.State
	// shown is the conversation that each answer answers.
	shown map[int32][]schema.Message

	// waited is how many questions are recorded before each answer.
	waited map[int32]int

	mu sync.Mutex
	// said is the first divergence; empty for none. It was found in turn saidIn.
	said   string
	saidIn int32
	// over says where the record ended before the run did; empty if it did not.
	over string
	// asked is the latest turn in which the agent asked Model, 0 for none. played are the calls that were answered.
	asked  int32
	played map[schema.CallKey]bool
	// given are the recorded questions, by where the same one stands now.
	given map[schema.Position]int
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
	r := &Recorded{shown: make(map[int32][]schema.Message), waited: make(map[int32]int), played: make(map[schema.CallKey]bool), given: make(map[schema.Position]int)}
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
		if r.state != nil && e.Subject != r.state.Head.Run {
			return nil, fmt.Errorf("%s:%d: an event of run %s behind those of run %s: export one run", file, n, e.Subject, r.state.Head.Run)
		}
		if v := r.fold(e, schema.StreamSequence(n)); v.Kind == schema.Rejected && slices.Contains(damages, v.Reason) { //nolint:gosec // a number of lines
			return nil, fmt.Errorf("%s:%d: event %s does not follow from those before it (%s): export the whole run, in its order", file, n, e.ID, v.Reason)
		}
	}
	if r.state == nil || r.state.Started == nil {
		return nil, fmt.Errorf("%s: it has no run.started: export the whole run", file)
	}
	if len(r.shown) == 0 && len(r.state.Calls) == 0 && len(r.state.Waits) == 0 && len(r.state.Phases) == 0 {
		return nil, fmt.Errorf("%s: run %s has no answer of a model, no call, no question and no phase: there is nothing to play", file, r.state.Head.Run)
	}
	switch {
	case r.state.Started.Base != nil:
		return nil, fmt.Errorf("%s: run %s is a fork of run %s, which is not in the file: such a run cannot be played", file, r.state.Head.Run, r.state.Started.ResumedFrom)
	case r.state.Started.Handoff != nil:
		return nil, fmt.Errorf("%s: run %s carries out a hand-off of run %s, which is not in the file: such a run cannot be played", file, r.state.Head.Run, r.state.Started.Handoff.Run)
	}
	for i := range r.state.Calls {
		c := &r.state.Calls[i]
		if c.Outcome != schema.OutcomeAbandoned || len(c.Settlements) == 0 {
			continue
		}
		for turn := range r.shown {
			if turn > c.Turn {
				return nil, fmt.Errorf("%s: call %s in turn %d was abandoned by a person, and the run went on: such a run cannot be played", file, c.ToolCallID, c.Turn)
			}
		}
	}
	if what := r.elsewhere(); what != "" {
		return nil, fmt.Errorf("%s: the content of %s is in the blob store, or encrypted: such a run cannot be played", file, what)
	}
	return r, nil
}

// damages are the reasons for which a log never has an event, unless something is missing before it. What a log may have is also refused: events
// of executors that were fenced, and answers that came too late.
var damages = []schema.Reason{
	schema.ReasonInvalidAttribute, schema.ReasonInvalidData, schema.ReasonEpochAhead, schema.ReasonGap, schema.ReasonLost, schema.ReasonForked,
	schema.ReasonAlreadyStarted, schema.ReasonTurnOrder, schema.ReasonUnknownCall,
}

// elsewhere names something of which the content is not in the file.
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
		text := fmt.Sprintf("in turn %d the model is shown another message %d\n  recorded: %s\n  now:      %s", request.Turn, i+1, messageText(was), messageText(is))
		if request.Limit == "" && r.limited(request.Turn) {
			text = fmt.Sprintf("the recorded run reaches %s before turn %d; the run does not\n", limitText(r.state), request.Turn) + text
		}
		return publisher.Answer{}, r.divergef(request.Turn, "%s", text)
	}
	return r.answerOf(request.Turn), nil
}

// limited reports whether a recorded turn is the last one of a run that reached a limit.
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

// Tool returns what the tool of the recorded run returned for a call. It is a [publisher.ToolFunc]. Turn.Tool, and so a [publisher.Loop], calls
// it by itself: it is for agents that run a tool without, and record with Turn.Return what it returned.
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
		return none, r.divergef(key.Turn, "call %s in turn %d is another one\n  recorded: %s %s\n  now:      %s %s",
			key.ToolCallID, key.Turn, c.Name, short(c.Arguments), name, short(arguments))
	}
	switch c.Outcome {
	case schema.OutcomeReturned:
		return schema.ToolReturnedData{Result: c.Result, IsError: c.IsError, Source: c.ResultSource}, nil
	case schema.OutcomeFailed:
		if c.Error != nil && c.Error.Type == schema.DeniedType {
			return none, r.divergef(key.Turn, "call %s of tool %s in turn %d runs; it was denied: %s: give the Policy of the recorded run to ReplayWith",
				key.ToolCallID, name, key.Turn, c.Error.Message)
		}
		return none, recordedFailure{c.Error}
	case schema.OutcomeAbandoned:
		return none, r.end(fmt.Sprintf("call %s in turn %d, which was abandoned", key.ToolCallID, key.Turn))
	case schema.OutcomeOpen:
	}
	// Nothing is known of what it would have returned.
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

// ToolFailure is what is recorded of it.
func (f recordedFailure) ToolFailure() schema.Error {
	if f.recorded == nil {
		return schema.Error{Type: "failed"}
	}
	return *f.recorded
}

// answer is what a person answered.
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

// taken reports whether a recorded question was answered to another one.
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

// questionOf tells a question from the others of its run. Two executors may ask about one call under ids of their own.
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

// questions compares those that the runs asked people. Of the recorded ones so many count, those that the play came to.
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
			continue // of a crash, which is not played
		}
		var is *schema.StateWait
		if key := plainly(questionOf(was), a); len(asked[key]) > 0 {
			is, asked[key] = asked[key][0], asked[key][1:]
		}
		switch {
		case is == nil && was.Reason == schema.WaitToolApproval && d.other == inRecord:
			d.addf("no person is asked for %s; %s the run waits for it: give the Policy of the recorded run to ReplayWith, or record a new run",
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

// phases compares the completed ones by their names: what they return is of the real world.
func (d *difference) phases(a, b *schema.State) {
	for _, phase := range a.Head.CompletedPhases {
		if !slices.Contains(b.Head.CompletedPhases, phase) {
			d.addf("phase %s is not completed; %s it is", phase, d.other)
		}
	}
}

// turn is the latest in which the model was asked.
func (r *Recorded) turn() int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// finished reports whether the agent ended the run: what a person cancelled is a record that ends.
func (r *Recorded) finished() bool {
	return r.state.Ended != nil && r.state.Head.Status != schema.StatusCancelled
}

// behind reports whether a turn may be behind the end of the record: the run did not end, and the model was not asked later.
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

// unplayed says what of the agent was not played, but real; empty for nothing.
func (r *Recorded) unplayed(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked == 0 && slices.ContainsFunc(t.state.Turns, func(turn schema.StateTurn) bool { return turn.Answer != nil }) {
		return "the model of the record was not asked, but another one: give Recorded.Model to the agent, as its model"
	}
	for _, key := range t.ran {
		if c := t.state.Call(key); c != nil && !r.played[key] {
			return fmt.Sprintf("tool %s ran for real: call %s in turn %d has an outcome that neither Turn.Tool nor Recorded.Tool gave; "+
				"let the agent of the test run it by\n  result, err := recorded.Tool(ctx, publisher.Invocation{Key: key, Name: %q, Arguments: arguments})",
				c.Name, key.ToolCallID, key.Turn, c.Name)
		}
	}
	return ""
}

// inRecord names what a replay is compared with.
const inRecord = "in the record"

// divergence is the first one; empty for none.
func (r *Recorded) divergence(t *trial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &difference{trial: t, other: inRecord}
	switch {
	case r.said != "":
		// What was not asked before may be its cause.
		before, ok := r.waited[r.saidIn]
		if !ok && r.saidIn > 0 {
			before = len(r.state.Waits) // in a turn behind the record
		}
		d.questions(r.state, t.state, before)
		d.lines = append(d.lines, r.said)
	case r.over != "":
		// Up to here nothing else was different.
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
