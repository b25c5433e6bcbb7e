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
	// Signals are the ids of the run's signals that the messages tell of; see [Run.Signals]. The turn's answer consumes them. A turn that is
	// started again names them again. One that is over without an answer leaves them open: a later turn names them.
	Signals []string
	// Purpose is work or recovery; empty means work.
	Purpose string
	// Time of the start; zero means now.
	Time time.Time
}

// StartTurn returns a handle of the next turn, or of the one with the number in spec. It publishes turn.started only where there is
// something to say: messages, signals, the purpose recovery, a time, or that a turn which an earlier executor left open is started again. Otherwise
// the turn's answer opens it, and any other first event has a turn.started before it. Until then OpenTurn returns nil, and a second
// StartTurn returns the same number.
//
// A run that has reached a limit of its [Contract] starts no turn but the one that [Run.LimitReached] sums up in: the error is a [*LimitError].
func (r *Run) StartTurn(ctx context.Context, spec TurnSpec) (*Turn, error) {
	last := r.ledger.planned().Turn
	if spec.Number == 0 {
		spec.Number = last + 1
	}
	if spec.Number > last && len(spec.Messages) == 0 && len(spec.Signals) == 0 && spec.Purpose != schema.PurposeRecovery && spec.Time.IsZero() {
		err := r.Err()
		if err == nil {
			err = r.ledger.checkLive() // before the caller pays for a model call
		}
		if err == nil {
			err = r.ledger.mayStart(spec.Number)
		}
		if err != nil {
			return nil, fmt.Errorf("turn %d: %w", spec.Number, err)
		}
		return &Turn{run: r, number: spec.Number}, nil
	}
	data := &schema.TurnStartedData{Turn: spec.Number, Messages: spec.Messages, Signals: spec.Signals, Purpose: spec.Purpose}
	if _, err := r.publish(ctx, draft{data: data, turn: spec.Number, at: spec.Time}); err != nil {
		return nil, err
	}
	return &Turn{run: r, number: spec.Number}, nil
}

// OpenTurn returns the turn that has not ended, as a resumed run may have one; nil if there is none. Go on with it
// where its recorded messages and calls end, or start it again with StartTurn and its number.
func (r *Run) OpenTurn() *Turn {
	head := r.ledger.planned()
	if !head.TurnOpen {
		return nil
	}
	return &Turn{run: r, number: head.Turn}
}

// Turn returns a handle of a turn by its number, also of one that is over: its calls can still be asked for, and give what is recorded.
func (r *Run) Turn(number int32) *Turn { return &Turn{run: r, number: number} }

// AddMessage publishes a message of the turn.
func (t *Turn) AddMessage(ctx context.Context, m schema.Message) error {
	_, err := t.publish(ctx, draft{data: &schema.MessageAddedData{Message: m}, turn: t.number})
	return err
}

// publish publishes events of a turn, behind its start if nothing has opened it.
func (t *Turn) publish(ctx context.Context, drafts ...draft) ([]schema.Verdict, error) {
	drafts[0].opens = true
	return t.run.publish(ctx, drafts...)
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
	Arguments json.RawMessage
	// Replay policy; empty means hold, and of a call that is recorded that the recorded policy counts. [Turn.Tool] goes by the stricter of
	// the two.
	Replay schema.Replay
	// IdempotencyKey is the tool's own; empty means <run>.<turn>.<id>.<occurrence>.
	IdempotencyKey string
	// VerifySubject is asked about a call in doubt whose policy is verify.
	VerifySubject string
	// SideEffect says in words what the call changes.
	SideEffect string
	// Timeout is recorded for observers: how long the tool may take. The SDK does not stop the tool, but heartbeats say that the call is
	// overdue; see [schema.Overdue]. 0 means no bound.
	Timeout time.Duration
	// Error closes the call as failed: it cannot be made, as of a tool that is not there. Only [Turn.Answer] takes it.
	Error *schema.Error
	// Source keeps replay detail of the provider.
	Source json.RawMessage
	// Occurrence chooses among the calls of the turn that share the id, for Tool; 0 means the first that this handle
	// has not brought to an end. The others count by themselves.
	Occurrence int
	// Time of the call; zero means now. Those of an answer have the answer's.
	Time time.Time
}

func (c *ToolCall) requested() schema.RequestedCall {
	return schema.RequestedCall{
		ToolCallID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments), Replay: c.Replay, IdempotencyKey: c.IdempotencyKey,
		VerifySubject: c.VerifySubject, SideEffect: c.SideEffect, TimeoutMS: c.Timeout.Milliseconds(), Error: c.Error, Source: []byte(c.Source),
	}
}

func (c *ToolCall) draft(turn int32) draft {
	call := c.requested()
	return draft{data: call.Called(), turn: turn, at: c.Time}
}

// Answer is what the model answered.
type Answer struct {
	// Message of the model; its role is assistant. Its parts name calls, and leave their arguments to Calls.
	Message schema.Message
	// Calls that the model asks for, in its order.
	Calls []ToolCall
	// FinishReasons as the provider gave them; never invented.
	FinishReasons []string
	// ResponseID and Model of the provider.
	ResponseID, Model string
	// Usage of the model's call; nil when the provider did not say.
	Usage *schema.Usage
	// Duration of the model's call; zero means unknown.
	Duration time.Duration
	// Source keeps replay detail of the provider.
	Source json.RawMessage
	// Time of the answer; zero means now.
	Time time.Time
}

// Answer publishes what the model answered and the calls it asks for, in one event and before anything is acted on. A crash can neither
// separate the message from its calls nor cause a second model call. Run the calls with [Turn.Tool] afterwards. The
// turn is over with the last of their outcomes, without a call at once; [Turn.End] need not be called. A turn is answered once.
//
// It returns the keys of the calls, in their order. A call with an Error is recorded as failed, and so are those for which the run has
// no room (type too_many_calls).
func (t *Turn) Answer(ctx context.Context, answer Answer) ([]schema.CallKey, error) {
	data := &schema.TurnAnsweredData{
		Turn: t.number, Message: answer.Message, FinishReasons: answer.FinishReasons, ResponseID: answer.ResponseID, Model: answer.Model,
		Usage: answer.Usage, DurationMS: milliseconds(answer.Duration), Source: []byte(answer.Source),
	}
	for i := range answer.Calls {
		data.Calls = append(data.Calls, readable(answer.Calls[i]).requested())
	}
	room := t.run.ledger.callRoom(t.number, data.Calls)
	for i := room; i < len(data.Calls); i++ {
		if c := &data.Calls[i]; c.Error == nil {
			c.Error = &schema.Error{Type: tooManyCallsType, Message: "the run has no room for more calls of this answer"}
		}
	}
	verdicts, err := t.run.publish(ctx, draft{data: data, turn: t.number, at: answer.Time})
	if err != nil {
		return nil, err
	}
	return verdicts[0].Calls, nil
}

// tooManyCallsType is the error type of calls of an answer that would pass 1,024 calls of the turn or open at once, or 128 KiB of their
// ids and names.
const tooManyCallsType = "too_many_calls"

// readable makes a call that no event can carry one that cannot be made: its arguments are no JSON and are kept to the letter, or its
// name has to be changed.
func readable(c ToolCall) *ToolCall {
	if name := recordable(c.Name); name != c.Name {
		c.Name, c.Error = name, unknownTool(c.Error, "the model gave a tool name that cannot be recorded")
	}
	if len(c.Arguments) == 0 {
		c.Arguments = nil // empty text is no JSON
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

// unknownTool is the error of a call for which there is no tool. Its type says that the name is the model's own, whatever else is wrong with the call.
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

// recordable returns the name of a tool as an event can carry it.
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

// Call records calls without an answer (hooks, proxies, workflows) before their tools run, and returns their keys. It is for tools that
// are not run by [Turn.Tool]: publish their outcome with Return or Fail. An ended turn takes no new call.
//
// Call [Turn.Begin] right before a tool of the policies hold and verify if anything comes between, or if the run is pipelined. Where Call
// returns keys beside an error, the calls are recorded, and their tools must not run before Begin has returned nil.
//
// With a [Policy] the calls are recorded as requested, and begun as [Turn.Begin] says, one after the other: what was denied is closed, and its
// [*ToolError] is among the errors that Call joins. The other calls have begun where all errors are such.
func (t *Turn) Call(ctx context.Context, calls ...ToolCall) ([]schema.CallKey, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	drafts := make([]draft, len(calls))
	for i, c := range calls {
		if c.Error != nil {
			return nil, fmt.Errorf("call %s in %s: %w", c.ID, t, configError("Error", c.Error.Type, "record a call that cannot be made with Turn.Answer"))
		}
		drafts[i] = c.draft(t.number)
		if d, ok := drafts[i].data.(*schema.ToolCalledData); ok {
			d.Requested = t.run.fleet.cfg.Policy != nil // it is decided about before it begins
		}
	}
	verdicts, err := t.publish(ctx, drafts...)
	if err != nil {
		return nil, err
	}
	keys := keysOf(verdicts)
	if t.run.fleet.cfg.Policy != nil {
		return keys, t.beginAll(ctx, keys)
	}
	guarded := slices.IndexFunc(calls, func(c ToolCall) bool { return !c.Replay.Rerunnable() })
	if guarded < 0 || t.run.pipe.Load() != nil {
		return keys, nil
	}
	return keys, t.Begin(ctx, keys[guarded])
}

// beginAll begins calls one after the other, the ones behind a denied call, too.
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
	Result json.RawMessage
	// IsError is the tool's own word that the result is an error; nil when it said nothing.
	IsError *bool
	// Duration of the run of the tool; zero means unknown. Tool measures it when it is zero.
	Duration time.Duration
	// Source keeps replay detail of the provider.
	Source json.RawMessage
	// Time of the result; zero means now.
	Time time.Time
	// Recorded: the result comes from the record; the tool did not run now.
	Recorded bool
}

// Return publishes the result of a call. With a [Policy] it returns [ErrNotAllowed] for one that was not allowed: call [Turn.Begin] before the
// tool runs.
func (t *Turn) Return(ctx context.Context, key schema.CallKey, result ToolResult) error {
	_, err := t.run.publish(ctx, returnedDraft(key, result))
	return err
}

// milliseconds is a duration as an event has it: rounded up, because 0 means that it is not known.
func milliseconds(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

func returnedDraft(key schema.CallKey, result ToolResult) draft {
	return draft{
		data: &schema.ToolReturnedData{
			ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Result: []byte(result.Result), IsError: result.IsError,
			DurationMS: milliseconds(result.Duration), Source: []byte(result.Source),
		},
		turn: key.Turn, at: result.Time,
	}
}

// Fail publishes that a call gave no result; failure.Type is required.
func (t *Turn) Fail(ctx context.Context, key schema.CallKey, failure schema.Error) error {
	_, err := t.run.publish(ctx, draft{
		data: &schema.ToolFailedData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Error: failure}, turn: key.Turn,
	})
	return err
}

// Decide publishes a policy's or person's decision about a call. With a [Policy] only that one allows a call: a permission from here is refused
// with [ErrNotAllowed].
func (t *Turn) Decide(ctx context.Context, decision schema.ToolDecidedData) error {
	_, err := t.publish(ctx, draft{data: &decision, turn: t.number})
	return err
}

// TurnEnd says how a turn ended.
type TurnEnd struct {
	// Messages of the turn that were not published yet.
	Messages []schema.Message
	// Usage of a turn without an answer; nil when the provider did not say.
	Usage *schema.Usage
	// Error that ended the turn; nil means none.
	Error *schema.Error
	// Time of the end; zero means now.
	Time time.Time
}

// End ends the turn early: requested calls that have not begun are abandoned. An answered turn ends with the last outcome of its calls,
// and need not be ended. Its usage belongs to the answer, and is refused here.
func (t *Turn) End(ctx context.Context, end TurnEnd) error {
	if head := t.run.ledger.planned(); head.Turn == t.number && head.TurnAnswered {
		if end.Usage != nil {
			return fmt.Errorf("ending %s: %w: the turn is answered; pass Usage to Turn.Answer", t, ErrConflict)
		}
		if !head.TurnOpen && len(end.Messages) == 0 && end.Error == nil {
			return nil
		}
	}
	data := &schema.TurnEndedData{Turn: t.number, Messages: end.Messages, Usage: end.Usage, Error: end.Error}
	_, err := t.publish(ctx, draft{data: data, turn: t.number, at: end.Time})
	return err
}

func (t *Turn) String() string { return fmt.Sprintf("turn %d of run %s", t.number, t.run.id) }
