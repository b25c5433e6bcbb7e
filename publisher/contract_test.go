package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func bound(t *testing.T, spec publisher.RunSpec) *publisher.Run {
	t.Helper()
	spec.ID = "r1"
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder"}, spec)
	require.NoError(t, err)
	return run
}

func said(t *testing.T, run *publisher.Run, tokens int64, calls ...publisher.ToolCall) *publisher.Turn {
	t.Helper()
	turn := openTurn(t, run)
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("Go on.")), Calls: calls, Usage: &schema.Usage{InputTokens: tokens}})
	require.NoError(t, err)
	return turn
}

func TestContract_CompletionTool_IsTheOnlyWayToComplete(t *testing.T) {
	t.Parallel()
	run := bound(t, publisher.RunSpec{Complete: "submit"})
	require.ErrorIs(t, run.End(t.Context(), publisher.RunEnd{}), publisher.ErrNotCompleted)
	require.ErrorIs(t, run.Publish(t.Context(), &schema.RunEndedData{Status: "completed", CompletedBy: "c9"}, 0), publisher.ErrNotCompleted)
	turn := openTurn(t, run)
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "a", Name: "look"}, publisher.ToolCall{ID: "b", Name: "submit"})
	require.NoError(t, err)
	require.NoError(t, turn.Return(t.Context(), keys[0], gone))
	require.ErrorContains(t, run.Complete(t.Context(), keys[0], publisher.RunEnd{}), `call a is one of "look"`)
	require.ErrorContains(t, run.End(t.Context(), publisher.RunEnd{CompletedBy: "a"}), `call a is one of "look": end it with Run.Complete after a call of submit, or as failed`)
	require.ErrorContains(t, run.Complete(t.Context(), keys[1], publisher.RunEnd{}), "call b has no outcome yet")
	require.NoError(t, turn.Return(t.Context(), keys[1], gone))
	require.NoError(t, run.Complete(t.Context(), keys[1], publisher.RunEnd{}))
	require.Equal(t, "b", run.Head().CompletedBy)
	require.NoError(t, bound(t, publisher.RunSpec{Complete: "submit"}).End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed}), "it may fail")
}

func TestContract_AtItsLimits_OnlyTheTurnThatSumsUpBegins(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]publisher.RunSpec{"turns": {MaxTurns: 2}, "tokens": {MaxTokens: 20}} {
		t.Run(name, func(t *testing.T) {
			run := bound(t, spec)
			said(t, run, 10)
			said(t, run, 10)
			_, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
			limit := new(publisher.LimitError)
			require.ErrorAs(t, err, &limit)
			require.ErrorIs(t, err, publisher.ErrLimit)
			require.Equal(t, name, limit.Limit.Kind)
			require.ErrorContains(t, err, "end the run with Run.LimitReached")
			for way, event := range map[string]schema.Data{
				"start": &schema.TurnStartedData{Turn: 3}, "answer": &schema.TurnAnsweredData{Turn: 3, Message: assistant(schema.Text("x"))},
				"call": &schema.ToolCalledData{ToolCallID: "x", Name: "x"}, "recovery without a limit": &schema.TurnStartedData{Turn: 3, Purpose: schema.PurposeRecovery},
			} {
				require.ErrorIs(t, run.Publish(t.Context(), event, 3), publisher.ErrLimit, way)
			}
			n := 0
			require.NoError(t, run.LimitReached(t.Context(), limit.Limit, func(ctx context.Context, turn *publisher.Turn) (string, error) {
				n++
				if _, err := turn.Call(ctx, publisher.ToolCall{ID: "y", Name: "y", Replay: schema.ReplayPure}); err != nil {
					return "", err
				}
				if err := turn.Fail(ctx, schema.CallKey{Turn: 3, ToolCallID: "y", Occurrence: 1}, schema.Error{Type: "x"}); err != nil {
					return "", err
				}
				if _, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text("Half of it."))}); err != nil {
					return "", err
				}
				_, err := run.StartTurn(ctx, publisher.TurnSpec{Purpose: schema.PurposeRecovery})
				require.ErrorContains(t, err, "its summary turn is used up: end the run")
				require.NoError(t, run.Limit(ctx, "time", nil, nil))
				_, err = run.StartTurn(ctx, publisher.TurnSpec{Purpose: schema.PurposeRecovery})
				require.ErrorIs(t, err, publisher.ErrLimit, "another limit gives no other turn")
				return "", nil
			}, publisher.RunEnd{Status: schema.StatusFailed}))
			require.Equal(t, 1, n)
			require.Equal(t, "Half of it.", run.Head().Summary)
			require.Equal(t, int32(3), run.Head().Turn)
		})
	}
}

func TestContract_LimitReachedUnderACompletionTool_CompletesByItOrFails(t *testing.T) {
	t.Parallel()
	run := bound(t, publisher.RunSpec{Complete: "submit", MaxTurns: 1})
	said(t, run, 1)
	_, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	limit := new(publisher.LimitError)
	require.ErrorAs(t, err, &limit)
	wrapUp := func(ctx context.Context, turn *publisher.Turn) (string, error) {
		keys, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text("Half.")), Calls: []publisher.ToolCall{{ID: "c", Name: "submit", Replay: schema.ReplayPure}}})
		if err != nil {
			return "", err
		}
		if err := turn.Return(ctx, keys[0], gone); err != nil {
			return "", err
		}
		return "", run.Complete(ctx, keys[0], publisher.RunEnd{Summary: "half"})
	}
	require.ErrorContains(t, run.LimitReached(t.Context(), limit.Limit, wrapUp, publisher.RunEnd{}), "use StatusFailed")
	require.NoError(t, run.LimitReached(t.Context(), limit.Limit, wrapUp, publisher.RunEnd{Status: schema.StatusFailed}))
	require.Equal(t, schema.StatusCompleted, run.Head().Status)
	require.Equal(t, "c turns", run.Head().CompletedBy+" "+run.Head().Limit)
}

func TestContract_Keep_TheLowerLimitCountsAndOneTool(t *testing.T) {
	t.Parallel()
	run := bound(t, publisher.RunSpec{MaxTurns: 3, MaxTokens: 100})
	require.NoError(t, publisher.Keep(run, publisher.Contract{Complete: "submit", MaxTurns: 5, MaxTokens: 50}))
	require.Equal(t, publisher.Contract{Complete: "submit", MaxTurns: 3, MaxTokens: 50}, publisher.ContractOf(run))
	require.ErrorContains(t, publisher.Keep(run, publisher.Contract{Complete: "done"}), "only a call of submit completes the run")
	require.ErrorContains(t, publisher.Keep(run, publisher.Contract{MaxTurns: -1}), "MaxTurns")
	_, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder"}, publisher.RunSpec{ID: "r1", MaxTokens: -1})
	require.ErrorIs(t, err, publisher.ErrConfig)
}

func TestContract_WorkOfAnExecutorReturnsNil_TheRunHasFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	executor, err := f.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(context.Context, *publisher.Run) error { return nil }, nil
			},
		},
		Contracts: map[string]publisher.Contract{"coder": {Complete: "submit"}}, Capacity: -1,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- executor.Serve(ctx) }()
	_, err = executor.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.fold("r1").Head.Status.Terminal() }, time.Minute, 5*time.Millisecond)
	s := w.fold("r1")
	require.Equal(t, schema.StatusFailed, s.Head.Status)
	require.Contains(t, s.Head.LastError.Message, "its work returned before a call of submit completed it")
	stop()
	require.NoError(t, <-done)
	_, err = f.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{}, Contracts: map[string]publisher.Contract{"missing": {}}, Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"coder": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, nil },
	}})
	require.ErrorContains(t, err, "Contracts is missing")
}

func TestContract_Continue_TheChildHasItAndTheParentEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run, err := w.fleet().Start(t.Context(), publisher.RunSpec{ID: "r1", Complete: "submit", MaxTurns: 7, MaxTokens: 70})
	require.NoError(t, err)
	child, err := run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical"}), publisher.RunSpec{})
	require.NoError(t, err)
	require.Equal(t, schema.StatusCompleted, run.Head().Status)
	require.Equal(t, publisher.Contract{Complete: "submit", MaxTurns: 7, MaxTokens: 70}, publisher.ContractOf(child))
	require.ErrorIs(t, child.End(t.Context(), publisher.RunEnd{}), publisher.ErrNotCompleted)
}
