package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A person settled a call as rerun, and the work returns nil without having run it.
func TestExecutor_WorkEndsOverACallToBeRunAgain_TheRunIsNotClaimable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "c1", Name: "mail"}
	answers(t, turn, call)
	ctx, die := context.WithCancel(t.Context())
	_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		die()
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	w.serve()
	f2 := w.fleet()
	two, err := f2.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	w.control("r1", two.Head().Epoch, &schema.ToolSettledData{ToolCallID: "c1", Occurrence: 1, How: schema.SettledRerun, By: "ann"})
	require.NoError(t, two.Sync(t.Context()))
	out := make(chan publisher.Outcome, 4)
	e, err := f2.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(context.Context, *publisher.Run) error { return nil }, nil
			},
		},
		Capacity: -1, OnOutcome: func(_ string, o publisher.Outcome, _ error) { out <- o },
	})
	require.NoError(t, err)
	require.NoError(t, e.Adopt(two))
	sctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(sctx) }()
	o := <-out
	stop()
	require.NoError(t, <-done)
	head := w.fold("r1").Head
	require.False(t, head.Status.Claimable(), "outcome %s, and each claimer does the same until the run is quarantined", o)
}
