package publisher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Turn is one model call and the tool calls it asked for.
type Turn struct {
	run    *Run
	number int32
}

// Number of the turn, from 1.
func (t *Turn) Number() int32 { return t.number }

// Run the turn belongs to.
func (t *Turn) Run() *Run { return t.run }

// TurnSpec says what a turn is started with.
type TurnSpec struct {
	// Number of the turn; 0 means the next. The number of the turn that was open when the run was resumed starts it
	// again: its messages are superseded, its closed calls stay.
	Number int32
	// Messages that are new to the model.
	Messages []schema.Message
	// Purpose is work or recovery; empty means work.
	Purpose string
	// Time of the start; zero means now.
	Time time.Time
}

// StartTurn publishes turn.started.
func (r *Run) StartTurn(ctx context.Context, spec TurnSpec) (*Turn, error) {
	if spec.Number == 0 {
		spec.Number = r.planned().Turn + 1
	}
	data := &schema.TurnStartedData{Turn: spec.Number, Messages: spec.Messages, Purpose: spec.Purpose}
	if _, err := r.publish(ctx, draft{data: data, turn: spec.Number, at: spec.Time}); err != nil {
		return nil, err
	}
	return &Turn{run: r, number: spec.Number}, nil
}

// OpenTurn returns the turn that has not ended, as a resumed run may have one; nil if there is none. Go on with it
// where its recorded messages and calls end, or start it again with StartTurn and its number.
func (r *Run) OpenTurn() *Turn {
	head := r.planned()
	if !head.TurnOpen {
		return nil
	}
	return &Turn{run: r, number: head.Turn}
}

// AddMessage publishes a message of the turn.
func (t *Turn) AddMessage(ctx context.Context, m schema.Message) error {
	_, err := t.run.publish(ctx, draft{data: &schema.MessageAddedData{Message: m}, turn: t.number})
	return err
}

// AddMessage publishes a message outside any turn.
func (r *Run) AddMessage(ctx context.Context, m schema.Message) error {
	_, err := r.publish(ctx, draft{data: &schema.MessageAddedData{Message: m}})
	return err
}

// ToolCall is a call that the model asked for.
type ToolCall struct {
	// ID of the call, the model's own; models re-use them. Required.
	ID string
	// Name of the tool. Required.
	Name string
	// Arguments as the model gave them: an object, or the provider's string to the letter.
	Arguments jsontext.Value
	// Replay policy; empty means hold.
	Replay schema.Replay
	// IdempotencyKey is the tool's own; empty means <run>.<turn>.<id>.<occurrence>.
	IdempotencyKey string
	// VerifySubject is asked about a call in doubt whose policy is verify.
	VerifySubject string
	// SideEffect says in words what the call changes.
	SideEffect string
	// Source keeps replay detail of the provider.
	Source jsontext.Value
	// Occurrence chooses among the calls of the turn that share the id, for Tool; 0 means the first that this handle
	// has not brought to an end.
	Occurrence int
	// Time of the call; zero means now.
	Time time.Time
}

func (c ToolCall) draft(turn int32) draft {
	return draft{
		data: &schema.ToolCalledData{
			ToolCallID: c.ID, Name: c.Name, Arguments: c.Arguments, Replay: c.Replay, IdempotencyKey: c.IdempotencyKey,
			VerifySubject: c.VerifySubject, SideEffect: c.SideEffect, Source: c.Source,
		},
		turn: turn, at: c.Time,
	}
}

// Answer publishes what the model answered and the calls it asks for, before anything is acted on: a crash must
// neither lose the text that asked for a call, nor a call that the text asks for, nor ask the model twice. So they go out
// as one atomic batch, unless Config.BatchFrom switches batches off; only when the server does
// not answer the batch are they brought in one after the other. Run the calls with [Turn.Tool] afterwards.
func (t *Turn) Answer(ctx context.Context, m schema.Message, calls ...ToolCall) ([]schema.CallKey, error) {
	drafts := make([]draft, 0, len(calls)+1)
	drafts = append(drafts, draft{data: &schema.MessageAddedData{Message: m}, turn: t.number})
	for _, c := range calls {
		drafts = append(drafts, c.draft(t.number))
	}
	for i := range drafts {
		drafts[i].together = true
	}
	verdicts, err := t.run.publish(ctx, drafts...)
	if err != nil {
		return nil, err
	}
	return keysOf(verdicts[1:]), nil
}

// Call publishes calls before their tools run, and returns their keys. For tools that are not run by [Turn.Tool]:
// publish their outcome with Return or Fail. Where anything comes between Call and a tool of the policies hold and verify, or
// the run is pipelined, call [Turn.Begin] before the tool. With an error that comes with keys the calls are recorded, and
// their tools must not run before Begin has returned nil.
func (t *Turn) Call(ctx context.Context, calls ...ToolCall) ([]schema.CallKey, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	drafts := make([]draft, len(calls))
	for i, c := range calls {
		drafts[i] = c.draft(t.number)
	}
	verdicts, err := t.run.publish(ctx, drafts...)
	if err != nil {
		return nil, err
	}
	keys := keysOf(verdicts)
	guarded := slices.IndexFunc(calls, func(c ToolCall) bool { return !c.Replay.Rerunnable() })
	if guarded < 0 || t.run.isPipelined() {
		return keys, nil
	}
	return keys, t.Begin(ctx, keys[guarded])
}

func keysOf(verdicts []schema.Verdict) []schema.CallKey {
	keys := make([]schema.CallKey, len(verdicts))
	for i, v := range verdicts {
		keys[i] = v.Call
	}
	return keys
}

// ToolResult is what a tool returned.
type ToolResult struct {
	// Result as JSON; empty when the tool returned nothing.
	Result jsontext.Value
	// IsError is the tool's own word that the result is an error; nil when it said nothing.
	IsError *bool
	// Duration of the run of the tool; zero means unknown. Tool measures it when it is zero.
	Duration time.Duration
	// Source keeps replay detail of the provider.
	Source jsontext.Value
	// Time of the result; zero means now.
	Time time.Time
	// Recorded: the result comes from the record; the tool did not run now.
	Recorded bool
}

// Return publishes the result of a call.
func (t *Turn) Return(ctx context.Context, key schema.CallKey, result ToolResult) error {
	_, err := t.run.publish(ctx, returned(key, result))
	return err
}

func returned(key schema.CallKey, result ToolResult) draft {
	return draft{
		data: &schema.ToolReturnedData{
			ToolCallID: key.ToolCallID, Result: result.Result, IsError: result.IsError,
			DurationMS: result.Duration.Milliseconds(), Source: result.Source,
		},
		turn: key.Turn, at: result.Time,
	}
}

// Fail publishes that a call gave no result; failure.Type is required.
func (t *Turn) Fail(ctx context.Context, key schema.CallKey, failure schema.Error) error {
	_, err := t.run.publish(ctx, draft{data: &schema.ToolFailedData{ToolCallID: key.ToolCallID, Error: failure}, turn: key.Turn})
	return err
}

// Decide publishes a policy's or person's decision about a call.
func (t *Turn) Decide(ctx context.Context, decision schema.ToolDecidedData) error {
	_, err := t.run.publish(ctx, draft{data: &decision, turn: t.number})
	return err
}

// TurnEnd says how a turn ended.
type TurnEnd struct {
	// Messages of the turn that were not published yet.
	Messages []schema.Message
	// FinishReasons as the provider gave them; never invented.
	FinishReasons []string
	// ResponseID and Model of the provider.
	ResponseID, Model string
	// Usage of the turn; nil when the provider did not say.
	Usage *schema.Usage
	// Duration of the model call; zero means unknown.
	Duration time.Duration
	// Error that ended the turn; nil means none.
	Error *schema.Error
	// Source keeps replay detail of the provider.
	Source jsontext.Value
	// Time of the end; zero means now.
	Time time.Time
}

// End publishes turn.ended.
func (t *Turn) End(ctx context.Context, end TurnEnd) error {
	data := &schema.TurnEndedData{
		Turn: t.number, Messages: end.Messages, FinishReasons: end.FinishReasons, ResponseID: end.ResponseID, Model: end.Model,
		Usage: end.Usage, DurationMS: end.Duration.Milliseconds(), Error: end.Error, Source: end.Source,
	}
	_, err := t.run.publish(ctx, draft{data: data, turn: t.number, at: end.Time})
	return err
}

// planned is the head after what is queued, which in synchronous mode is the head.
func (r *Run) planned() schema.Head {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe != nil {
		return r.pipe.head.Clone()
	}
	return r.head.Clone()
}

// phaseCompleted reports whether a phase is completed.
func (r *Run) phaseCompleted(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe != nil {
		return slices.Contains(r.pipe.head.CompletedPhases, name)
	}
	return slices.Contains(r.head.CompletedPhases, name)
}

func (t *Turn) String() string { return fmt.Sprintf("turn %d of run %s", t.number, t.run.id) }
