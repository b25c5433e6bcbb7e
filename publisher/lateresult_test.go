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

func TestLateResult_FencedExecutor_HandsIn(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]error{"a result": nil, "a failure": errors.New("no such host")} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet()
			turn := openTurn(t, start(t, f, "r1"))
			w.serve()
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			var run *publisher.Run
			_, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
				run = resume(t, f, "r1")
				result, _ := publisher.Result("deployed")
				return result, outcome
			})
			require.ErrorIs(t, err, publisher.ErrFenced)
			require.NotErrorIs(t, err, publisher.ErrToolFailed, "that is for a recorded failure")
			require.NoError(t, run.Sync(t.Context()))
			head := run.Head()
			require.Len(t, head.OpenCalls, 1)
			require.Equal(t, schema.CallLate, head.OpenCalls[0].State)
			var n atomic.Int64
			result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran again"))
			require.Zero(t, n.Load())
			if outcome == nil {
				require.NoError(t, err)
				require.JSONEq(t, `"deployed"`, string(result.Result))
			} else {
				require.ErrorIs(t, err, publisher.ErrToolFailed)
				require.ErrorContains(t, err, "no such host")
			}
			require.Equal(t, []schema.Settlement{schema.SettledAdopted}, w.requireSameFold(run).Calls[0].Settlements)
		})
	}
}

func TestLateResult_FencedHandle_OnlyEvidence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	old := start(t, f, "r1")
	turn := openTurn(t, old)
	w.serve()
	var n atomic.Int64
	call := publisher.ToolCall{ID: "c1", Name: "look", Replay: schema.ReplayPure}
	_, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		run := resume(t, f, "r1")
		_, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "new"))
		require.NoError(t, err)
		return publisher.Result("old")
	})
	require.ErrorIs(t, err, publisher.ErrFenced)
	require.Equal(t, int64(1), n.Load())
	require.ErrorIs(t, old.Mark(t.Context(), "mine"), publisher.ErrFenced)
	s := w.fold("r1")
	require.JSONEq(t, `"new"`, string(s.Calls[0].Result))
	require.Zero(t, s.Head.Counts.LateResults, "the call was settled: its outcome is not needed any more")
	require.Zero(t, s.Head.Counts.DeadLetters)
}
