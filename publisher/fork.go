package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/waymarkio/waymark/schema"
)

// ForkSpec describes a fork.
type ForkSpec struct {
	// ID of the new run. Required.
	ID string
	// Base is the run to fork, and At the point in it; the zero point is its end. The base may itself be a fork.
	// Required.
	Base string
	At   schema.Point
	// Agent and Task of the fork; empty means those of the base.
	Agent, Task string
	// Labels of the fork; nil means those of the base.
	Labels map[string]string
}

// Fork starts a run that continues from a point of another run: with its messages, its calls and their results, its
// phases, and its waits at that point. It writes one event, whatever the length of the base. Neither the fork nor
// anything it does writes to the base. The fork does not change with the base, as long as the events up to the point
// are kept.
//
// A call that was begun at the point is in doubt in the fork and settled by its policy, because the base's executor may
// still be running it. The same applies to a hold or verify call that was requested at the point, if the base began it
// later or may still begin it. The idempotency key stays that of the base. Hand-offs, marks and token usage stay with
// the base.
//
// A run with an ordered removal cannot be forked. Fork checks the base again after its own first event, so that no fork
// remains without its base: then the fork is cancelled, and the error is [ErrRunErased].
//
// It returns the errors of [Reader.GetAt] for the point, [ErrIncomplete] for a run with missing events before the
// point, [ErrConfig] for a run that already depends on schema.MaxBases others, and those of [Fleet.Start].
func (f *Fleet) Fork(ctx context.Context, spec ForkSpec) (*Run, error) {
	if spec.ID == spec.Base {
		return nil, fmt.Errorf("fork of run %s: %w: a fork needs an id of its own", spec.Base, ErrConfig)
	}
	// Read the base with the depth of the fork, so that no fork is started that is too deep to read.
	state, reply, err := f.stateAt(ctx, spec.Base, spec.At.String(), 1)
	if errors.Is(err, errTooManyBases) {
		return nil, fmt.Errorf("fork of run %s: %w: fork one of its bases instead: %w", spec.Base, ErrConfig, err)
	}
	if err != nil {
		return nil, fmt.Errorf("fork of run %s: %w", spec.Base, err)
	}
	start := RunSpec{
		ID: spec.ID, Agent: spec.Agent, Task: spec.Task, Labels: spec.Labels,
		ResumedFrom: spec.Base, base: schema.BaseOf(spec.At, reply.At.Records, &state.Head, reply.At.Begun), baseState: state,
	}
	if start.Agent == "" {
		start.Agent = state.Head.Agent
	}
	if start.Labels == nil {
		start.Labels = maps.Clone(state.Head.Labels)
		if state.Started != nil {
			start.Labels = maps.Clone(state.Started.Labels) // the head has no encrypted values
		}
	}
	if s := state.Started; s != nil {
		start.ThreadID, start.Model, start.ModelTier, start.Provider = s.ThreadID, s.Model, s.ModelTier, s.Provider
		start.Complete, start.MaxTurns, start.MaxTokens = s.CompletionTool, s.MaxTurns, s.MaxTokens
		if start.Task == "" {
			start.Task = s.Task
		}
	}
	run, err := f.Start(ctx, start)
	if err != nil {
		return nil, err
	}
	// A removal looks for forks after its order, and the daemon refuses points of the base after that order. So at
	// least one of the two sees the other.
	if _, err := f.HeadAt(ctx, spec.Base, spec.At); errors.Is(err, ErrRunErased) || errors.Is(err, ErrRunNotFound) {
		end := run.End(ctx, RunEnd{Status: schema.StatusCancelled, Summary: "run " + spec.Base + ", the base of this fork, was removed at this moment"})
		return nil, errors.Join(fmt.Errorf("fork of run %s: %w", spec.Base, err), end)
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("fork of run %s: the base could not be checked again; to continue the fork anyway, resume run %s: %w", spec.Base, spec.ID, err), run.Interrupt(ctx, schema.InterruptedPreempted))
	}
	return run, nil
}

// errTooManyBases says that a fork depends on more runs than readers follow.
var errTooManyBases = fmt.Errorf("it is a fork of a fork, more than %d times", schema.MaxBases)
