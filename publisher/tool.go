package publisher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Invocation is what a tool is told about its call.
type Invocation struct {
	// Key of the call.
	Key schema.CallKey
	// Name of the tool.
	Name string
	// Arguments as they are recorded, large ones loaded: the same whenever the call is run again. They are the caller's on a handle that
	// keeps only the head, and where [Redaction] changed them on their way to the record.
	Arguments jsontext.Value
	// IdempotencyKey is the same whenever the call is run again. Hand it to the system that the tool changes.
	IdempotencyKey string
	// Attempt counts the runs of the call, from 1; above 1 an earlier one may have had its effect.
	Attempt int
	// Epoch of the run under which the tool is called. A tool that answers on a verify subject refuses what is older
	// than the question it answered; see [ServeVerify].
	Epoch schema.Epoch
}

// ToolFunc runs a tool. An error is recorded as tool.failed, and a panic, too; a result that the model should see
// as an error is a ToolResult with IsError.
type ToolFunc func(ctx context.Context, inv Invocation) (ToolResult, error)

// Result returns a tool's result of any value that can be written as JSON.
func Result(v any) (ToolResult, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return ToolResult{}, fmt.Errorf("result of type %T: %w", v, err)
	}
	return ToolResult{Result: b}, nil
}

// Tool runs a tool exactly as far as its record allows:
//
//   - recorded result or failure: returned (failures as [*ToolError]), the tool does not run;
//   - not recorded: tool.called is published, then the Config's [Policy] decides about it, then the tool runs, then
//     tool.returned or tool.failed is published;
//   - without a tool, as for a name that the model made up (run is nil): recorded as a failure of the type [UnknownToolType] and returned
//     as [*ToolError];
//   - denied, by a policy or a person: recorded as a failure of the type [DeniedType] and returned as [*ToolError];
//   - in doubt (called, and the epoch changed before an outcome was recorded): a late result of the older
//     executor is adopted; else a denied call fails, and a pure or idempotent one is settled as rerun and run
//     again with the same idempotency key; else the tool of a verify call is asked on its
//     subject: what it did is the result, what it did not do is settled as rerun; else [*HeldError] names the call and
//     the command that settles it. Each settlement is recorded before it is acted on;
//   - held no earlier than 2.5 seconds after the run was taken over: by then the executor of the epoch before can no longer begin the
//     call, and a person who looks sees what stays;
//   - settled as rerun by an operator, at any time: run, though a call of the policies hold and verify not before the executor of the
//     epoch before can no longer begin it, 2.5 seconds after the run was taken over;
//   - recorded as another tool or with other arguments: [*DivergedError] with both.
//
// The tool of a hold or verify call runs only behind an acknowledgement that proves the handle's epoch: of a new event, sent at
// most two seconds ago. Where the last one does not, one more event is published (tool.decided of the policy
// waymark.begin). An executor that paused or was cut off meets there whatever happened meanwhile.
//
// A tool whose context ends before it returned has no recorded outcome: the call stays open. A tool that ran, and whose
// outcome could not be published, is not run again by this handle: its result is returned beside the error, and
// repeating the call publishes it.
// Parallel calls of one turn may be run from several goroutines.
func (t *Turn) Tool(ctx context.Context, call ToolCall, run ToolFunc) (ToolResult, error) {
	r := t.run
	if err := r.settled(ctx); err != nil {
		return ToolResult{}, err
	}
	r.mu.Lock()
	key, ok := r.calls.reserve(t.number, call.ID, call.Occurrence)
	r.mu.Unlock()
	if !ok {
		return ToolResult{}, fmt.Errorf("%s: %w: call %s, occurrence %d, is being run by this handle", t, ErrConflict, call.ID, key.Occurrence)
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls.reserved, key)
	}()
	result, err := t.tool(ctx, key, call, run)
	r.mu.Lock()
	defer r.mu.Unlock()
	// An outcome that was not returned yet will be asked for again.
	if r.calls.outcomes[key] == nil && (err == nil || errors.Is(err, ErrToolFailed) || errors.Is(err, ErrAbandoned)) {
		r.calls.asked[key] = true
	}
	return result, err
}

func (t *Turn) tool(ctx context.Context, key schema.CallKey, call ToolCall, run ToolFunc) (ToolResult, error) {
	r := t.run
	events := 0
	for {
		v := r.viewCall(key)
		if !v.known {
			if call.Replay == schema.ReplayVerify {
				if err := checkVerifySubject(call.VerifySubject); err != nil {
					return ToolResult{}, fmt.Errorf("call %s in %s: %w", call.ID, t, err)
				}
			}
			record := call.draft(t.number)
			if d, ok := record.data.(*schema.ToolCalledData); ok {
				d.Requested = r.fleet.cfg.Policy != nil // it is decided about before it begins
				if key.Occurrence > 1 {
					d.Occurrence = key.Occurrence // so that it begins no other
				}
			}
			if _, err := t.publish(ctx, record); err != nil {
				return ToolResult{}, err
			}
			if err := r.Flush(ctx); err != nil {
				return ToolResult{}, err
			}
			if v = r.viewCall(key); v.open == nil {
				return ToolResult{}, fmt.Errorf("%s: %w: call %s was recorded as another occurrence than %d", t, ErrConflict, call.ID, key.Occurrence)
			}
			continue
		}
		if err := r.compare(ctx, key, &v, call); err != nil {
			return ToolResult{}, err
		}
		if v.open != nil {
			// Of the recorded policy and the one that the tool has now the stricter one counts. By the recorded one an executor of an
			// earlier epoch may have run the call without a begin.
			may := v.open.MayHaveRun(r.Epoch())
			if policy := schema.Stricter(v.open.Replay, call.Replay); call.Replay != "" && policy != v.open.Replay {
				v.open.Replay, v.stricter = policy, &call
			}
			v.open.InDoubt = v.open.InDoubt || may && !v.open.Replay.Rerunnable()
		}
		switch {
		case v.outcome != nil:
			return r.publishOutcome(ctx, key, v.outcome)
		case v.open == nil:
			return r.recorded(ctx, key, v)
		case v.open.InDoubt:
			if err := t.settleDoubt(ctx, key, v, call); err != nil {
				return ToolResult{}, err
			}
			continue // decided anew with what is recorded now
		case v.stage == running && !v.open.Replay.Rerunnable():
			// This handle ran it and did not learn the outcome.
			return ToolResult{}, r.held(v.open, "")
		}
		if run == nil && v.open.Requested {
			// Nothing is to be allowed. A call that was begun is decided about first: it may have run.
			return ToolResult{}, r.unknownTool(ctx, key, call.Name)
		}
		may, err := t.decide(ctx, key, v, call)
		if err != nil {
			return ToolResult{}, err
		}
		if !may {
			continue
		}
		if run == nil {
			return ToolResult{}, r.unknownTool(ctx, key, call.Name)
		}
		again, err := r.mayBegin(ctx, key, &v, !v.open.Replay.Rerunnable(), &events)
		if err != nil {
			return ToolResult{}, err
		}
		if !again {
			return r.invoke(ctx, key, v, call, run)
		}
	}
}

// invoke runs the tool and publishes what became of it.
func (r *Run) invoke(ctx context.Context, key schema.CallKey, v callView, call ToolCall, run ToolFunc) (ToolResult, error) {
	inv := Invocation{Key: key, IdempotencyKey: r.idempotencyKey(v, call), Epoch: r.Epoch()}
	earlier := 0
	if v.call != nil {
		for _, how := range v.call.Settlements {
			if how == schema.SettledRerun {
				earlier++
			}
		}
	}
	inv.Attempt = r.begin(key, earlier)
	inv.Name, inv.Arguments = call.Name, v.arguments
	begun := r.fleet.cfg.Now()
	result, err := protect(ctx, run, inv)
	took := r.fleet.cfg.Now().Sub(begun)
	if err != nil && ctx.Err() != nil {
		// Whether the tool had its effect is not known: an outcome must not be invented.
		return result, fmt.Errorf("tool %s of run %s, call %s: %w", call.Name, r.id, key.ToolCallID, err)
	}
	o := &outcome{result: result}
	if err != nil {
		failure := &ToolError{Key: key, Failure: failureOf(err), Cause: err}
		o.err = failure
		o.draft = draft{
			data: &schema.ToolFailedData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Error: failure.Failure, Attempt: int64(inv.Attempt), DurationMS: took.Milliseconds()},
			turn: key.Turn,
		}
	} else {
		if o.result.Duration == 0 {
			o.result.Duration = took
		}
		o.draft = r.returned(key, o.result)
	}
	r.mu.Lock()
	r.calls.outcomes[key] = o
	r.mu.Unlock()
	return r.publishOutcome(ctx, key, o)
}

// UnknownToolType is the error type of a call for which the executor has no tool, in tool.failed and [ToolError].
const UnknownToolType = "unknown_tool"

// unknownTool closes a call for which there is no tool. The model sees that as the tool's failure.
func (r *Run) unknownTool(ctx context.Context, key schema.CallKey, name string) error {
	return r.fail(ctx, key, schema.Error{Type: UnknownToolType, Message: fmt.Sprintf("there is no tool %.80q", name)})
}

// fail closes a call whose tool does not run.
func (r *Run) fail(ctx context.Context, key schema.CallKey, failure schema.Error) error {
	data := &schema.ToolFailedData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Error: failure}
	if err := r.publishNow(ctx, draft{data: data, turn: key.Turn}); err != nil {
		return err
	}
	return &ToolError{Key: key, Failure: failure}
}

// outcome is what became of a tool that ran, until it is durable and Tool has returned it.
type outcome struct {
	result ToolResult
	err    error
	draft  draft
}

// publishOutcome returns what became of a tool, and publishes it if it is not durable yet. The tool has run: that is recorded even if the
// caller's context has ended.
func (r *Run) publishOutcome(ctx context.Context, key schema.CallKey, o *outcome) (ToolResult, error) {
	if r.viewCall(key).open != nil {
		if err := r.publishNow(context.WithoutCancel(ctx), o.draft); err != nil {
			return o.result, errors.Join(o.err, fmt.Errorf("outcome of call %s in turn %d: %w", key.ToolCallID, key.Turn, err))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls.outcomes, key)
	return o.result, o.err
}

// panicError is a panic of a function of the user's, a tool or what answers for one.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// protect calls a function of the user's. Its panic is a [*panicError].
func protect[In, Out any](ctx context.Context, run func(context.Context, In) (Out, error), in In) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return run(ctx, in)
}

// Failure may be implemented by the errors of tools, to say what is recorded of them.
type Failure interface {
	error
	// ToolFailure is what is recorded; its Type is required.
	ToolFailure() schema.Error
}

func failureOf(err error) schema.Error {
	var own Failure
	var panicked *panicError
	e := schema.Error{Type: "error", Message: err.Error()}
	switch {
	case errors.As(err, &own):
		if f := own.ToolFailure(); f.Type != "" {
			return f
		}
	case errors.As(err, &panicked):
		e.Type = "panic"
	case errors.Is(err, context.DeadlineExceeded):
		e.Type, e.Retryable = "timeout", true
	}
	return e
}

// recorded returns the outcome of a closed call.
func (r *Run) recorded(ctx context.Context, key schema.CallKey, v callView) (ToolResult, error) {
	c := v.call
	if c == nil {
		return ToolResult{}, fmt.Errorf("result of call %s in turn %d of run %s: %w; resume with the content", key.ToolCallID, key.Turn, r.id, ErrNoContent)
	}
	switch c.Outcome {
	case schema.OutcomeFailed:
		e := &ToolError{Key: key, Replayed: true}
		if c.Error != nil {
			e.Failure = *c.Error
		}
		return ToolResult{Recorded: true}, e
	case schema.OutcomeAbandoned:
		return ToolResult{Result: c.Result, IsError: c.IsError, Recorded: true},
			fmt.Errorf("call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, ErrAbandoned)
	default:
		result, err := r.field(ctx, c, "/result", c.Result)
		if err != nil {
			err = fmt.Errorf("result of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
		}
		return ToolResult{Result: result, IsError: c.IsError, Source: c.ResultSource, Recorded: true}, err
	}
}

// field returns a field of a call, loading it if it is in the blob store.
func (r *Run) field(ctx context.Context, c *schema.Call, path string, inline jsontext.Value) (jsontext.Value, error) {
	return r.fleet.field(ctx, c.Refs, path, inline)
}

// field returns a field that may be in the blob store. An encrypted one is no content for anybody without the key.
func (f *Fleet) field(ctx context.Context, refs []schema.Ref, path string, inline jsontext.Value) (jsontext.Value, error) {
	i := slices.IndexFunc(refs, func(ref schema.Ref) bool { return ref.Path == path })
	switch {
	case i < 0 || len(inline) > 0 && refs[i].KeyID == "":
		return inline, nil
	case refs[i].KeyID != "":
		return nil, fmt.Errorf("%w with key %s", ErrEncrypted, refs[i].KeyID)
	}
	b, err := f.Blob(ctx, refs[i].DataRef)
	return b, err
}

// compare checks that what is asked is what was recorded.
func (r *Run) compare(ctx context.Context, key schema.CallKey, v *callView, call ToolCall) error {
	call = *readable(call) // as an answer records it
	asked, err := r.fleet.redactor.value(call.Arguments)
	if err != nil {
		return fmt.Errorf("arguments of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	v.arguments = call.Arguments
	diverged := &DivergedError{Key: key, Asked: CallContent{call.Name, string(asked)}}
	if v.call == nil {
		// Only the head is kept: it has the name, shortened.
		if v.open != nil && v.open.Name != call.Name && len(call.Name) <= len(v.open.Name) {
			diverged.Recorded = CallContent{Name: v.open.Name}
			return fmt.Errorf("run %s: %w", r.id, diverged)
		}
		return nil
	}
	recorded, err := r.field(ctx, v.call, "/arguments", v.call.Arguments)
	if err != nil {
		return fmt.Errorf("arguments of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	if v.call.Name == call.Name && schema.SameJSON(recorded, asked) {
		if schema.SameJSON(asked, call.Arguments) { // else the redaction took away what the tool needs
			v.arguments = recorded
		}
		return nil
	}
	diverged.Recorded = CallContent{v.call.Name, string(recorded)}
	return fmt.Errorf("run %s: %w", r.id, diverged)
}
