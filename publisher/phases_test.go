package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// What the plan says of phases is what the next executor finds, over a takeover by claim.
func TestPhase_Interrupted_RestartsWithClaimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	first := w.fleet()
	run := start(t, first, "r1")
	o := newOutside(t)
	var ran []string
	work := func(run *publisher.Run, name string, stopped <-chan struct{}) func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) {
			ran = append(ran, run.Head().Executor+" "+name)
			turn := run.OpenTurn()
			calls := []publisher.ToolCall{{ID: name + "-a", Name: "write"}, {ID: name + "-b", Name: "write"}}
			if turn == nil {
				turn = openTurn(t, run)
				answers(t, turn, calls...)
			}
			for _, call := range calls {
				if _, err := turn.Tool(ctx, call, o.tool); err != nil {
					return nil, err
				}
				if stopped != nil {
					return nil, context.Canceled
				}
			}
			return name + " done", nil
		}
	}
	_, err := run.Phase(t.Context(), "plan", work(run, "plan", nil))
	require.NoError(t, err)
	_, err = run.Phase(t.Context(), "build", work(run, "build", make(chan struct{})))
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, run.Interrupt(t.Context(), "shutdown"))

	plan, err := first.Plan(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, []string{"plan"}, plan.PhasesSkipped)
	require.Equal(t, "build", plan.PhaseRestarted)
	require.Equal(t, schema.PlanTurn{Turn: 2, Action: schema.TurnContinue, Messages: 1}, plan.Turn)

	second := w.fleet(executor("exec-2"))
	claimed, err := second.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "claim"})
	require.NoError(t, err)
	output, err := claimed.Phase(t.Context(), "plan", work(claimed, "plan", nil))
	require.NoError(t, err)
	require.JSONEq(t, `"plan done"`, string(output))
	_, err = claimed.Phase(t.Context(), "build", work(claimed, "build", nil))
	require.NoError(t, err)
	require.Equal(t, []string{"exec-1 plan", "exec-1 build", "exec-2 build"}, ran)
	require.Len(t, o.keys(), 4, "the call of the interrupted phase that was recorded is not made again")
	s := w.requireSameFold(claimed)
	require.Equal(t, []string{"plan", "build"}, s.Head.CompletedPhases)
	require.Equal(t, 2, s.Phases[1].Attempts)
}
