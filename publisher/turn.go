package publisher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Turn is one model call and the tool calls that it requested.
type Turn struct {
	run    *Run
	number int32
}

// Number of the turn, from 1.
func (t *Turn) Number() int32 { return t.number }

// Run the turn belongs to.
func (t *Turn) Run() *Run { return t.run }

// TurnSpec describes the start of a turn.
type TurnSpec struct {
	// Number of the turn; 0 means the next. The number of the turn that was open when the run was resumed starts that
	// turn again: its messages are superseded, its closed calls stay.
	Number int32
	// Messages that are new to the model.
	Messages []schema.Message
	// Signals are the ids of the run's signals that the messages pass on; see [Run.Signals]. The turn's answer consumes
	// them. If the turn is started again, name them again. A turn that ends without an answer leaves them open for a
	// later turn.
	Signals []string
	// Purpose is work or recovery; empty means work.
	Purpose string
}

// StartTurn returns a handle of the next turn, or of the turn with the number in spec. It publishes turn.started only
// if needed: for messages, signals, the purpose recovery, or to start a turn again that an earlier executor left open. Otherwise the turn's answer opens it, and any other first event gets a turn.started before it. Until then
// OpenTurn returns nil, and a second StartTurn returns the same number.
//
// For a run that has reached a limit of its [Contract] it returns a [*LimitError], except for the summary turn of
// [Run.LimitReached].
func (r *Run) StartTurn(ctx context.Context, spec TurnSpec) (*Turn, error) {
	last := with(r.ledger, func(l *ledger) int32 { return l.fold.head.Turn })
	if spec.Number == 0 {
		spec.Number = last + 1
	}
	version := with(r.ledger, (*ledger).newVersion)
	if spec.Number > last && len(spec.Messages) == 0 && len(spec.Signals) == 0 && spec.Purpose != schema.PurposeRecovery && version == nil {
		err := r.Err()
		if err == nil {
			err = with(r.ledger, (*ledger).checkLive) // before the caller pays for a model call
		}
		if err == nil {
			err = with(r.ledger, func(l *ledger) error { return l.mayStart(spec.Number) })
		}
		if err != nil {
			return nil, fmt.Errorf("turn %d: %w", spec.Number, err)
		}
		return &Turn{run: r, number: spec.Number}, nil
	}
	data := &schema.TurnStartedData{Turn: spec.Number, Messages: spec.Messages, Signals: spec.Signals, Purpose: spec.Purpose, Version: version}
	if _, err := r.publish(ctx, draft{data: data, turn: spec.Number}); err != nil {
		return nil, err
	}
	return &Turn{run: r, number: spec.Number}, nil
}

// OpenTurn returns the turn that has not ended, which a resumed run may have; nil if there is none. Continue it where
// its recorded messages and calls end, or start it again with StartTurn and its number.
func (r *Run) OpenTurn() *Turn {
	head := r.Head()
	if !head.TurnOpen {
		return nil
	}
	return &Turn{run: r, number: head.Turn}
}

// Turn returns a handle of a turn by its number, from 1. It works for a finished turn, too: its calls return their recorded
// outcomes.
func (r *Run) Turn(number int32) *Turn { return &Turn{run: r, number: max(number, 1)} }

// AddMessage publishes a message of the turn.
func (t *Turn) AddMessage(ctx context.Context, m schema.Message) error {
	_, err := t.publish(ctx, draft{data: &schema.MessageAddedData{Message: m}, turn: t.number})
	return err
}

// publish publishes events of a turn, after its start if it is not open yet.
func (t *Turn) publish(ctx context.Context, drafts ...draft) ([]schema.Verdict, error) {
	drafts[0].opens = true
	return t.run.publish(ctx, drafts...)
}

// AddMessage publishes a message outside any turn.
func (r *Run) AddMessage(ctx context.Context, m schema.Message) error {
	return r.Publish(ctx, &schema.MessageAddedData{Message: m}, 0)
}

// ToolCall is a call that the model requested.
type ToolCall struct {
	// ID of the call, as given by the model; models reuse ids. Required.
	ID string
	// Name of the tool. Required.
	Name string
	// Arguments as the model gave them: an object, or the provider's string, unchanged.
	Arguments json.RawMessage
	// Replay policy; empty means hold, or the recorded policy if the call is recorded. [Turn.Tool] applies the stricter
	// of the two.
	Replay schema.Replay
	// IdempotencyKey is the tool's own; empty means <run>.<turn>.<id>.<occurrence>.
	IdempotencyKey string
	// VerifySubject is the subject to ask about a call in doubt whose policy is verify.
	VerifySubject string
	// SideEffect describes the effect of the call.
	SideEffect string
	// Timeout is how long the tool may take. It is recorded for observers: the SDK does not stop the tool, but
	// heartbeats report the call as overdue; see [schema.Overdue]. 0 means no bound.
	Timeout time.Duration
	// BeginsLater: as in [Tool], for [Turn.Tool].
	BeginsLater bool
	// Error closes the call as failed: it cannot be made, for example because its tool does not exist. [Turn.Answer] and
	// [Turn.Tool] accept it.
	Error *schema.Error
	// Source holds the provider's details for replay.
	Source json.RawMessage
	// Occurrence selects one of the turn's calls with the same id, for Tool; 0 means the first one that this handle has
	// not closed. Other methods count occurrences themselves.
	Occurrence int
}

func (c *ToolCall) requested() schema.RequestedCall {
	return schema.RequestedCall{
		ToolCallID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments), Replay: c.Replay, IdempotencyKey: c.IdempotencyKey,
		VerifySubject: c.VerifySubject, SideEffect: c.SideEffect, TimeoutMS: c.Timeout.Milliseconds(), Error: c.Error, Source: []byte(c.Source),
	}
}

// called is the event of the call. requested: the policy decides before it begins.
func (c *ToolCall) called(requested bool) *schema.ToolCalledData {
	call := c.requested()
	data := call.Called()
	data.Requested = requested
	return data
}

// Answer is a model's answer.
type Answer struct {
	// Message of the model; its role is assistant. Its parts name the calls; the arguments are in Calls.
	Message schema.Message
	// Calls that the model requests, in its order.
	Calls []ToolCall
	// FinishReasons as the provider gave them; never invented.
	FinishReasons []string
	// ResponseID and Model of the provider.
	ResponseID, Model string
	// Usage of the model call; nil if the provider did not report it.
	Usage *schema.Usage
	// Duration of the model's call; zero means unknown.
	Duration time.Duration
	// Source holds the provider's details for replay.
	Source json.RawMessage
}

// Answer publishes the model's answer together with its calls, in one event, before any of them runs. So a crash can
// neither separate the message from its calls nor cause a second model call. Run the calls with [Turn.Tool] afterwards.
// The turn ends with the last of their outcomes, or at once if there is no call; [Turn.End] is not needed. A turn is
// answered once.
//
// It returns the keys of the calls, in order. A call with an Error is recorded as failed, and so are calls that exceed
// the run's limits (type too_many_calls).
func (t *Turn) Answer(ctx context.Context, answer Answer) ([]schema.CallKey, error) {
	data := &schema.TurnAnsweredData{
		Turn: t.number, Message: answer.Message, FinishReasons: answer.FinishReasons, ResponseID: answer.ResponseID, Model: answer.Model,
		Usage: answer.Usage, DurationMS: milliseconds(answer.Duration), Source: []byte(answer.Source),
	}
	for i := range answer.Calls {
		data.Calls = append(data.Calls, readable(answer.Calls[i]).requested())
	}
	room := with(t.run.ledger, func(l *ledger) int { return l.fold.head.CallRoom(t.number, data.Calls) })
	for i := room; i < len(data.Calls); i++ {
		if c := &data.Calls[i]; c.Error == nil {
			c.Error = &schema.Error{Type: tooManyCallsType, Message: "the run cannot take more calls of this answer"}
		}
	}
	verdicts, err := t.run.publish(ctx, draft{data: data, turn: t.number})
	if err != nil {
		return nil, err
	}
	return verdicts[0].Calls, nil
}

// tooManyCallsType is the error type of an answer's calls beyond the limits: 1,024 calls in the turn or open at once,
// or 128 KiB of their ids and names.
const tooManyCallsType = "too_many_calls"

// readable turns a call that no event can carry into a failed call: its arguments are not JSON and are kept as text, or
// its name must be changed.
func readable(c ToolCall) *ToolCall {
	if name := recordable(c.Name); name != c.Name {
		c.Name, c.Error = name, unknownTool(c.Error, "the model gave a tool name that cannot be recorded")
	}
	if len(c.Arguments) == 0 {
		c.Arguments = nil // empty text is not JSON
	}
	if c.Arguments == nil || jsontext.Value(c.Arguments).IsValid() {
		return &c
	}
	if text, err := jsonv2.Marshal(strings.ToValidUTF8(string(c.Arguments), "\uFFFD")); err == nil {
		c.Arguments = text
	}
	if c.Error == nil {
		c.Error = &schema.Error{Type: invalidArgumentsType, Message: "the arguments are not JSON"}
	}
	return &c
}

// unknownTool is the error of a call without a tool. Its type says that the model made up the name, whatever else is
// wrong with the call.
func unknownTool(was *schema.Error, why string) *schema.Error {
	if was == nil {
		return &schema.Error{Type: unknownToolType, Message: why}
	}
	out := *was
	if out.Type != unknownToolType {
		out.Type, out.Message = unknownToolType, why+"; "+was.Message
	}
	return &out
}

// recordable returns a tool's name in a form that an event can carry.
func recordable(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, name)
	if len(name) > schema.MaxIdentifier {
		name = strings.ToValidUTF8(name[:schema.MaxIdentifier], "")
	}
	return cmp.Or(name, "?")
}

// Call records calls without an answer (hooks, proxies, workflows) before their tools run, and returns their keys. Use
// it for tools that you run by other means than [Turn.Tool], and publish their outcome with Return or Fail. An ended
// turn accepts no new call.
//
// Call [Turn.Begin] right before a hold or verify tool if other work comes between. If Call returns keys together with an error, the calls are recorded, but their tools must not run before Begin has returned
// nil.
//
// With a [Policy] the calls are recorded as requested, and begun like [Turn.Begin] does, one after the other. A denied
// call is closed, and its [*ToolError] is among the joined errors. If there are only errors of this kind, the other
// calls have begun.
func (t *Turn) Call(ctx context.Context, calls ...ToolCall) ([]schema.CallKey, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	drafts := make([]draft, len(calls))
	for i, c := range calls {
		if c.Error != nil {
			return nil, fmt.Errorf("call %s in %s: %w", c.ID, t, configError("Error", c.Error.Type, "record a call that cannot be made with Turn.Answer"))
		}
		drafts[i] = draft{data: c.called(t.run.fleet.cfg.Policy != nil), turn: t.number}
	}
	verdicts, err := t.publish(ctx, drafts...)
	if err != nil {
		return nil, err
	}
	keys := make([]schema.CallKey, len(verdicts))
	for i, v := range verdicts {
		keys[i] = v.Call
	}
	if t.run.fleet.cfg.Policy != nil {
		return keys, t.beginAll(ctx, keys)
	}
	guarded := slices.IndexFunc(calls, func(c ToolCall) bool { return !c.Replay.Rerunnable() })
	if guarded < 0 {
		return keys, nil
	}
	return keys, t.Begin(ctx, keys[guarded])
}

// beginAll begins calls one after the other, and continues after a denied one.
func (t *Turn) beginAll(ctx context.Context, keys []schema.CallKey) error {
	var denied []error
	for _, key := range keys {
		switch err := t.Begin(ctx, key); {
		case errors.Is(err, ErrToolFailed):
			denied = append(denied, err)
		case err != nil:
			return errors.Join(append(denied, err)...)
		}
	}
	return errors.Join(denied...)
}

// ToolResult is the result of a tool.
type ToolResult struct {
	// Result as JSON; empty if the tool returned nothing.
	Result json.RawMessage
	// IsError reports whether the tool declares the result an error; nil if it declares nothing.
	IsError *bool
	// Duration of the tool's run; zero means unknown, and Tool then measures it.
	Duration time.Duration
	// Source holds the provider's details for replay.
	Source json.RawMessage
	// Recorded reports that the result comes from the record; the tool did not run now.
	Recorded bool
}

// Return publishes the result of a call. With a [Policy] it returns [ErrNotAllowed] for a call that was not allowed:
// call [Turn.Begin] before the tool runs.
func (t *Turn) Return(ctx context.Context, key schema.CallKey, result ToolResult) error {
	_, err := t.run.publish(ctx, returnedDraft(key, result))
	return err
}

// milliseconds is a duration in the form of an event: rounded up, because 0 means unknown.
func milliseconds(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

func returnedDraft(key schema.CallKey, result ToolResult) draft {
	return draft{
		data: &schema.ToolReturnedData{
			ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Result: []byte(result.Result), IsError: result.IsError,
			DurationMS: milliseconds(result.Duration), Source: []byte(result.Source),
		},
		turn: key.Turn,
	}
}

// Fail publishes that a call failed; failure.Type is required.
func (t *Turn) Fail(ctx context.Context, key schema.CallKey, failure schema.Error) error {
	_, err := t.run.publish(ctx, draft{
		data: &schema.ToolFailedData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Error: failure}, turn: key.Turn,
	})
	return err
}

// TurnEnd describes how a turn ended.
type TurnEnd struct {
	// Messages of the turn that are not published yet.
	Messages []schema.Message
	// Usage of a turn without an answer; nil if the provider did not report it.
	Usage *schema.Usage
	// Error that ended the turn; nil means none.
	Error *schema.Error
}

// End ends the turn early: requested calls that have not begun are abandoned. An answered turn ends with the last
// outcome of its calls and needs no End. Its usage belongs to the answer, and End refuses it.
func (t *Turn) End(ctx context.Context, end TurnEnd) error {
	if head := t.run.Head(); head.Turn == t.number && head.TurnAnswered {
		if end.Usage != nil {
			return fmt.Errorf("ending %s: %w: the turn is answered; pass Usage to Turn.Answer", t, ErrConflict)
		}
		if !head.TurnOpen && len(end.Messages) == 0 && end.Error == nil {
			return nil
		}
	}
	data := &schema.TurnEndedData{Turn: t.number, Messages: end.Messages, Usage: end.Usage, Error: end.Error}
	_, err := t.publish(ctx, draft{data: data, turn: t.number})
	return err
}

func (t *Turn) String() string { return fmt.Sprintf("turn %d of run %s", t.number, t.run.id) }
