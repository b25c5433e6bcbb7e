package publisher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func unrecorded(t *testing.T, cfg publisher.Config, spec publisher.RunSpec) *publisher.Run {
	t.Helper()
	cfg.Executor, spec.ID, spec.Agent = "exec-1", "r1", "coder"
	run, err := publisher.Unrecorded(t.Context(), cfg, spec)
	require.NoError(t, err)
	return run
}

// The same work on a recorded run and on an unrecorded one: the states are the same to the letter, but for their places in the log.
func TestUnrecorded_TheSameWork_TheSameState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	work := func(run *publisher.Run) *schema.State {
		ctx := t.Context()
		phase, err := run.Phase(ctx, "build", func(context.Context) (any, error) { return 1.50, nil })
		require.NoError(t, err)
		require.Equal(t, "1.5", string(phase))
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		require.NoError(t, err)
		call := publisher.ToolCall{ID: "c1", Name: "pay", Arguments: raw(`{"cents":9007199254740993}`)}
		_, err = turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text("I pay.")), Calls: []publisher.ToolCall{call}})
		require.NoError(t, err)
		var n atomic.Int64
		call.Occurrence = 1
		for range 2 {
			result, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
				n.Add(1)
				return publisher.ToolResult{Result: raw(`"paid"`), Duration: time.Millisecond}, nil
			})
			require.NoError(t, err)
			require.Equal(t, `"paid"`, string(result.Result))
		}
		require.EqualValues(t, 1, n.Load(), "the recorded result is returned")
		for range 20 {
			require.NoError(t, run.AddMessage(ctx, assistant(schema.Text("on"))))
		}
		require.NoError(t, run.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted, Output: raw(`true`)}))
		return run.State()
	}
	cfg := publisher.Config{Heartbeat: -1, Now: func() time.Time { return now }}
	got := work(unrecorded(t, cfg, publisher.RunSpec{}))

	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat, c.Now = -1, cfg.Now })
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	want := work(run)
	require.Equal(t, want.Head.Digest, got.Head.Digest)
	require.EqualValues(t, got.Head.Counts.Events, got.Head.Position.Stream, "each event has its place")
	require.Equal(t, want.Messages, got.Messages)
	require.Equal(t, want.Calls, got.Calls)
	require.Equal(t, want.Ended, got.Ended)
}

func TestUnrecorded_WhatNeedsAFleet_SaysSo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	run := unrecorded(t, publisher.Config{}, publisher.RunSpec{})
	_, err := run.Ask(ctx, schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which?"})
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
	_, err = run.AwaitInput(ctx, "q")
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
	_, err = run.Continue(ctx, run.Handoff(schema.HandoffOfferedData{}), publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
	_, err = publisher.Unrecorded(ctx, publisher.Config{Executor: "exec-1"}, publisher.RunSpec{ID: "r2", Agent: "coder", Handoff: &schema.HandoffSource{Run: "r1"}})
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
	_, err = publisher.Unrecorded(ctx, publisher.Config{}, publisher.RunSpec{ID: "r2", Agent: "coder"})
	require.ErrorIs(t, err, publisher.ErrConfig)
	ended, end := context.WithCancelCause(ctx)
	end(errors.New("stop"))
	require.ErrorIs(t, run.AddMessage(ended, assistant(schema.Text("late"))), publisher.ErrUnavailable)
	require.NoError(t, run.Err(), "the handle can go on")
}

func TestUnrecorded_PolicyAsks_TheCallIsNotMade(t *testing.T) {
	t.Parallel()
	ask := func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
		return publisher.Decision{Decision: schema.DecisionAsk}, nil
	}
	run := unrecorded(t, publisher.Config{Policy: ask}, publisher.RunSpec{})
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	var n atomic.Int64
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "pay", Arguments: raw(`{}`)}, counted(&n, "paid"))
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
	require.Zero(t, n.Load())
}

func TestUnrecorded_HoldToolPanics_ErrorNamesCallsNotCommands(t *testing.T) {
	t.Parallel()
	run := unrecorded(t, publisher.Config{}, publisher.RunSpec{})
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c1", Name: "pay", Arguments: raw(`{}`), Occurrence: 1}
	pay := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { panic("no paper") }
	_, err = turn.Tool(t.Context(), call, pay)
	held, ok := errors.AsType[*publisher.HeldError](err)
	require.True(t, ok, "%v", err)
	require.NotContains(t, held.Error(), "waymark ")
	require.Contains(t, held.Command, "Turn.Return or Turn.Fail")
	require.NoError(t, turn.Return(t.Context(), held.Key, publisher.ToolResult{Result: raw(`"paid"`)}), "as it says")
	result, err := turn.Tool(t.Context(), call, pay)
	require.NoError(t, err)
	require.Equal(t, `"paid"`, string(result.Result))
}

func TestUnrecorded_LargeResult_StaysInItsEvent(t *testing.T) {
	t.Parallel()
	run := unrecorded(t, publisher.Config{}, publisher.RunSpec{Task: strings.Repeat("x", 1<<20)})
	task, err := run.Task(t.Context())
	require.NoError(t, err)
	require.Len(t, task, 1<<20)
}
