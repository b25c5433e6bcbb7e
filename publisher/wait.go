package publisher

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/answerschema"
	"github.com/waymarkio/waymark/schema"
)

// waitPoll is how often a waiting call polls its run: notices may be lost.
const waitPoll = 5 * time.Second

// Input is the answer to a wait of a run.
type Input struct {
	// InterruptID as given by the run. Required.
	InterruptID string
	// EventID is the id of the run.waiting to answer, Position.ID of the head's interrupt. Input returns [ErrConflict]
	// if the run asks another question under this interrupt id by now. Required: a repeat answers no other question.
	EventID string
	// Status is resolved, cancelled or expired; empty means resolved.
	Status string
	// Payload is the answer, as JSON in the form of the run's response_schema; most answers need one.
	Payload json.RawMessage
	// By is the person or program that answers; empty means this executor.
	By string
}

// Input answers a wait of a run, whichever executor drives it. The first answer to a question counts; the same answer by
// the same sender again is that answer. It returns [ErrUnknownInterrupt] if the run does not
// wait for this, or no longer does; [*InvalidAnswerError] for a payload that does not match the question;
// [ErrRunNotFound]; [ErrUnavailable]; and [ErrNoService].
func (f *Fleet) Input(ctx context.Context, run string, in Input) error {
	switch {
	case in.InterruptID == "":
		return configError("InterruptID", `""`, "name the interrupt to answer")
	case in.EventID == "":
		return configError("EventID", `""`, "name the question that was read: Position.ID of the interrupt in the run's head")
	}
	if err := f.CheckAnswer(ctx, run, in); err != nil {
		return err
	}
	return f.control(ctx, schema.VerbInput, run, &schema.InputRequest{
		InterruptID: in.InterruptID, EventID: in.EventID, Status: in.Status, Payload: []byte(in.Payload),
		By: cmp.Or(in.By, f.cfg.Executor),
	})
}

// Cancel asks the executor of a run to stop, in the name of by; empty means this executor. The run has not ended when
// Cancel returns: its executor, or the next one, ends it. It returns [ErrRunEnded], [ErrRunNotFound], [ErrUnavailable]
// and [ErrNoService].
func (f *Fleet) Cancel(ctx context.Context, run, by, reason string) error {
	return f.control(ctx, schema.VerbCancel, run, &schema.CancelRequest{By: cmp.Or(by, f.cfg.Executor), Reason: reason, RequestID: cryptorand.Text()})
}

// Mark names the current point of a run, for a person or a program that is not the run's executor. by is that person or
// program; empty means this executor. If another point has the name, move transfers it; without move that is
// [ErrConflict]. An executor marks its own run with [Run.Mark].
func (f *Fleet) Mark(ctx context.Context, run, name, by string, move bool) (*schema.ControlReply, error) {
	return ask[schema.ControlReply](ctx, f.Reader, schema.VerbMark, run, &schema.MarkRequest{
		Name: name, By: cmp.Or(by, f.cfg.Executor), Move: move, RequestID: cryptorand.Text(),
	})
}

// Ask publishes run.waiting and waits for the answer. The question is asked once: if it is already open, as on a
// resumed run, Ask only waits; if its answer is recorded, Ask returns it at once. So the required interrupt id must be
// the same each time the work runs.
//
// It returns [ErrInputCancelled] and [ErrInputExpired] together with the answer that says so, [ErrCancelRequested]
// after a request to cancel the run, the error that ended the handle, and the errors of publishing. Under an [Executor]
// with WaitDetached it does not wait but returns [ErrWaiting], which the work or the tool should return; a hold or verify
// tool gets [ErrConfig] instead, because it cannot run again.
//
// A ResponseSchema that no answer can be checked against is [ErrConfig]: the question could only be cancelled.
//
// ExpiresAt is its deadline, by the server's clock.
//
// Interrupt ids with the prefixes "approval.", "retry." and "child." belong to the SDK. [Run.Ask], [Run.Wait] and [Run.Publish]
// return [ErrConfig] for such an id, so that no answer to another question can allow a call or a phase.
func (r *Run) Ask(ctx context.Context, d schema.RunWaitingData) (schema.RunInputData, error) {
	if err := checkInterruptID(r.id, d.InterruptID); err != nil {
		return schema.RunInputData{}, err
	}
	return r.ask(ctx, d, false)
}

// approvalPrefix is the prefix of the SDK's own questions.
const approvalPrefix = "approval."

// checkInterruptID refuses the ids of the SDK's own questions.
func checkInterruptID(run, id string) error {
	if !strings.HasPrefix(id, approvalPrefix) && !strings.HasPrefix(id, schema.RetryWait) && !strings.HasPrefix(id, schema.ChildPrefix) {
		return nil
	}
	return fmt.Errorf("run %s: %w", run, configError("InterruptID", fmt.Sprintf("%.80q", id),
		"use another prefix: "+approvalPrefix+", "+schema.RetryWait+" and "+schema.ChildPrefix+" are reserved for the waits of the SDK"))
}

// checkResponseSchema refuses a schema that no answer can pass.
func checkResponseSchema(asked []byte) error {
	if len(asked) == 0 {
		return nil
	}
	if _, err := answerschema.Parse(asked); err != nil {
		return configError("ResponseSchema", fmt.Sprintf("%.80q", asked), "use the subset of JSON Schema by which answers are checked: "+err.Error())
	}
	return nil
}

// ask is Ask. own: the question is the SDK's.
func (r *Run) ask(ctx context.Context, d schema.RunWaitingData, own bool) (schema.RunInputData, error) {
	if d.InterruptID == "" {
		return schema.RunInputData{}, fmt.Errorf("run %s: %w", r.id,
			configError("InterruptID", `""`, "use an id that is the same each time the work asks this question"))
	}
	if err := checkResponseSchema(d.ResponseSchema); err != nil {
		return schema.RunInputData{}, fmt.Errorf("question %s of run %s: %w", d.InterruptID, r.id, err)
	}
	if err := errors.Join(r.mayWait(ctx, d.Reason == schema.WaitTimer), r.ledger.ended()); err != nil {
		return schema.RunInputData{}, err
	}
	_, state := with2(r.ledger, func(l *ledger) (schema.RunInputData, inputState) { return l.fold.input(d.InterruptID) })
	if state == inputUnknown {
		if _, err := r.publish(ctx, draft{data: &d, own: own}); err != nil {
			return schema.RunInputData{}, err
		}
	}
	return r.awaitInput(ctx, d.InterruptID)
}

// AwaitInput waits for the answer to an open question; see [Run.Ask]. It returns [ErrUnknownInterrupt] if the run
// neither waits for it nor has its answer.
func (r *Run) AwaitInput(ctx context.Context, interruptID string) (schema.RunInputData, error) {
	if err := r.mayWait(ctx, false); err != nil {
		return schema.RunInputData{}, err
	}
	if err := r.Sync(ctx); err != nil && !unavailable(err) {
		return schema.RunInputData{}, err
	}
	return r.awaitInput(ctx, interruptID)
}

// awaitInput is AwaitInput without the checks, and loads the answer from the blob store.
func (r *Run) awaitInput(ctx context.Context, id string) (input schema.RunInputData, err error) {
	long := slices.ContainsFunc(r.Head().Interrupts, func(o schema.OpenInterrupt) bool {
		return o.InterruptID == id && (o.Reason == schema.WaitTimer || o.OfVersion())
	})
	err = r.await(ctx, "the answer to "+id, r.detached(long), func(fold *localFold) (bool, error) {
		found, state := fold.input(id)
		if state == inputUnknown {
			return false, fmt.Errorf("run %s: %w: %.80q", r.id, ErrUnknownInterrupt, id)
		}
		input = found
		return state != inputOpen, nil
	})
	if err != nil {
		return input, err
	}
	input.Payload, err = r.fleet.Field(ctx, input.Refs, "/payload", input.Payload)
	switch {
	case err != nil:
		return input, fmt.Errorf("answer to question %.80q of run %s: %w", id, r.id, err)
	case input.Status == schema.InputCancelled:
		return input, fmt.Errorf("run %s: question %.80q: %w by %s", r.id, id, ErrInputCancelled, input.By)
	case input.Status == schema.InputExpired:
		return input, fmt.Errorf("run %s: question %.80q: %w", r.id, id, ErrInputExpired)
	}
	return input, nil
}

// digestOf is the SHA-256 of a text, as 64 hexadecimal digits.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// AwaitSettled waits until a call is settled, or has a late result. After a [HeldError], call it and then repeat the call. It
// publishes once that the run waits for the settlement, so that observers see it. Its errors are those of [Run.Ask];
// for another call it returns nil at once.
func (r *Run) AwaitSettled(ctx context.Context, key schema.CallKey) error {
	if err := r.Sync(ctx); err != nil && !unavailable(err) {
		return err
	}
	if err := r.ledger.ended(); err != nil {
		return err
	}
	switch err := r.publishHeld(ctx, key, ""); {
	case errors.Is(err, ErrNotInDoubt):
		return nil
	case err != nil:
		return err
	}
	return r.await(ctx, fmt.Sprintf("the settlement of call %.80q of turn %d", key.ToolCallID, key.Turn), r.detached(false), func(fold *localFold) (bool, error) {
		return !fold.inDoubt(key), nil
	})
}

// publishHeld publishes once that the run waits for the settlement of a call. It returns [ErrNotInDoubt] if the call is
// not in doubt.
func (r *Run) publishHeld(ctx context.Context, key schema.CallKey, why string) error {
	head := r.Head()
	waits := slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolInDoubt && o.CallKey() == key
	})
	open := openCall(&head, key)
	switch {
	case open == nil || open.State == schema.CallLate || !open.MayHaveRun(head.Epoch):
		return fmt.Errorf("call %.80q of turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, ErrNotInDoubt)
	case waits:
		return nil
	}
	data := &schema.RunWaitingData{
		InterruptID: head.DerivedID("in-doubt.", fmt.Sprintf("%d.%d.%s", key.Turn, key.Occurrence, key.ToolCallID)), Reason: schema.WaitToolInDoubt, ToolCallID: key.ToolCallID, Occurrence: key.Occurrence,
		Message: fmt.Sprintf("What was the outcome of call %.80s of tool %.80s in turn %d?", key.ToolCallID, open.Name, key.Turn),
	}
	if why != "" {
		data.Message += " " + strings.ToValidUTF8(why, "\uFFFD")
	}
	_, err := r.publish(ctx, draft{data: data, turn: key.Turn})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && (rejected.Reason == schema.ReasonNotInDoubt || rejected.Reason == schema.ReasonUnknownCall) {
		// The call was settled at this moment, and perhaps closed.
		return fmt.Errorf("%w: %w", ErrNotInDoubt, err)
	}
	return err
}

// detached reports whether the executor of the run releases it when it waits: for a timer or a version always.
func (r *Run) detached(long bool) bool {
	driver := r.driver.Load()
	return driver != nil && (long || driver.executor.spec.WaitDetached)
}

// mayWait refuses to release the run from inside a tool that cannot run again.
func (r *Run) mayWait(ctx context.Context, timer bool) error {
	if inv := InvocationOf(ctx); inv.run == r && r.detached(timer) && !inv.Replay.Rerunnable() {
		return fmt.Errorf("run %s: tool %s: %w", r.id, inv.Name, configError("Replay", inv.Replay,
			"a tool during whose wait the executor releases the run runs again after the wait: make it pure or idempotent"))
	}
	return nil
}

// await waits until done returns true or an error. done is called under the ledger's lock whenever the run has changed.
// If detached, it returns [ErrWaiting] instead of waiting. While the run is paused it returns [ErrPaused].
func (r *Run) await(ctx context.Context, what string, detached bool, done func(*localFold) (bool, error)) error {
	pause := func() time.Duration {
		most := r.fleet.waitPoll
		return most - rand.N(most/4+1) //nolint:gosec // jitter
	}
	poll := time.NewTimer(pause())
	defer poll.Stop()
	cancelled := r.Head().CancelRequested
	inv := InvocationOf(ctx)
	held := inv.run == r && !inv.Replay.Rerunnable() // a call under way that could not run again
	for {
		ok, changed, err := r.ledger.check(done)
		if err == nil && !ok && !cancelled && r.CancelRequested() {
			err = fmt.Errorf("run %s: waiting for %s: %w", r.id, what, ErrCancelRequested)
		}
		if err == nil && !ok && !held {
			err = with(r.ledger, (*ledger).paused)
		}
		switch {
		case ok || err != nil:
			return err
		case r.fleet.unrecorded():
			return fmt.Errorf("run %s: waiting for %s: %w: an unrecorded run has no other process that could provide it", r.id, what, ErrUnrecorded)
		case detached:
			return fmt.Errorf("%s: %w", what, ErrWaiting)
		}
		select {
		case <-changed:
		case <-poll.C:
			if err := r.Sync(ctx); err != nil && !unavailable(err) {
				return err
			}
			poll.Reset(pause())
		case <-r.fleet.life.Done():
			return fmt.Errorf("run %s: waiting for %s: %w", r.id, what, ErrStopped)
		case <-ctx.Done():
			return fmt.Errorf("run %s: waiting for %s: %w", r.id, what, context.Cause(ctx))
		}
	}
}
