package publisher

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// AfterApproval makes a phase wait for a person's permission before it starts. The run waits, and waymark inbox shows
// this message. The person is asked once, whichever executor runs the phase: the answer is recorded and applies to the
// run. If the phase is denied, [Run.Phase] returns [ErrPhaseDenied]. It also returns the errors of [Run.Ask].
type AfterApproval string

// phaseAllowed asks whether a phase may start.
func (r *Run) phaseAllowed(ctx context.Context, name, message string) error {
	id := schema.PhaseApproval + name
	if len(id) > schema.MaxIdentifier {
		id = schema.PhaseApproval + digestOf(name)
	}
	input, err := r.ask(ctx, schema.RunWaitingData{
		InterruptID: id, Reason: schema.WaitHumanInput, Message: cmp.Or(message, "May phase "+name+" start?"), ResponseSchema: []byte(approvalSchema),
	}, true)
	if err != nil {
		return fmt.Errorf("approval of phase %s of run %s: %w", name, r.id, err)
	}
	if decision, reason := approvalOf(&input); decision != schema.DecisionAllow {
		by := cmp.Or(input.Claimed, input.By, "an unnamed person")
		return fmt.Errorf("phase %s of run %s: %w by %s: %s", name, r.id, ErrPhaseDenied, by, cmp.Or(reason, "no reason was given"))
	}
	return nil
}

// Phase runs work as a phase: phase.started, work, then phase.completed with the returned output, encoded as JSON. A
// completed phase is skipped, and its recorded output returned. An interrupted phase runs again from its start. If work
// fails, the phase stays open and the error is returned. With [AfterApproval] a person must allow the phase before it
// starts.
func (r *Run) Phase(ctx context.Context, name string, work func(context.Context) (output any, err error), gates ...AfterApproval) (json.RawMessage, error) {
	if slices.Contains(r.Head().CompletedPhases, name) {
		return r.phaseOutput(ctx, name)
	}
	for _, gate := range gates {
		if err := r.phaseAllowed(ctx, name, string(gate)); err != nil {
			return nil, err
		}
	}
	if err := r.Publish(ctx, &schema.PhaseStartedData{Phase: name}, 0); err != nil {
		return nil, err
	}
	value, err := work(ctx)
	if err != nil {
		return nil, fmt.Errorf("phase %s of run %s: %w", name, r.id, err)
	}
	var output json.RawMessage
	if value != nil {
		if output, err = jsonv2.Marshal(value, jsonv2.Deterministic(true)); err != nil {
			return nil, fmt.Errorf("output of phase %s of run %s: %w", name, r.id, err)
		}
	}
	return output, r.Publish(ctx, &schema.PhaseCompletedData{Phase: name, Output: []byte(output)}, 0)
}

func (r *Run) phaseOutput(ctx context.Context, name string) (json.RawMessage, error) {
	output, err := r.field(ctx, "/output", func(s *schema.State) (output []byte, refs []schema.Ref) {
		for i := range s.Phases {
			if p := &s.Phases[i]; p.Phase == name {
				output, refs = p.Output, p.Refs
			}
		}
		return output, refs
	})
	if err != nil {
		return nil, fmt.Errorf("output of phase %s of run %s: %w", name, r.id, err)
	}
	return output, nil
}
