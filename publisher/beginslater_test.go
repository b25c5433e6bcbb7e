package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// answered is a turn with a call of a tool that begins later.
func answered(t *testing.T, w *world, replay schema.Replay) (*publisher.Turn, publisher.ToolCall) {
	t.Helper()
	w.serve()
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	call := publisher.ToolCall{ID: "c1", Name: "x", Replay: replay, BeginsLater: true}
	if replay == schema.ReplayVerify {
		call.VerifySubject = "x.verify"
	}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	return turn, call
}

func lost(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
	return publisher.ToolResult{}, fmt.Errorf("no program had it: %w", publisher.ErrLost)
}

func TestMayBegin_ToolBeginsLater_RecordsTheBeginOnce(t *testing.T) {
	t.Parallel()
	for _, replay := range []schema.Replay{schema.ReplayVerify, schema.ReplayHold} {
		w := newWorld(t)
		turn, call := answered(t, w, replay)
		_, err := turn.Tool(t.Context(), call, lost)
		require.ErrorIs(t, err, publisher.ErrLost)
		_, err = turn.Tool(t.Context(), call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			require.Equal(t, 1, inv.Attempt, "the one before did not begin")
			require.Equal(t, []string{"run.started", "turn.answered"}, names(w.log("r1")))
			for range 2 {
				within, err := inv.MayBegin(ctx)
				require.NoError(t, err)
				require.Positive(t, within)
				require.Equal(t, []string{"run.started", "turn.answered", "tool.called"}, names(w.log("r1")))
			}
			return publisher.Result("done")
		})
		require.NoError(t, err)
		require.Equal(t, []string{"run.started", "turn.answered", "tool.called", "tool.returned"}, names(w.log("r1")))
		w.requireSameFold(turn.Run())
	}
}

// A call whose program was lost before it began is not in doubt: the next executor runs it. After that it is.
func TestTool_BeginsLater_InDoubtFromMayBeginOn(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		w := newWorld(t)
		turn, call := answered(t, w, schema.ReplayHold)
		_, err := turn.Tool(t.Context(), call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			if begun {
				_, err := inv.MayBegin(ctx)
				require.NoError(t, err)
			}
			return lost(ctx, inv)
		})
		require.ErrorIs(t, err, publisher.ErrLost)
		var ran atomic.Int64
		next := resume(t, w.fleet(), "r1")
		_, err = next.Turn(1).Tool(t.Context(), call, counted(&ran, "done"))
		if begun {
			require.ErrorIs(t, err, publisher.ErrHeld)
			_, err = turn.Tool(t.Context(), call, counted(&ran, "done"))
			require.ErrorIs(t, err, publisher.ErrHeld, "nor does the executor that began it run it again")
			require.Zero(t, ran.Load())
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, 1, ran.Load())
	}
}

func TestMayBegin_RunTakenOverOrCallClosed_NothingBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn, call := answered(t, w, schema.ReplayHold)
	var inv publisher.Invocation
	_, err := turn.Tool(t.Context(), call, func(_ context.Context, given publisher.Invocation) (publisher.ToolResult, error) {
		inv = given
		return publisher.Result("it did not ask")
	})
	require.NoError(t, err)
	require.Equal(t, []string{"run.started", "turn.answered", "tool.called", "tool.returned"}, names(w.log("r1")))
	_, err = inv.MayBegin(t.Context())
	require.ErrorIs(t, err, publisher.ErrConflict)

	w = newWorld(t)
	turn, call = answered(t, w, schema.ReplayHold)
	_, err = turn.Tool(t.Context(), call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		resume(t, w.fleet(), "r1")
		_, err := inv.MayBegin(ctx)
		return publisher.ToolResult{}, errors.Join(publisher.ErrLost, err)
	})
	require.ErrorIs(t, err, publisher.ErrFenced)
	require.NotContains(t, names(w.log("r1")), "tool.called")
}

// A tool that did not begin within its timeout has no effect: the model is told, and no person is asked.
func TestLoop_ToolDoesNotBeginWithinItsTimeout_Fails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", ``))}}
	mail := publisher.Tool{Name: "mail", BeginsLater: true, Timeout: 20 * time.Millisecond, Run: func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		<-ctx.Done()
		return publisher.ToolResult{}, context.Cause(ctx)
	}}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}.Work(t.Context(), run))
	call := w.fold("r1").Calls[0]
	require.Equal(t, schema.OutcomeFailed, call.Outcome)
	require.Equal(t, "timeout", call.Error.Type)
	require.Contains(t, call.Error.Message, "it did not begin within 20ms")
	require.Zero(t, call.DurationMS, "it did not run")
}

// A policy without a rule for a call costs no event, and another executor's policy may have one.
func TestTool_PolicyHasNoRule_NothingIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{Decision: publisher.NoDecision}, nil
		}
	})
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "c1", Name: "x"}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), call, counted(new(atomic.Int64), "done"))
	require.NoError(t, err)
	require.Equal(t, []string{"run.started", "turn.answered", "tool.called", "tool.returned"}, names(w.log("r1")))
	w.requireSameFold(turn.Run())
}
