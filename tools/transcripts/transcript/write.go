package transcript

import (
	"context"
	"fmt"

	"github.com/waymarkio/waymark/publisher"
)

// Write publishes the run to a fleet, to its end.
func (r *Run) Write(ctx context.Context, fleet *publisher.Fleet) error {
	run, err := fleet.Start(ctx, publisher.RunSpec{
		ID: r.ID, Agent: r.Agent, Model: r.Model, Parent: r.Parent, Labels: map[string]string{"format": r.Format},
	})
	if err != nil {
		return fmt.Errorf("write run %s: %w", r.ID, err)
	}
	for i, t := range r.Turns {
		if err := t.write(ctx, run); err != nil {
			return fmt.Errorf("write turn %d of run %s: %w", i+1, r.ID, err)
		}
	}
	for i := range r.Rest {
		if err := run.AddMessage(ctx, r.Rest[i]); err != nil {
			return fmt.Errorf("write run %s: %w", r.ID, err)
		}
	}
	if err := run.End(ctx, r.End); err != nil {
		return fmt.Errorf("end run %s: %w", r.ID, err)
	}
	return nil
}

func (t *Turn) write(ctx context.Context, run *publisher.Run) error {
	if t.Compacted != nil {
		if err := run.Compact(ctx, *t.Compacted); err != nil {
			return err
		}
	}
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: t.New})
	if err != nil {
		return err
	}
	keys, err := turn.Answer(ctx, t.Answer)
	if err != nil {
		return err
	}
	for _, r := range t.Results {
		if err := turn.Return(ctx, keys[r.Call], r.ToolResult); err != nil {
			return err
		}
	}
	if len(t.Results) < len(t.Answer.Calls) {
		return turn.End(ctx, publisher.TurnEnd{})
	}
	return nil
}
