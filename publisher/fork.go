package publisher

import (
	"cmp"
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
	// Agent and Task of the fork; empty means those of the base. A model is told the task in its first turn. So behind
	// that turn a task is [ErrConfig]: send the fork a message ([Run.AddMessage], [Fleet.Signal]).
	Agent, Task string
	// Labels of the fork; nil means those of the base.
	Labels map[string]string
}

// Fork starts a run that continues from a point of another run: with its messages, its calls and their results, its
// phases, and its waits at that point. It writes one event, whatever the length of the base, and before that a mark
// into the base: the base is kept as long as the fork. Nothing else of the fork is written to the base, and the fork
// does not change with it.
//
// An open call of the base is in doubt in the fork and settled by its policy if it was begun at the point, or has the
// policy hold or verify: the base, or another fork, may run it. The idempotency key stays that of the base. Hand-offs,
// marks and token usage stay with the base.
//
// It returns the errors of [Reader.GetAt] for the point, [ErrIncomplete] for a run with missing events before the
// point, [ErrConfig] for a run that already depends on schema.MaxBases others and for a head there above
// schema.MaxBaseHead, [ErrConflict] for a base that has
// schema.MaxForks forks, [ErrRunErased] if the base is removed meanwhile, and the errors of [Fleet.Start].
func (f *Fleet) Fork(ctx context.Context, spec ForkSpec) (*Run, error) {
	if err := checkRun(spec.ID); err != nil {
		return nil, err
	}
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
	if h := &state.Head; spec.Task != "" && h.Turn > 0 && (h.Turn > 1 || h.TurnAnswered || !h.TurnOpen) {
		return nil, fmt.Errorf("fork of run %s: %w", spec.Base, configError("Task", fmt.Sprintf("%.80q behind turn %d", spec.Task, h.Turn),
			"leave it empty, and tell the fork by a message: its model was told the task of the base"))
	}
	base := schema.BaseOf(spec.At, reply.At.Records, &state.Head)
	base.Time = reply.At.Time
	if err := base.Fits(); err != nil {
		return nil, fmt.Errorf("fork of run %s: %w: %w", spec.Base, ErrConfig, err)
	}
	start := RunSpec{
		ID: spec.ID, Agent: spec.Agent, Task: spec.Task, Labels: spec.Labels,
		ResumedFrom: spec.Base, base: base, baseState: state,
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
		start.Priority, start.Complete, start.MaxTurns, start.MaxTokens = s.Priority, s.CompletionTool, s.MaxTurns, s.MaxTokens
		start.Task, start.offer = cmp.Or(start.Task, s.Task), s.Offer
	}
	// The mark comes first: a removal of the base finds it, or comes before it and refuses it.
	if err := f.control(ctx, schema.VerbFork, spec.Base, &schema.ForkRequest{Fork: spec.ID, By: f.cfg.Executor}); err != nil {
		return nil, fmt.Errorf("fork of run %s: %w", spec.Base, err)
	}
	return f.Start(ctx, start)
}

// errTooManyBases says that a fork depends on more runs than readers follow.
var errTooManyBases = fmt.Errorf("it is a fork of a fork, more than %d times", schema.MaxBases)
