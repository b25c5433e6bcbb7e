package publisher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// firstResultLook and mostResultLook are the pauses between looks whether a run has ended.
	firstResultLook = 50 * time.Millisecond
	mostResultLook  = time.Second
)

// Submit starts a run for others to work on: an executor of its agent claims it, usually within a second. The caller's id makes it one
// run: submitting it again, after [ErrUnresolved], [ErrUnavailable] or a crash, changes nothing and is no error, also when the run has
// begun or ended since. fresh reports whether this call started the run.
//
// It returns [ErrConflict] for an id whose run has another agent, task, thread, model, limit, parent, state or other labels, [ErrRunErased] for one
// whose run was removed, and the errors of [Fleet.Start].
func (f *Fleet) Submit(ctx context.Context, spec RunSpec) (fresh bool, err error) {
	if spec, err = f.named(spec); err != nil {
		return false, err
	}
	run, err := f.Start(ctx, spec)
	if errors.Is(err, ErrRunExists) {
		return false, f.submitted(ctx, spec, err)
	}
	if err != nil {
		return false, err
	}
	return true, run.handIn(ctx)
}

// handIn lets a run go for others to claim. Another call that does the same, and an executor that has the run already, are no error.
func (r *Run) handIn(ctx context.Context) error {
	err := r.Interrupt(ctx, schema.InterruptedPreempted)
	if errors.Is(err, ErrFenced) || errors.Is(err, ErrForked) {
		return nil
	}
	if err != nil {
		r.ledger.letGo(letGoError(r, err)) // so that another call can hand it in
	}
	return err
}

// submitted reports whether a run that is there is the one that is submitted again.
func (f *Fleet) submitted(ctx context.Context, spec RunSpec, exists error) error {
	state, reply, err := f.stateAt(ctx, spec.ID, "", 0)
	switch {
	case errors.Is(err, ErrRunNotFound):
		return exists
	case err != nil:
		return fmt.Errorf("run %s is there: %w", spec.ID, err)
	}
	if err := f.load(ctx, state); err != nil {
		return fmt.Errorf("run %s is there: %w", spec.ID, err)
	}
	if err := f.redactor.start(&spec); err != nil {
		return fmt.Errorf("run %s is there: %w", spec.ID, err)
	}
	if other := otherThan(state.Started, &spec); other != "" {
		return fmt.Errorf("run %s is there with another %s: %w; submit under another id", spec.ID, other, ErrConflict)
	}
	h := &state.Head
	if !f.startedUnheard(h) {
		return nil // it is in hand, or will be found orphaned
	}
	// The earlier call did not hand the run in, and no other executor can claim it while this process lives. Compare-and-set refuses this
	// write if the run moved: nothing is taken over.
	run := newRun(f, schema.NamesOf(f.cfg.Fleet, reply.Shard), spec.ID)
	if err := run.ledger.takeUp(state, &schema.RecoverReply{Epoch: h.Epoch, NextSequence: h.Sequence + 1, LastStream: h.Position.Stream}); err != nil {
		return err
	}
	return run.handIn(ctx)
}

// startedUnheard reports whether a run was started by this process, which did not hear of it or gave the handle up: it has one event, and
// is in no hand here.
func (f *Fleet) startedUnheard(h *schema.Head) bool {
	return h.Counts.Events == 1 && h.Executor == f.cfg.Executor && h.Instance == f.cfg.Instance && len(f.hand.of(h.Run)) == 0
}

// otherThan names what a run was started with otherwise; empty if nothing.
func otherThan(s *schema.RunStartedData, spec *RunSpec) string {
	switch {
	case s == nil || s.Agent != spec.Agent:
		return "agent"
	case s.Task != spec.Task:
		return "task"
	case s.ThreadID != spec.ThreadID:
		return "thread"
	case s.Model != spec.Model || s.ModelTier != spec.ModelTier || s.Provider != spec.Provider:
		return "model"
	case s.MaxTurns != spec.MaxTurns || s.MaxTokens != spec.MaxTokens || s.CompletionTool != spec.Complete:
		return "contract"
	case !maps.Equal(s.Labels, spec.Labels):
		return "set of labels"
	case !slices.EqualFunc(s.State, spec.state, func(a, b schema.InitialValue) bool { return a.Key == b.Key && schema.SameJSON(a.Value, b.Value) }):
		return "state"
	case (s.Parent == nil) != (spec.Parent == nil) || s.Parent != nil && (s.Parent.Run != spec.Parent.Run || s.Parent.ToolCallID != spec.Parent.ToolCallID):
		return "parent"
	default:
		return ""
	}
}

// RunResult is what a run came to.
type RunResult struct {
	// Status is completed, failed or cancelled.
	Status schema.Status `json:"status"`
	// Output as JSON; Summary in words.
	Output  json.RawMessage `json:"output,omitzero"`
	Summary string          `json:"summary,omitempty"`
	// CompletedBy is the call of the completion tool; empty if the run ended otherwise.
	CompletedBy string `json:"completed_by,omitempty"`
	// Limit that the run had reached; empty if none.
	Limit string `json:"limit,omitempty"`
	// Error that ended the run; nil means none.
	Error *schema.Error `json:"error,omitzero"`
	// Unread are the signals that were not consumed when the run ended, in order.
	Unread []schema.OpenSignal `json:"unread,omitzero"`
}

// Result waits until a run has ended, and returns what it came to. A run that waits for a person or that is quarantined has not ended: ctx
// bounds the waiting. It returns [ErrRunNotFound], [ErrRunErased], and [ErrIncomplete] for a run of which events are missing. While no
// daemon answers it waits.
func (f *Fleet) Result(ctx context.Context, run string) (*RunResult, error) {
	wait := &pause.Backoff{Next: firstResultLook, Most: mostResultLook}
	for {
		head, err := f.Head(ctx, run)
		if err == nil && head.Status.Terminal() {
			var result *RunResult
			if result, err = f.result(ctx, run); err == nil && result.Status.Terminal() { // else it was reopened in between
				return result, nil
			}
		}
		if err != nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNoService) {
			return nil, err
		}
		if !wait.Wait(ctx) {
			return nil, errors.Join(fmt.Errorf("result of run %s: %w", run, context.Cause(ctx)), err)
		}
	}
}

func (f *Fleet) result(ctx context.Context, run string) (*RunResult, error) {
	state, err := f.Get(ctx, run)
	if err == nil {
		err = f.load(ctx, state)
	}
	if err != nil {
		return nil, fmt.Errorf("result of run %s: %w", run, err)
	}
	h, ended := &state.Head, state.Ended
	result := &RunResult{Status: h.Status, Summary: h.Summary, CompletedBy: h.CompletedBy, Limit: h.Limit, Unread: h.Signals}
	if ended != nil {
		result.Output, result.Summary, result.Error = []byte(ended.Output), ended.Summary, ended.Error
	}
	return result, nil
}
