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

// Policies of tools: what the next executor may do with a call in doubt. See docs/tools.md.
const (
	// Pure tools change nothing, and are run again.
	Pure = schema.ReplayPure
	// Idempotent tools have one effect for each idempotency key, and are run again with the same key.
	Idempotent = schema.ReplayIdempotent
	// Verify tools are asked, on a subject, what became of the call.
	Verify = schema.ReplayVerify
	// Hold tools are left to a person.
	Hold = schema.ReplayHold
)

// invalidArgumentsType is the error type of a call whose arguments do not satisfy the schema of its tool, in tool.failed and [ToolError].
const invalidArgumentsType = "invalid_arguments"

// Tool is a tool of a [Loop].
type Tool struct {
	// Name by which the model calls it, unique in the loop. Required.
	Name string
	// Description tells the model what the tool does and when to call it.
	Description string
	// Parameters is the JSON Schema of the arguments, an object, as the model is shown it. [NewTool] makes it; arguments that do not satisfy
	// it are a failed call. Empty means that the arguments are not checked.
	Parameters json.RawMessage
	// Replay is the policy of its calls; empty means hold.
	Replay schema.Replay
	// VerifySubject is asked about a call in doubt. Required for the policy verify, and only there.
	VerifySubject string
	// SideEffect says in words what a call changes, for the person who approves it.
	SideEffect string
	// Timeout bounds one run of the tool; 0 means Loop.ToolTimeout. A tool heeds it by its context. A call of the policies hold and
	// verify that exceeds it is held: whether it had its effect is not known.
	Timeout time.Duration
	// Concurrent: calls of the tool may run concurrently with other calls of the same answer. Those of pure tools may always.
	Concurrent bool
	// Run runs the tool. Required.
	Run ToolFunc

	// arguments checks arguments, if the tool has Parameters; decode reads them as Run does, if NewTool made it.
	arguments *jsonschema.Resolved
	decode    func(arguments []byte) error
	// err is why the tool could not be made.
	err error
}

// NewTool makes a tool of a function. The JSON Schema of its arguments is made from In, a struct or a map with strings as keys: by the
// names and options of its json tags, with the text of a jsonschema tag as the description of a field. A field without omitempty or
// omitzero is required. The result is Out, written as JSON.
//
// In its context the function finds the call ([InvocationOf]). A type of which no schema can be made, and one whose zero value cannot be
// written as JSON, is an error of [Loop.Validate].
func NewTool[In, Out any](name, description string, replay schema.Replay, run func(ctx context.Context, in In) (Out, error)) Tool {
	t := Tool{Name: name, Description: description, Replay: replay}
	t.Parameters, t.err = parameters[In]()
	if run == nil {
		return t
	}
	// What satisfies the schema need not fit into the type: 1.0, or a number of more than 64 bits.
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
		if err != nil && !inv.replay.Rerunnable() {
			// It has had its effect: a failure would invite the model to have it once more.
			return Result("The tool was run, and its result cannot be shown: " + err.Error())
		}
		return result, err
	}
	if _, err := Result(*new(Out)); err != nil && t.err == nil {
		t.err = err
	}
	return t
}

// parameters makes the schema of a type.
func parameters[In any]() ([]byte, error) {
	made, err := jsonschema.For[In](nil)
	if err != nil {
		return nil, err
	}
	if made.Type != "object" {
		return nil, fmt.Errorf("arguments of type %T are no JSON object", *new(In))
	}
	resolved, err := made.Resolve(nil)
	if err != nil {
		return nil, err
	}
	// The schema is made by the rules of encoding/json, and the arguments are read by those of its second version.
	var zero any
	text, err := jsonv2.Marshal(*new(In))
	if err == nil {
		err = jsonv2.Unmarshal(text, &zero)
	}
	if err == nil {
		err = resolved.Validate(zero)
	}
	if err != nil {
		return nil, fmt.Errorf("arguments of type %T are written otherwise than their schema says: %w", *new(In), err)
	}
	text, err = made.MarshalJSON()
	return text, err
}

func (t *Tool) prepare() error {
	switch {
	case t.Name == "" || recordable(t.Name) != t.Name:
		return configError("Loop.Tools", fmt.Sprintf("name %.80q", t.Name), "give each tool a name without control characters")
	case t.err != nil:
		return fmt.Errorf("%w: tool %s: %w", ErrConfig, t.Name, t.err)
	case t.Run == nil:
		return configError("Loop.Tools", t.Name+" without Run", "give the function that runs it")
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

// check returns why the arguments do not satisfy the tool's schema, in words for the model.
func (t *Tool) check(arguments []byte) error {
	if t.arguments != nil {
		var value any
		if err := jsonv2.Unmarshal(plainArguments(arguments), &value); err != nil {
			return fmt.Errorf("the arguments are not JSON: %w", err)
		}
		if err := t.arguments.Validate(value); err != nil {
			return fmt.Errorf("the arguments do not satisfy the schema of %s: %w", t.Name, err)
		}
	}
	if t.decode == nil {
		return nil
	}
	return t.decode(arguments)
}

// plainArguments returns the arguments as JSON: some providers give them as a string that holds it, or none.
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

// InvocationOf returns the call that a tool runs for, with the idempotency key to hand on. It is empty in a context that is not a tool's.
func InvocationOf(ctx context.Context) Invocation {
	inv, _ := ctx.Value(invocationKey{}).(Invocation)
	return inv
}

// markedError is an error of a tool or model that says what may be done about it.
type markedError struct {
	error
	kind                 string
	retryable, permanent bool
}

func (e *markedError) Unwrap() error { return e.error }

// ToolFailure is what is recorded of the error.
func (e *markedError) ToolFailure() schema.Error {
	f := failureOf(e.error)
	f.Type, f.Retryable = cmp.Or(e.kind, f.Type), e.retryable
	return f
}

// Retryable marks an error of a tool that may pass by itself: a [Loop] runs a pure or idempotent tool again after it. nil stays nil.
func Retryable(err error) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, retryable: true}
}

// Permanent marks an error of a [Model] that stays, as for a key that the provider refuses: the model is not asked again. nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &markedError{error: err, permanent: true}
}

func isPermanent(err error) bool {
	marked, ok := errors.AsType[*markedError](err)
	return ok && marked.permanent
}
