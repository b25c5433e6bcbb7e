package publisher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Invocation describes the call to its tool.
type Invocation struct {
	// Key of the call.
	Key schema.CallKey
	// Name of the tool.
	Name string
	// Arguments as recorded, with large ones loaded: the same on each run of the call. If [Redaction] changed them in
	// the record, they are the caller's.
	Arguments json.RawMessage
	// IdempotencyKey is the same on each run of the call. Pass it to the system that the tool changes.
	IdempotencyKey string
	// Attempt counts the runs of the call from 1, including the tries of a [Loop]. Above 1, an earlier run may have had
	// its effect. A pure or idempotent call that an earlier executor ran without recording its begin starts at 1 again.
	Attempt int
	// Replay is the policy that applies: the stricter one of the tool's and the recorded one.
	Replay schema.Replay
	// work is notified of each try; latest points to the attempt of the latest try.
	work   *work
	latest *int
	// run of the call; nil outside of a run.
	run *Run
	// begin records that the call begins now.
	begin draft
	// Epoch of the run under which the tool is called. A tool that answers on a verify subject must refuse epochs older
	// than the question it answered; see [ServeVerify].
	Epoch schema.Epoch
}

// Run returns the run of the call; nil outside of a run. Use it in a tool for methods such as [Run.Signals] and
// [Run.AwaitSignal]. Leave the calls and turns to the executor.
func (i Invocation) Run() *Run { return i.run }

// MayBegin returns how long from now the call may still begin, at most two seconds. Call it in a tool whose work begins
// later, or in another process, right before the work begins, and do not begin after that time. If less than half of it
// is left, MayBegin publishes an event that proves the epoch; see [Turn.Tool]. The first one of a tool that begins later
// ([Tool].BeginsLater) publishes tool.called. Any time will do for a pure or idempotent call. Do not begin after an error:
// return it.
func (i Invocation) MayBegin(ctx context.Context) (time.Duration, error) {
	if i.run == nil || i.Replay.Rerunnable() {
		return beginWithin, nil
	}
	r := i.run
	for range beginTries {
		left, err := r.provenFor()
		open := r.ledger.call(i.Key).open
		switch {
		case err != nil:
		case open == nil:
			err = fmt.Errorf("beginning call %s in turn %d of run %s: %w: it is closed", i.Key.ToolCallID, i.Key.Turn, r.id, ErrConflict)
		case open.State.Requested():
			err = r.begin(ctx, i.begin)
		case left > r.fleet.proofAge/2:
			r.ledger.do(func(l *ledger) { l.calls.begins(i.Key) })
			return left, nil
		default:
			err = r.prove(ctx, i.Key)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, r.notProven(i.Key)
}

// maxToolError bounds each text of a tool's error in the record, in bytes, so that each error fits into an event.
const maxToolError = 64 << 10

// ToolFunc runs a tool. An error, and the panic of a pure or idempotent tool, is recorded as tool.failed, with at most
// 64 KiB of its text. To show the model a result that is an error, return a ToolResult with IsError. After the panic of
// a hold or verify tool its effect is unknown: the call is held.
type ToolFunc func(ctx context.Context, inv Invocation) (ToolResult, error)

// Result returns a tool's result from any value that can be encoded as JSON.
func Result(v any) (ToolResult, error) {
	b, err := jsonv2.Marshal(v, jsonv2.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return ToolResult{}, fmt.Errorf("result of type %T: %w", v, err)
	}
	return ToolResult{Result: b}, nil
}

// Tool runs a tool as far as the record of its call allows:
//
//   - recorded result or failure: returned (failures as [*ToolError]), the tool does not run;
//   - not recorded: tool.called is published, the Config's [Policy] decides, the tool runs, and tool.returned or
//     tool.failed is published;
//   - without a tool (run is nil), for a name that the model made up: recorded as a failure of the type unknown_tool
//     and returned as [*ToolError]; a call with an Error: recorded as this failure;
//   - such a call, if it is idempotent and an earlier executor may have run it: held, like a hold call in doubt;
//   - denied, by a policy or a person: recorded as a failure of the type [DeniedType] and returned as [*ToolError];
//   - in doubt (called, but the epoch changed before an outcome was recorded): a late result of the previous executor
//     is adopted. Otherwise a denied call fails; a pure or idempotent one is settled as rerun and runs again with the
//     same idempotency key; the tool of a verify call is asked on its subject, and either its result is used or the
//     call is settled as rerun. In all other cases a [*HeldError] names the call and the command that settles it. Each
//     settlement is recorded before it takes effect;
//   - held, at least 2.5 seconds after the takeover: then the previous executor can no longer begin the call, and a
//     person sees a final state;
//   - settled as rerun by an operator, at any time: it runs. A hold or verify call waits until the previous executor
//     can no longer begin it, 2.5 seconds after the takeover;
//   - recorded as another tool or with other arguments: [ErrDiverged].
//
// The tool of a hold or verify call runs only after an acknowledgement that proves the handle's epoch: that of a new
// event, sent at most two seconds ago. If the last acknowledgement does not prove it, Tool publishes one more event
// (tool.decided of the policy waymark.begin). A tool with BeginsLater calls MayBegin for this proof itself. So an
// executor that was paused or cut off learns of a takeover before its tool runs.
//
// If the context ends before the tool returned, or the tool returns [ErrWaiting] or [ErrLost], no outcome is recorded
// and the call stays open. If a tool ran but its outcome could not be published, this handle does not run it again: Tool
// returns its result with an error that is not [ErrToolFailed], and a repeated call publishes it. Parallel calls of one
// turn may run in several goroutines.
func (t *Turn) Tool(ctx context.Context, call ToolCall, run ToolFunc) (ToolResult, error) {
	r := t.run
	if err := r.ledger.ended(); err != nil {
		return ToolResult{}, err
	}
	key, ok := with2(r.ledger, func(l *ledger) (schema.CallKey, bool) { return l.calls.reserve(t.number, call.ID, call.Occurrence) })
	if !ok {
		return ToolResult{}, fmt.Errorf("%s: %w: call %s, occurrence %d, is being run by this handle", t, ErrConflict, call.ID, key.Occurrence)
	}
	ended := false
	defer func() { r.ledger.do(func(l *ledger) { l.calls.release(key, ended) }) }()
	c := callRunner{run: r, key: key, asked: call, tool: run}
	result, err := c.drive(ctx, t)
	if c.ran == nil {
		ended = err == nil || errors.Is(err, ErrToolFailed) || errors.Is(err, ErrAbandoned)
		return result, err
	}
	if open, _ := r.ledger.stage(key); open {
		// The tool has run: record the outcome even if the caller's context has ended.
		verdicts, failed := r.publish(context.WithoutCancel(ctx), c.ran.draft)
		if failed != nil {
			if err != nil { // ErrToolFailed would say that the failure is recorded
				failed = fmt.Errorf("%w (%v)", failed, err) //nolint:errorlint // as above
			}
			return result, fmt.Errorf("outcome of call %s in turn %d: %w", key.ToolCallID, key.Turn, failed)
		}
		if verdicts[0].Kind == schema.Applied {
			ended = true
			return result, err
		}
	}
	// A person, or another writer, closed the call while its tool ran: what they recorded is its outcome.
	ended = true
	c.look()
	return c.recorded(context.WithoutCancel(ctx))
}

// callRunner brings one call to its outcome, as far as its record allows. Each step publishes at most one event. Then
// the call is looked up again, and the record decides the next step.
type callRunner struct {
	run *Run
	key schema.CallKey
	// asked is the call as its caller requested it; tool runs it, nil if there is none.
	asked ToolCall
	tool  ToolFunc
	// callView is the result of the last look.
	callView
	// proofs counts the events published to prove the epoch.
	proofs int
	// ran is the outcome of the tool, once it ran.
	ran *outcome
}

// look looks up the call.
func (c *callRunner) look() {
	c.callView = c.run.ledger.call(c.key)
}

// drive takes one step after the other. The first one may open the turn.
func (c *callRunner) drive(ctx context.Context, turn *Turn) (ToolResult, error) {
	for {
		c.look()
		if c.unrecorded() {
			if err := c.record(ctx, turn); err != nil {
				return ToolResult{}, err
			}
			continue
		}
		if err := c.compare(ctx); err != nil {
			return ToolResult{}, err
		}
		if c.open != nil {
			// The stricter of the recorded policy and the tool's current policy applies. Under the recorded policy, an
			// executor of an earlier epoch may have run the call without a begin.
			may := c.open.MayHaveRun(c.run.Epoch())
			if policy := schema.Stricter(c.open.Replay, c.asked.Replay); c.asked.Replay != "" && policy != c.open.Replay {
				c.open.Replay, c.stricter = policy, &c.asked
			}
			if may && c.refused() != nil && c.open.Replay == schema.ReplayIdempotent {
				c.open.Replay = schema.ReplayHold // it may have had its effect, and cannot run again here
			}
			if may && c.open.State.Requested() && !c.open.Replay.Rerunnable() {
				c.open.State = schema.CallInDoubt
			}
		}
		switch {
		case c.outcome != nil:
			c.ran = c.outcome
			return c.ran.result, c.ran.err
		case c.open == nil:
			return c.recorded(ctx)
		case c.open.State.InDoubt():
			if err := c.settleDoubt(ctx); err != nil {
				return ToolResult{}, err
			}
			continue // decide again from the new record
		case c.stage == callRunning && !c.open.Replay.Rerunnable():
			// This handle ran it but did not learn its outcome.
			return ToolResult{}, c.run.held(c.open, "")
		}
		refused := c.refused()
		if refused != nil && c.open.State.Requested() {
			// There is nothing to allow. If the call was begun, decide about it first: it may have run.
			return ToolResult{}, c.fail(ctx, *refused)
		}
		may, err := c.decide(ctx)
		if err != nil {
			return ToolResult{}, err
		}
		if !may {
			continue
		}
		if refused != nil {
			return ToolResult{}, c.fail(ctx, *refused)
		}
		again, err := c.mayBegin(ctx, !c.open.Replay.Rerunnable())
		if err != nil {
			return ToolResult{}, err
		}
		if !again {
			return c.invoke(ctx)
		}
	}
}

// record publishes the call.
func (c *callRunner) record(ctx context.Context, turn *Turn) error {
	if c.asked.Replay == schema.ReplayVerify {
		if err := checkVerifySubject(c.asked.VerifySubject); err != nil {
			return fmt.Errorf("call %s in %s: %w", c.asked.ID, turn, err)
		}
	}
	data := c.asked.called(c.run.fleet.cfg.Policy != nil)
	if c.key.Occurrence > 1 {
		data.Occurrence = c.key.Occurrence // so that it begins no other call
	}
	if _, err := turn.publish(ctx, draft{data: data, turn: turn.number, invented: c.tool == nil}); err != nil {
		return err
	}
	if open, _ := c.run.ledger.stage(c.key); !open {
		return fmt.Errorf("%s: %w: call %s was recorded as another occurrence than %d", turn, ErrConflict, c.asked.ID, c.key.Occurrence)
	}
	return nil
}

// invoke runs the tool.
func (c *callRunner) invoke(ctx context.Context) (ToolResult, error) {
	r, key := c.run, c.key
	inv := Invocation{Key: key, IdempotencyKey: c.idempotencyKey(), Epoch: r.Epoch(), run: r}
	earlier := 0
	if c.call != nil {
		for _, how := range c.call.Settlements {
			if how == schema.SettledRerun {
				earlier++
			}
		}
	}
	inv.Attempt = earlier + with(r.ledger, func(l *ledger) int {
		if c.later() {
			return l.calls.look(key).tries + 1
		}
		return l.calls.begin(key)
	})
	latest := inv.Attempt
	inv.begin = beginDraft(c.open, c.stricter)
	inv.latest = &latest
	inv.Replay, inv.Name, inv.Arguments = c.open.Replay, c.asked.Name, slices.Clone(c.arguments) // the tool may change its copy, not the record's
	timeout := c.asked.Timeout
	if c.call != nil && c.call.TimeoutMS > 0 {
		timeout = cmp.Or(timeout, time.Duration(c.call.TimeoutMS)*time.Millisecond)
	}
	inv.work = r.fleet.works.begin(schema.Overdue{
		Run: r.id, Epoch: inv.Epoch, Turn: key.Turn, ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Tool: c.asked.Name,
	}, timeout)
	begun := r.fleet.cfg.Now()
	result, err := protect(withInvocation(ctx, inv), r.fleet.tool(c.tool), inv)
	inv.work.end()
	took := r.fleet.cfg.Now().Sub(begun)
	if err != nil && (ctx.Err() != nil || errors.Is(err, ErrWaiting) || errors.Is(err, ErrLost) || errors.Is(err, ErrPaused) && with(r.ledger, (*ledger).paused) != nil) {
		// The effect of the tool is unknown, or the tool runs again once the run has its answer: record no outcome.
		return result, fmt.Errorf("tool %s of run %s, call %s: %w", c.asked.Name, r.id, key.ToolCallID, err)
	}
	if open, stage := r.ledger.stage(key); open && stage != callRunning { // it returned before it began
		if err != nil {
			failure := failureOf(err)
			failure.Retryable = false
			return ToolResult{}, c.fail(ctx, failure)
		}
		if _, err := inv.MayBegin(ctx); err != nil { // it had to ask for this
			return ToolResult{}, err
		}
	}
	if panicked, ok := errors.AsType[*panicError](err); ok && !c.open.Replay.Rerunnable() {
		// The effect is unknown here, too: the tool may have had it before the panic.
		r.fleet.cfg.Logger.Error().Str("run", r.id).Str("call", key.ToolCallID).Bytes("stack", panicked.stack).Err(panicked).Msg("tool panicked")
		return result, fmt.Errorf("tool %s: %s: %w", c.asked.Name, panicked.Error(), r.held(c.open, ""))
	}
	o := &outcome{result: result}
	if err != nil {
		failure := &ToolError{Key: key, Failure: failureOf(err), Cause: err}
		failure.Failure.Retryable = failure.Failure.Retryable && c.open.Replay.Rerunnable()
		o.err = failure
		o.draft = draft{
			data: &schema.ToolFailedData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Error: failure.Failure, Attempt: int64(latest), DurationMS: milliseconds(took)},
			turn: key.Turn,
		}
	} else {
		if o.result.Duration == 0 {
			o.result.Duration = took
		}
		o.draft = returnedDraft(key, o.result)
		if d, ok := o.draft.data.(*schema.ToolReturnedData); ok && latest > 1 {
			d.Attempt = int64(latest)
		}
	}
	r.ledger.do(func(l *ledger) { l.calls.ran(key, o) })
	c.ran = o
	return o.result, o.err
}

// tool returns what runs a call: the tool itself, or the recorded outcome in a test that replays a run.
func (f *Fleet) tool(tool ToolFunc) ToolFunc {
	if f.hooks.Tool == nil {
		return tool
	}
	return func(_ context.Context, inv Invocation) (ToolResult, error) {
		d, err := f.hooks.Tool(inv.Key, inv.Name, inv.Arguments)
		return ToolResult{Result: []byte(d.Result), IsError: d.IsError, Source: []byte(d.Source)}, err
	}
}

// unknownToolType is the error type of a call whose tool the executor does not have, in tool.failed and [ToolError].
const unknownToolType = schema.UnknownToolType

// refused is the reason why the tool cannot run here; nil if it can.
func (c *callRunner) refused() *schema.Error {
	if c.tool == nil && c.asked.Error == nil {
		return unknownTool(nil, fmt.Sprintf("there is no tool %.80q", c.asked.Name))
	}
	return c.asked.Error
}

// fail closes a call whose tool does not run. The model sees this as the tool's failure.
func (c *callRunner) fail(ctx context.Context, failure schema.Error) error {
	data := &schema.ToolFailedData{ToolCallID: c.key.ToolCallID, Occurrence: c.key.Occurrence, Error: failure}
	if _, err := c.run.publish(ctx, draft{data: data, turn: c.key.Turn}); err != nil {
		return err
	}
	return &ToolError{Key: c.key, Failure: failure}
}

// outcome of a tool that ran, kept until it is durable and Tool has returned it.
type outcome struct {
	result ToolResult
	err    error
	draft  draft
}

// panicError is a panic in a user's function, such as a tool.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// protect calls a user's function. A panic becomes a [*panicError].
func protect[In, Out any](ctx context.Context, run func(context.Context, In) (Out, error), in In) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return run(ctx, in)
}

// Failure may be implemented by errors of tools, to define the recorded failure.
type Failure interface {
	error
	// ToolFailure returns the recorded failure; its Type is required.
	ToolFailure() schema.Error
}

func failureOf(err error) schema.Error {
	var own Failure
	var panicked *panicError
	e := schema.Error{Type: "error", Message: err.Error()}
	switch {
	case errors.As(err, &own):
		if f := own.ToolFailure(); f.Type != "" {
			e = f
		}
	case errors.As(err, &panicked):
		e.Type = "panic"
	case errors.Is(err, context.DeadlineExceeded):
		e.Type, e.Retryable = "timeout", true
	}
	for _, text := range []*string{&e.Type, &e.Message, &e.Code} {
		*text = clipped(*text, maxToolError)
	}
	return e
}

// recorded returns the outcome of a closed call.
func (c *callRunner) recorded(ctx context.Context) (ToolResult, error) {
	key, call := c.key, c.call
	if call == nil {
		return ToolResult{}, fmt.Errorf("result of call %s in turn %d of run %s: %w: the event of the call is missing", key.ToolCallID, key.Turn, c.run.id, ErrIncomplete)
	}
	switch call.Outcome {
	case schema.OutcomeFailed:
		e := &ToolError{Key: key, Replayed: true}
		if call.Error != nil {
			e.Failure = *call.Error
		}
		return ToolResult{Recorded: true}, e
	case schema.OutcomeAbandoned:
		return ToolResult{Result: []byte(call.Result), IsError: call.IsError, Recorded: true},
			fmt.Errorf("call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, c.run.id, ErrAbandoned)
	default:
		result, err := c.run.fleet.Field(ctx, call.Refs, "/result", call.Result)
		if err != nil {
			err = fmt.Errorf("result of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, c.run.id, err)
		}
		return ToolResult{Result: result, IsError: call.IsError, Source: []byte(call.ResultSource), Recorded: true}, err
	}
}

// compare checks that the requested call equals the recorded one.
func (c *callRunner) compare(ctx context.Context) error {
	r, key := c.run, c.key
	call := *readable(c.asked) // in the form that an answer records
	asked, err := r.fleet.redactor.value(call.Arguments)
	if err != nil {
		return fmt.Errorf("arguments of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	c.arguments = call.Arguments
	diverged := func(name string, arguments []byte) error {
		return fmt.Errorf("run %s: %w: call %s of turn %d was recorded as %s(%.200s) and is now requested as %s(%.200s): request the recorded call, "+
			"as the recorded messages of the turn do; a new call needs its own call id", r.id, ErrDiverged, key.ToolCallID, key.Turn, name, arguments, call.Name, asked)
	}
	if c.call == nil {
		// The event of the call is missing. The head has the name, possibly shortened.
		if c.open != nil && c.open.Name != call.Name && len(call.Name) <= len(c.open.Name) {
			return diverged(c.open.Name, nil)
		}
		return nil
	}
	recorded, err := r.fleet.Field(ctx, c.call.Refs, "/arguments", c.call.Arguments)
	if err != nil {
		return fmt.Errorf("arguments of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	if c.call.Name == call.Name && schema.SameJSON(recorded, asked) {
		if schema.SameJSON(asked, call.Arguments) { // otherwise the redaction removed arguments that the tool needs
			c.arguments = recorded
		}
		return nil
	}
	return diverged(c.call.Name, recorded)
}
