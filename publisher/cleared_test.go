package publisher_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

var c1 = schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}

// clear settles the held call of a crashed run as rerun, as a person does.
func clearCall(t *testing.T, f *publisher.Fleet) {
	t.Helper()
	_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: c1, CallEpoch: attempt(t, f, "r1", c1), How: schema.SettledRerun, By: "anna"})
	require.NoError(t, err)
}

func TestClearedCall_NextExecutor_RunsWithoutAsking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	run := resume(t, f, "r1")
	var n atomic.Int64
	_, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	clearCall(t, f)
	// That executor is gone, and so is one that took over and did nothing.
	resume(t, f, "r1")
	run = resume(t, f, "r1")
	head := run.Head()
	require.Empty(t, head.InDoubt())
	_, err = run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load())
	require.Equal(t, []string{"run.resumed", "tool.settled", "run.resumed", "run.resumed", "tool.called", "tool.returned"}, names(w.log("r1"))[3:])
	w.requireSameFold(run)
}

func TestClearedCall_Begun_InDoubtAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	run := resume(t, f, "r1")
	clearCall(t, f)
	require.NoError(t, run.Sync(t.Context()))
	ctx, die := context.WithCancelCause(t.Context())
	_, err := run.Turn(1).Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		require.False(t, w.fold("r1").Head.OpenCalls[0].State.Requested(), "what begins it is in the log before the tool runs")
		die(errors.New("the executor vanishes"))
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	run = resume(t, f, "r1")
	require.Len(t, run.State().Head.InDoubt(), 1)
	var n atomic.Int64
	_, err = run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.Zero(t, n.Load())
}

func TestClearedCall_FencedExecutor_DoesNotBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	old := resume(t, f, "r1")
	clearCall(t, f)
	require.NoError(t, old.Sync(t.Context()))
	turn := old.OpenTurn()
	run := resume(t, f, "r1")
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), call, counted(&n, "ran twice"))
	require.ErrorIs(t, err, publisher.ErrFenced)
	require.Zero(t, n.Load())
	_, err = run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load())
}

func TestClearedCall_TurnRestarted_Runs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	resume(t, f, "r1")
	clearCall(t, f)
	run := resume(t, f, "r1")
	// The new executor's first event is not about the call.
	require.NoError(t, run.Mark(t.Context(), "here"))
	require.True(t, run.Head().OpenCalls[0].State.Requested())
	var n atomic.Int64
	_, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load())
	require.Equal(t, []string{"checkpoint.marked", "tool.called", "tool.returned"}, names(w.log("r1"))[6:])
}
