package publisher

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/waymarkio/waymark/schema"
)

// Replay policies of tools: what the next executor may do with a call in doubt. See docs/tools.md.
const (
	// Pure tools have no effect and are run again.
	Pure = schema.ReplayPure
	// Idempotent tools have one effect for each idempotency key, and are run again with the same key.
	Idempotent = schema.ReplayIdempotent
	// Verify tools are asked, on a subject, whether the call had its effect.
	Verify = schema.ReplayVerify
	// Hold leaves the call to a person.
	Hold = schema.ReplayHold
)

// invalidArgumentsType is the error type of a call whose arguments do not match the schema of its tool, in tool.failed
// and [ToolError].
const invalidArgumentsType = "invalid_arguments"

// Tool is a tool of a [Loop].
type Tool struct {
	// Name by which the model calls it, unique in the loop. Required. Every provider allows 1 to 64 letters, digits, _ and
	// -; for other names see [schema.ValidHistory].
	Name string
	// Description tells the model what the tool does and when to call it.
	Description string
	// Parameters is the JSON Schema of the arguments, an object, as the model sees it. [NewTool] generates it. A call
	// whose arguments do not match it fails. Empty means that arguments are not checked.
	Parameters json.RawMessage
	// Replay is the replay policy of its calls; empty means hold.
	Replay schema.Replay
	// VerifySubject is the subject to ask about a call in doubt. Required for the policy verify, and not allowed
	// otherwise.
	VerifySubject string
	// SideEffect describes the effect of a call, for the person who approves it.
	SideEffect string
	// Version tells changes of the tool that Parameters do not show, such as arguments that mean something else; see
	// [schema.Version]. Optional.
	Version string
	// Timeout bounds one run of the tool; 0 means Loop.ToolTimeout. It ends the tool's context. A hold or verify call
	// that exceeds it is held, because its effect is unknown.
	Timeout time.Duration
	// Concurrent allows calls of the tool to run concurrently with other calls of the same answer. Pure tools always
	// may.
	Concurrent bool
	// BeginsLater: Run calls [Invocation.MayBegin] right before the work of a hold or verify call begins, which records
	// that it begins. A call whose Run returned an error before, such as [ErrLost], has no effect and is not in doubt.
	BeginsLater bool
	// Run runs the tool. Required.
	Run ToolFunc

	// arguments checks arguments if the tool has Parameters. decode decodes them as Run does, if NewTool made the tool.
	arguments *jsonschema.Resolved
	decode    func(arguments []byte) error
	// handsOver: a returned call ends the run by a hand-off.
	handsOver bool
	// err is the reason why the tool could not be made.
	err error
}

// NewTool makes a tool from a function. The JSON Schema of its arguments is generated from In, a struct or a map with
// string keys. It uses the names and options of the json tags, and the text of a jsonschema tag as the description of a
// field. A field without omitempty or omitzero is required. The result is Out, encoded as JSON.
//
// The function gets its call from its context ([InvocationOf]). [Loop.Validate] returns an error for a type without a
// schema, and for one whose zero value cannot be encoded as JSON.
func NewTool[In, Out any](name, description string, replay schema.Replay, run func(ctx context.Context, in In) (Out, error)) Tool {
	t := Tool{Name: name, Description: description, Replay: replay}
	t.Parameters, t.err = parameters[In]()
	if run == nil {
		return t
	}
	// Arguments can match the schema but not the type: 1.0, or a number of more than 64 bits.
	t.decode = func(arguments []byte) error { return jsonv2.Unmarshal(plainArguments(arguments), new(In)) }
	t.Run = func(ctx context.Context, inv Invocation) (ToolResult, error) {
		var in In
		if err := jsonv2.Unmarshal(plainArguments(inv.Arguments), &in); err != nil {
			return ToolResult{}, &markedError{error: err, kind: invalidArgumentsType}
		}
		out, err := run(withInvocation(ctx, inv), in)
		if err != nil {
			return ToolResult{}, err
		}
		result, err := Result(out)
		if err != nil && !inv.Replay.Rerunnable() {
			// The tool has had its effect: an error would make the model repeat it.
			return Result("The tool ran, but its result cannot be encoded: " + err.Error())
		}
		return result, err
	}
	if _, err := Result(*new(Out)); err != nil && t.err == nil {
		t.err = err
	}
	return t
}

// parameters generates the schema of a type.
func parameters[In any]() ([]byte, error) {
	made, err := jsonschema.For[In](nil)
	if err != nil {
		return nil, err
	}
	if made.Type != "object" {
		return nil, fmt.Errorf("arguments of type %T are not a JSON object", *new(In))
	}
	resolved, err := made.Resolve(nil)
	if err != nil {
		return nil, err
	}
	// The schema follows the rules of encoding/json, but arguments are decoded by those of its second version.
	var zero any
	text, err := jsonv2.Marshal(*new(In))
	if err == nil {
		err = jsonv2.Unmarshal(text, &zero)
	}
	if err == nil {
		err = resolved.Validate(zero)
	}
	if err != nil {
		return nil, fmt.Errorf("arguments of type %T are not encoded as their schema says: %w", *new(In), err)
	}
	text, err = made.MarshalJSON()
	return text, err
}

func (t *Tool) prepare() error {
	switch {
	case t.Name == "" || recordable(t.Name) != t.Name:
		return configError("Loop.Tools", fmt.Sprintf("name %.80q", t.Name), "use names without control characters")
	case t.err != nil:
		return fmt.Errorf("%w: tool %s: %w", ErrConfig, t.Name, t.err)
	case t.Run == nil:
		return configError("Loop.Tools", t.Name+" without Run", "set the function that runs it")
	case len(t.Version) > schema.MaxBuild || t.Version != "" && recordable(t.Version) != t.Version:
		return configError("Loop.Tools", fmt.Sprintf("%s with the version %.40q", t.Name, t.Version), fmt.Sprintf("use at most %d bytes, without control characters", schema.MaxBuild))
	case t.Timeout < 0:
		return configError("Loop.Tools", fmt.Sprintf("%s with the timeout %s", t.Name, t.Timeout), "use 0 or more")
	}
	t.Replay = cmp.Or(t.Replay, Hold)
	switch t.Replay {
	case Pure, Idempotent, Hold:
		if t.VerifySubject != "" {
			return configError("Loop.Tools", t.Name+" with a VerifySubject", "leave it out, or use the policy verify")
		}
	case Verify:
		if err := checkVerifySubject(t.VerifySubject); err != nil {
			return fmt.Errorf("tool %s: %w", t.Name, err)
		}
	default:
		return configError("Loop.Tools", fmt.Sprintf("%s with the policy %.40q", t.Name, t.Replay), "use pure, idempotent, verify or hold")
	}
	t.arguments = nil
	if len(t.Parameters) > 0 {
		given := new(jsonschema.Schema)
		err := given.UnmarshalJSON(t.Parameters)
		if err == nil {
			t.arguments, err = given.Resolve(nil)
		}
		if err != nil {
			return fmt.Errorf("%w: tool %s: Parameters: %w", ErrConfig, t.Name, err)
		}
	}
	return nil
}

// check returns an error, in words for the model, if arguments do not match the tool's schema.
func (t *Tool) check(arguments []byte) error {
	if t.arguments != nil {
		var value any
		if err := jsonv2.Unmarshal(plainArguments(arguments), &value); err != nil {
			return fmt.Errorf("the arguments are not JSON: %w", err)
		}
		if err := t.arguments.Validate(value); err != nil {
			return fmt.Errorf("the arguments do not match the schema of %s: %w", t.Name, err)
		}
	}
	if t.decode == nil {
		return nil
	}
	return t.decode(arguments)
}

// refusal is the failure of a call whose arguments do not match the tool's schema; nil if they do.
func (t *Tool) refusal(arguments []byte) *schema.Error {
	if err := t.check(arguments); err != nil {
		return &schema.Error{Type: invalidArgumentsType, Message: clipped(err.Error(), maxShownProblem)}
	}
	return nil
}

// plainArguments returns the arguments as JSON: some providers send them as a string that holds JSON, or send none.
func plainArguments(arguments []byte) []byte {
	var text string
	if jsontext.Value(arguments).Kind() == '"' && jsonv2.Unmarshal(arguments, &text) == nil {
		arguments = []byte(text)
	}
	if len(bytes.TrimSpace(arguments)) == 0 {
		return []byte("{}")
	}
	return arguments
}

type invocationKey struct{}

func withInvocation(ctx context.Context, inv Invocation) context.Context {
	return context.WithValue(ctx, invocationKey{}, inv)
}

// InvocationOf returns the call for which a tool runs, with the idempotency key to pass on. It is empty outside of a
// tool's context.
func InvocationOf(ctx context.Context) Invocation {
	inv, _ := ctx.Value(invocationKey{}).(Invocation)
	return inv
}

// markedError is an error of a tool or model, marked with how to handle it.
type markedError struct {
	error
	kind                 string
	retryable, permanent bool
	at                   time.Time
}

func (e *markedError) Unwrap() error { return e.error }

// ToolFailure returns the recorded form of the error.
func (e *markedError) ToolFailure() schema.Error {
	f := failureOf(e.error)
	f.Type, f.Retryable = cmp.Or(e.kind, f.Type), e.retryable
	return f
}

// Retryable marks a tool's error as temporary: a [Loop] retries a pure or idempotent tool after it. nil stays nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, retryable: true}
}

// Permanent marks a [Model]'s error as permanent, such as a refused API key: the model is not asked again. nil stays
// nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, permanent: true}
}

// RetryAt marks a [Model]'s or a tool's error as temporary until a time: a [Loop] does not ask the model before it, and
// does not run a pure or idempotent tool again before it. See Loop.Patience. nil stays nil.
func RetryAt(err error, t time.Time) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, retryable: true, at: t}
}

// retryTime is the time of [RetryAt]; zero without one.
func retryTime(err error) time.Time {
	marked, ok := errors.AsType[*markedError](err)
	switch {
	case !ok:
		return time.Time{}
	case marked.at.IsZero():
		return retryTime(marked.error)
	}
	return marked.at
}

func isPermanent(err error) bool {
	marked, ok := errors.AsType[*markedError](err)
	return ok && marked.permanent || errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrLost)
}
