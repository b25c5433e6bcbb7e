package publisher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// Submit starts a run for other executors: an executor of its agent claims it, usually within a second. The caller's id
// makes it one run: submitting it again, after [ErrUnresolved], [ErrUnavailable] or a crash, changes nothing and is not
// an error, even if the run has begun or ended since. fresh reports whether this call started the run.
//
// It returns [ErrConflict] if the id belongs to a run with another agent, task, thread, model, limit, parent, state or
// other labels, [ErrRunErased] if that run was removed, and the errors of [Fleet.Start].
func (f *Fleet) Submit(ctx context.Context, spec RunSpec) (fresh bool, err error) {
	if spec, err = f.named(spec); err != nil {
		return false, err
	}
	spec.submitted = true
	run, err := f.Start(ctx, spec)
	if errors.Is(err, ErrRunExists) {
		return false, f.submitted(ctx, spec, err)
	}
	if err != nil {
		return false, err
	}
	return true, run.handIn(ctx)
}

// handIn releases a run so that others can claim it. It is not an error if another call did the same, or an executor
// already has the run.
func (r *Run) handIn(ctx context.Context) error {
	err := r.Interrupt(ctx, schema.InterruptedPreempted)
	if errors.Is(err, ErrFenced) || errors.Is(err, ErrForked) {
		return nil
	}
	if err != nil {
		r.ledger.release(releasedError(r, err)) // so that another call can release it
	}
	return err
}

// submitted checks that an existing run equals the submitted one.
func (f *Fleet) submitted(ctx context.Context, spec RunSpec, exists error) error {
	state, at, err := f.stateAt(ctx, spec.ID, "", 0)
	switch {
	case errors.Is(err, ErrRunNotFound):
		return exists
	case err != nil:
		return fmt.Errorf("run %s already exists: %w", spec.ID, err)
	}
	if err := f.load(ctx, state); err != nil {
		return fmt.Errorf("run %s already exists: %w", spec.ID, err)
	}
	asked := f.started(&spec)
	if f.redactor != nil {
		if err := f.redactor.contents(asked); err != nil {
			return fmt.Errorf("run %s already exists: %w", spec.ID, err)
		}
	}
	if other := otherThan(state.Started, asked); other != "" {
		return fmt.Errorf("run %s already exists with another %s: %w; submit under another id", spec.ID, other, ErrConflict)
	}
	h := &state.Head
	if !f.startedUnheard(h) {
		return nil // it is active, or will be orphaned
	}
	// The earlier call did not release the run, and no other executor can claim it while this process lives.
	// Compare-and-set refuses this write if the run has changed: nothing is taken over.
	reply := &schema.RecoverReply{Shard: at.Shard, Epoch: h.Epoch, NextSequence: h.Sequence + 1, LastStream: h.Position.Stream}
	run, err := f.taken(state, reply)
	if err != nil {
		return err
	}
	return run.handIn(ctx)
}

// startedUnheard reports whether this process started the run, but lost the answer or gave up the handle: the run has
// one event and no handle here.
func (f *Fleet) startedUnheard(h *schema.Head) bool {
	return h.Counts.Events == 1 && h.Executor == f.cfg.Executor && h.Instance == f.instance && len(f.hand.of(h.Run)) == 0
}

// otherThan names the first difference to a run's start; empty if there is none.
func otherThan(s, asked *schema.RunStartedData) string {
	switch {
	case s == nil || s.Agent != asked.Agent:
		return "agent"
	case s.Task != asked.Task:
		return "task"
	case s.ThreadID != asked.ThreadID:
		return "thread"
	case s.Model != asked.Model || s.ModelTier != asked.ModelTier || s.Provider != asked.Provider:
		return "model"
	case s.Priority != asked.Priority:
		return "priority"
	case s.MaxTurns != asked.MaxTurns || s.MaxTokens != asked.MaxTokens || s.CompletionTool != asked.CompletionTool:
		return "contract"
	case !maps.Equal(s.Labels, asked.Labels):
		return "set of labels"
	case !slices.EqualFunc(s.State, asked.State, func(a, b schema.InitialValue) bool { return a.Key == b.Key && schema.SameJSON(a.Value, b.Value) }):
		return "state"
	case (s.Parent == nil) != (asked.Parent == nil) || s.Parent != nil && (s.Parent.Run != asked.Parent.Run || s.Parent.ToolCallID != asked.Parent.ToolCallID):
		return "parent"
	default:
		return ""
	}
}

// RunResult is the result of a run.
type RunResult struct {
	// Status is completed, failed or cancelled.
	Status schema.Status `json:"status"`
	// Output as JSON; Summary in words.
	Output  json.RawMessage `json:"output,omitzero"`
	Summary string          `json:"summary,omitempty"`
	// CompletedBy is the call of the completion tool; empty if the run ended in another way.
	CompletedBy string `json:"completed_by,omitempty"`
	// Limit that the run had reached; empty if none.
	Limit string `json:"limit,omitempty"`
	// Error that ended the run; nil means none.
	Error *schema.Error `json:"error,omitzero"`
	// Unread are the signals that were not consumed when the run ended, in order.
	Unread []schema.OpenSignal `json:"unread,omitzero"`
}

// Result waits until a run has ended, and returns its result. A run that waits for a person or is quarantined has not
// ended: bound the wait with ctx. While no daemon answers, Result keeps waiting. It returns [ErrRunNotFound],
// [ErrRunErased], and [ErrIncomplete] for a run with missing events.
func (f *Fleet) Result(ctx context.Context, run string) (*RunResult, error) {
	woken := make(chan struct{}, 1)
	// An announcement may be lost, and this subscription refused: then a poll finds the end.
	if sub, err := f.nc.Subscribe(schema.ObservedSubject(f.Name(), "run.*", run), func(*nats.Msg) {
		select {
		case woken <- struct{}{}:
		default:
		}
	}); err == nil {
		defer func() { _ = sub.Unsubscribe() }()
	}
	for {
		head, err := f.Head(ctx, run)
		if err == nil && head.Status.Terminal() {
			var result *RunResult
			if result, err = f.result(ctx, run); err == nil && result.Status.Terminal() { // otherwise it was reopened since
				return result, nil
			}
		}
		if err != nil && !unavailable(err) {
			return nil, err
		}
		select {
		case <-woken:
		case <-time.After(f.waitPoll):
		case <-ctx.Done():
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
