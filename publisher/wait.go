package publisher

import (
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

	"github.com/waymarkio/waymark/internal/answerschema"
	"github.com/waymarkio/waymark/schema"
)

// waitPoll is how often whoever waits for a run looks by itself: notices may be lost.
const waitPoll = 5 * time.Second

// Input answers something that a run waits for.
type Input struct {
	// InterruptID as the run gave it. Required.
	InterruptID string
	// EventID is the id of the run.waiting that is answered, Position.ID of the head's interrupt: [ErrConflict] if the run asks another thing
	// under the interrupt id by now. Empty answers whatever it asks.
	EventID string
	// Status is resolved, cancelled or expired; empty means resolved.
	Status string
	// Payload is the answer, as JSON and as the run's response_schema asks for; most answers need one.
	Payload json.RawMessage
	// By whom; empty means this executor.
	By string
	// RequestID makes a repeat of the request find its first try; empty means a new one. Tries within one call are
	// one request in any case.
	RequestID string
}

// Input answers what a run waits for, whoever drives it. It returns [ErrUnknownInterrupt] for what the run does not
// wait for, or no longer, [*InvalidAnswerError] for a payload that the run did not ask for, [ErrRunNotFound],
// [ErrUnavailable] and [ErrNoService].
func (f *Fleet) Input(ctx context.Context, run string, in Input) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if in.InterruptID == "" {
		return configError("InterruptID", `""`, "say what is answered")
	}
	request := &schema.InputRequest{InterruptID: in.InterruptID, EventID: in.EventID, Status: in.Status, Payload: []byte(in.Payload), By: in.By, RequestID: in.RequestID}
	if request.By == "" {
		request.By = f.cfg.Executor
	}
	if request.RequestID == "" {
		request.RequestID = cryptorand.Text()
	}
	if err := f.CheckAnswer(ctx, run, in); err != nil {
		return err
	}
	_, err := askOne[schema.ControlReply](ctx, f.Reader, schema.VerbInput, run, request)
	return err
}

// Cancel asks the executor of a run to stop, in the name of by; empty means this executor. The run has not ended when it
// returns: its executor, or the next one, ends it. It returns [ErrRunEnded], [ErrRunNotFound], [ErrUnavailable] and
// [ErrNoService].
func (f *Fleet) Cancel(ctx context.Context, run, by, reason string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if by == "" {
		by = f.cfg.Executor
	}
	_, err := askOne[schema.ControlReply](ctx, f.Reader, schema.VerbCancel, run, &schema.CancelRequest{By: by, Reason: reason, RequestID: cryptorand.Text()})
	return err
}

// Mark pins the point where a run stands under a name, on behalf of a person or a program that is not the run's executor;
// by names them and may be empty for this fleet handle's executor. move takes the name from the point that has it,
// otherwise that is [ErrConflict]. An executor marks its own run with [Run.Mark].
func (f *Fleet) Mark(ctx context.Context, run, name, by string, move bool) (*schema.ControlReply, error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	if by == "" {
		by = f.cfg.Executor
	}
	return askOne[schema.ControlReply](ctx, f.Reader, schema.VerbMark, run, &schema.MarkRequest{Name: name, By: by, Move: move, RequestID: cryptorand.Text()})
}

// Ask publishes run.waiting and waits for the answer. The question is asked once: when it is open already, as on a run
// that was resumed, it is only waited for, and when its answer was recorded, that is returned at once. So the interrupt
// id, which is required, must be the same on every run of the same work.
//
// It returns [ErrInputCancelled] and [ErrInputExpired] beside the answer that says so, [ErrCancelRequested] when the
// run's end is asked for meanwhile, what ended the handle, and the errors of publishing. Under an [Executor] with
// WaitDetached it does not wait: it returns [ErrWaiting], for the work to return.
//
// A ResponseSchema by which no answer can be checked is [ErrConfig]: the question could only be cancelled.
//
// Interrupt ids that begin with "approval." are the SDK's own, for calls and phases: Ask, [Run.Wait] and [Run.Publish] return [ErrConfig] for
// one, so that no answer to another question allows a call or a phase.
func (r *Run) Ask(ctx context.Context, d schema.RunWaitingData) (schema.RunInputData, error) {
	if err := checkInterruptID(r.id, d.InterruptID); err != nil {
		return schema.RunInputData{}, err
	}
	return r.ask(ctx, d, false)
}

// approvalPrefix begins the ids of the SDK's own questions.
const approvalPrefix = "approval."

// checkInterruptID refuses the ids of the SDK's own questions.
func checkInterruptID(run, id string) error {
	if !strings.HasPrefix(id, approvalPrefix) {
		return nil
	}
	return fmt.Errorf("run %s: %w", run, configError("InterruptID", fmt.Sprintf("%.80q", id),
		"begin it otherwise: "+approvalPrefix+" begins the ids of questions about calls and phases"))
}

// checkResponseSchema refuses a schema that lets no answer through.
func checkResponseSchema(asked []byte) error {
	if len(asked) == 0 {
		return nil
	}
	if err := answerschema.Usable(asked); err != nil {
		return configError("ResponseSchema", fmt.Sprintf("%.80q", asked), "use a JSON Schema by which answers can be checked: "+err.Error())
	}
	return nil
}

// ask is Ask; own asks a question of the SDK.
func (r *Run) ask(ctx context.Context, d schema.RunWaitingData, own bool) (schema.RunInputData, error) {
	if d.InterruptID == "" {
		return schema.RunInputData{}, fmt.Errorf("run %s: %w", r.id,
			configError("InterruptID", `""`, "give the question an id that is the same whenever the work asks it"))
	}
	if err := checkResponseSchema(d.ResponseSchema); err != nil {
		return schema.RunInputData{}, fmt.Errorf("question %s of run %s: %w", d.InterruptID, r.id, err)
	}
	if err := r.settled(ctx); err != nil {
		return schema.RunInputData{}, err
	}
	l := r.ledger
	l.mu.Lock()
	_, state := l.fold.input(d.InterruptID)
	content := l.fold.state != nil
	l.mu.Unlock()
	if !content {
		return schema.RunInputData{}, fmt.Errorf("question %s of run %s: %w", d.InterruptID, r.id, ErrNoContent)
	}
	if state == inputUnknown {
		if err := r.publishNow(ctx, draft{data: &d, own: own}); err != nil {
			return schema.RunInputData{}, err
		}
	}
	return r.awaitInput(ctx, d.InterruptID)
}

// AwaitInput waits for the answer to what the run waits for; see [Run.Ask]. It returns [ErrUnknownInterrupt] when the
// run neither waits for it nor has its answer.
func (r *Run) AwaitInput(ctx context.Context, interruptID string) (schema.RunInputData, error) {
	if err := r.Sync(ctx); err != nil && !transient(err) {
		return schema.RunInputData{}, err
	}
	return r.awaitInput(ctx, interruptID)
}

func (r *Run) awaitInput(ctx context.Context, id string) (schema.RunInputData, error) {
	var input schema.RunInputData
	err := r.awaitThat(ctx, "the answer to "+id, func(fold *localFold) (bool, error) {
		found, state := fold.input(id)
		switch {
		case fold.state == nil:
			return false, fmt.Errorf("answer to %s of run %s: %w", id, r.id, ErrNoContent)
		case state == inputUnknown:
			return false, fmt.Errorf("run %s: %w: %.80q", r.id, ErrUnknownInterrupt, id)
		case state == inputOpen:
			return false, nil
		}
		input = found
		return true, nil
	})
	if err != nil {
		return input, err
	}
	return r.answer(ctx, input)
}

// answer loads what of an answer is in the blob store, and says as an error when it is none.
func (r *Run) answer(ctx context.Context, input schema.RunInputData) (schema.RunInputData, error) {
	payload, err := r.fleet.field(ctx, input.Refs, "/payload", input.Payload)
	if err != nil {
		return input, fmt.Errorf("answer to question %.80q of run %s: %w", input.InterruptID, r.id, err)
	}
	input.Payload = payload
	switch input.Status {
	case schema.InputCancelled:
		return input, fmt.Errorf("run %s: question %.80q: %w by %s", r.id, input.InterruptID, ErrInputCancelled, input.By)
	case schema.InputExpired:
		return input, fmt.Errorf("run %s: question %.80q: %w", r.id, input.InterruptID, ErrInputExpired)
	}
	return input, nil
}

// digestOf is the SHA-256 of a text, as 64 hexadecimal digits.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// AwaitSettled waits until a call is no longer in doubt: after a [HeldError], repeat the call behind it. That the run
// waits for it is published once, so that everybody sees it. Its errors are those of [Run.Ask]; for a call that is not
// in doubt it returns nil at once.
func (r *Run) AwaitSettled(ctx context.Context, key schema.CallKey) error {
	if err := r.Sync(ctx); err != nil && !transient(err) {
		return err
	}
	if err := r.settled(ctx); err != nil {
		return err
	}
	switch err := r.publishHeld(ctx, key, ""); {
	case errors.Is(err, ErrNotInDoubt):
		return nil
	case err != nil:
		return err
	}
	return r.awaitThat(ctx, fmt.Sprintf("the settlement of call %.80q of turn %d", key.ToolCallID, key.Turn), func(fold *localFold) (bool, error) {
		return !fold.inDoubt(key), nil
	})
}

// publishHeld says once that the run waits for the settlement of a call. It returns [ErrNotInDoubt] when there is
// nothing to wait for.
func (r *Run) publishHeld(ctx context.Context, key schema.CallKey, why string) error {
	head := r.Head()
	waits := slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolInDoubt && o.CallKey() == key
	})
	open := openCall(&head, key)
	switch {
	case open == nil || !open.InDoubt:
		return fmt.Errorf("call %.80q of turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, ErrNotInDoubt)
	case waits:
		return nil
	}
	data := &schema.RunWaitingData{
		InterruptID: heldInterrupt(key), Reason: schema.WaitToolInDoubt, ToolCallID: key.ToolCallID, Occurrence: key.Occurrence,
		Message: fmt.Sprintf("What became of call %.80s of tool %.80s in turn %d?", key.ToolCallID, open.Name, key.Turn),
	}
	if why != "" {
		data.Message += " " + strings.ToValidUTF8(why, "\uFFFD")
	}
	err := r.publishNow(ctx, draft{data: data, turn: key.Turn})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && (rejected.Reason == schema.ReasonNotInDoubt || rejected.Reason == schema.ReasonUnknownCall) {
		// It was settled, and perhaps closed by it, in this moment.
		return fmt.Errorf("%w: %w", ErrNotInDoubt, err)
	}
	return err
}

// heldInterrupt is the id of the wait for a call: the same in every process, so that nobody waits twice.
func heldInterrupt(key schema.CallKey) string {
	id := fmt.Sprintf("in-doubt.%d.%d.%s", key.Turn, key.Occurrence, key.ToolCallID)
	if len(id) > schema.MaxIdentifier {
		id = fmt.Sprintf("in-doubt.%d.%d.sha256-%s", key.Turn, key.Occurrence, digestOf(key.ToolCallID))
	}
	return id
}

// awaitThat waits until done, which is called under the ledger's lock whenever the run changed, says so or fails. Under an executor with
// WaitDetached it returns [ErrWaiting] instead of waiting.
func (r *Run) awaitThat(ctx context.Context, what string, done func(*localFold) (bool, error)) error {
	driver := r.driver.Load()
	return r.await(ctx, what, driver != nil && driver.executor.spec.WaitDetached, done)
}

// await is awaitThat; detached says that it does not wait.
func (r *Run) await(ctx context.Context, what string, detached bool, done func(*localFold) (bool, error)) error {
	pause := func() time.Duration {
		most := r.fleet.waitPoll
		return most - rand.N(most/4+1) //nolint:gosec // jitter
	}
	poll := time.NewTimer(pause())
	defer poll.Stop()
	cancelled := r.Head().CancelRequested
	for {
		ok, changed, err := r.ledger.check(done)
		if err == nil && !ok && !cancelled && r.CancelRequested() {
			err = fmt.Errorf("waiting for %s: %w", what, r.ledger.cancelError())
		}
		switch {
		case ok || err != nil:
			return err
		case r.fleet.unrecorded():
			return fmt.Errorf("run %s: waiting for %s: %w: nobody can give it", r.id, what, ErrUnrecorded)
		case detached:
			return fmt.Errorf("%s: %w", what, ErrWaiting)
		}
		select {
		case <-changed:
		case <-poll.C:
			if err := r.Sync(ctx); err != nil && !transient(err) {
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

// transient errors of a look at the run do not end a wait: the next look, or a notice, may bring what is waited for.
func transient(err error) bool {
	return errors.Is(err, errAgain) || errors.Is(err, ErrUnavailable)
}
