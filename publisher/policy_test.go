package publisher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// noDelete allows what it knows, denies rm, leaves mail to a person, and fails for odd.
func noDelete(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
	switch call.Name {
	case "rm", "wipe":
		return publisher.Decision{Decision: schema.DecisionDeny, Policy: "no-delete", Reason: "Agents delete nothing here."}, nil
	case "mail":
		return publisher.Decision{Decision: schema.DecisionAsk, Policy: "outside"}, nil
	case "odd":
		return publisher.Decision{}, errors.New("the policy's server is away")
	}
	return publisher.Decision{Decision: schema.DecisionAllow, Policy: "inside"}, nil
}

func withPolicy(mode publisher.PolicyMode) func(*publisher.Config) {
	return func(c *publisher.Config) { c.Policy, c.PolicyMode = noDelete, mode }
}

func policed(t *testing.T, mode publisher.PolicyMode) *publisher.Run {
	t.Helper()
	cfg := publisher.Config{Executor: "e", Agent: "coder"}
	withPolicy(mode)(&cfg)
	run, err := publisher.Unrecorded(t.Context(), cfg, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	return run
}

var gone = publisher.ToolResult{Result: []byte(`"gone"`)}

func TestPolicy_CallAndReturnOfADeniedTool_NeverRecordedAsReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(withPolicy("")), "r1")
	turn := openTurn(t, run)
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "a", Name: "look", Replay: schema.ReplayPure}, publisher.ToolCall{ID: "b", Name: "rm"}, publisher.ToolCall{ID: "c", Name: "put"})
	denied := new(publisher.ToolError)
	require.ErrorAs(t, err, &denied)
	require.Equal(t, keys[1], denied.Key)
	require.Equal(t, schema.DeniedType, denied.Failure.Type)
	require.Equal(t, "Agents delete nothing here.", denied.Failure.Message)
	require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{Result: []byte(`1`)}))
	require.ErrorAs(t, turn.Begin(t.Context(), keys[1]), &denied, "the same is said again")
	require.True(t, denied.Replayed)
	require.NoError(t, turn.Begin(t.Context(), keys[2]), "it has begun")
	require.NoError(t, turn.Return(t.Context(), keys[2], publisher.ToolResult{Result: []byte(`2`)}))
	require.ErrorIs(t, turn.Return(t.Context(), keys[1], gone), publisher.ErrNotAllowed, "not even with an outcome")
	s := w.requireSameFold(run)
	require.Equal(t, schema.OutcomeFailed, s.Calls[1].Outcome)
	require.Equal(t, schema.OutcomeReturned, s.Calls[0].Outcome)
	require.Equal(t, schema.OutcomeReturned, s.Calls[2].Outcome)
	require.Len(t, s.Decisions, 3)
}

func TestPolicy_EachWayAround_IsRefused(t *testing.T) {
	t.Parallel()
	key := schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}
	returned := &schema.ToolReturnedData{ToolCallID: "a", Result: []byte(`"gone"`)}
	tests := map[string]func(ctx context.Context, run *publisher.Run, turn *publisher.Turn) error{
		"a result without a begin": func(ctx context.Context, _ *publisher.Run, turn *publisher.Turn) error {
			return turn.Return(ctx, key, gone)
		},
		"the event of a result": func(ctx context.Context, run *publisher.Run, _ *publisher.Turn) error {
			return run.Publish(ctx, returned, 1)
		},
		"the event of a begin": func(ctx context.Context, run *publisher.Run, _ *publisher.Turn) error {
			return run.Publish(ctx, &schema.ToolCalledData{ToolCallID: "a", Name: "rm"}, 1)
		},
		"the event of another call, begun at once": func(ctx context.Context, run *publisher.Run, _ *publisher.Turn) error {
			return run.Publish(ctx, &schema.ToolCalledData{ToolCallID: "b", Name: "rm"}, 1)
		},
		"a permission of its own": func(ctx context.Context, _ *publisher.Run, turn *publisher.Turn) error {
			return turn.Run().Publish(ctx, &schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionAllow, Policy: "mine"}, turn.Number())
		},
		"an observation of its own": func(ctx context.Context, run *publisher.Run, _ *publisher.Turn) error {
			return run.Publish(ctx, &schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionDeny, Mode: schema.ModeObserve}, 1)
		},
		"the word that it begins": func(ctx context.Context, _ *publisher.Run, turn *publisher.Turn) error {
			err := turn.Run().Publish(ctx, &schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionAllow, Policy: schema.BeginPolicy}, turn.Number())
			return errors.Join(err, turn.Return(ctx, key, gone))
		},
		"a settlement of its own": func(ctx context.Context, run *publisher.Run, _ *publisher.Turn) error {
			return run.Publish(ctx, &schema.ToolSettledData{ToolCallID: "a", How: schema.SettledVerified, Result: []byte(`"gone"`)}, 1)
		},
		"a question without an answer": func(ctx context.Context, run *publisher.Run, turn *publisher.Turn) error {
			return errors.Join(turn.Run().Publish(ctx, &schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionAsk}, turn.Number()), run.Publish(ctx, returned, 1))
		},
	}
	for name, way := range tests {
		t.Run(name, func(t *testing.T) {
			run := policed(t, publisher.PolicyEnforce)
			turn := openTurn(t, run)
			answers(t, turn, publisher.ToolCall{ID: "a", Name: "rm", Replay: schema.ReplayIdempotent})
			err := way(t.Context(), run, turn)
			require.ErrorIs(t, err, publisher.ErrNotAllowed)
			require.Equal(t, schema.OutcomeOpen, run.State().Calls[0].Outcome)
			_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "a", Name: "rm"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
				t.Error("the tool ran")
				return gone, nil
			})
			if name == "a question without an answer" {
				require.ErrorIs(t, err, publisher.ErrUnrecorded, "it is still asked")
				return
			}
			require.ErrorIs(t, err, publisher.ErrToolFailed)
			require.Equal(t, schema.OutcomeFailed, run.State().Calls[0].Outcome)
		})
	}
}

func TestPolicy_WithoutAPolicy_NothingIsRefused(t *testing.T) {
	t.Parallel()
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder"}, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	turn := openTurn(t, run)
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "a", Name: "rm"})
	require.NoError(t, err)
	require.NoError(t, turn.Return(t.Context(), keys[0], gone))
	require.Empty(t, run.State().Decisions)
}

func TestPolicy_Observed_EachDecisionIsRecordedAndEachCallRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(withPolicy(publisher.PolicyObserve)), "r1")
	turn := openTurn(t, run)
	for _, name := range []string{"look", "rm", "mail", "odd"} {
		ran := 0
		_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: name, Name: name}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			ran++
			return gone, nil
		})
		require.NoError(t, err, name)
		require.Equal(t, 1, ran, name)
	}
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "x", Name: "wipe"})
	require.NoError(t, err)
	require.NoError(t, turn.Return(t.Context(), keys[0], gone))
	s := w.requireSameFold(run)
	got := map[string]string{}
	for i := range s.Decisions {
		if d := &s.Decisions[i]; d.Policy != schema.BeginPolicy {
			require.Equal(t, schema.ModeObserve, d.Mode)
			got[d.ToolCallID] = d.Decision + ": " + d.Reason
		}
	}
	require.Equal(t, map[string]string{
		"look": "allow: ", "rm": "deny: Agents delete nothing here.", "mail": "ask: ", "odd": "allow: the policy returned an error: the policy's server is away",
		"x": "deny: Agents delete nothing here.",
	}, got)
	require.Empty(t, s.Waits, "no person is asked")
}

func TestPolicy_ObservedThenEnforced_DecidesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run := start(t, w.fleet(withPolicy(publisher.PolicyObserve)), "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "a", Name: "rm", Replay: schema.ReplayPure}
	answers(t, turn, call)
	ctx, die := context.WithCancel(t.Context())
	_, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		die() // its outcome is not known
		return gone, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	run = resume(t, w.fleet(withPolicy(publisher.PolicyEnforce)), "r1")
	_, err = run.Turn(1).Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		t.Error("the tool ran")
		return gone, nil
	})
	require.ErrorIs(t, err, publisher.ErrToolFailed)
	s := w.requireSameFold(run)
	require.Len(t, s.Decisions, 2)
	require.Equal(t, schema.ModeObserve+" ", s.Decisions[0].Mode+" "+s.Decisions[1].Mode)
}

func TestConfig_PolicyModeWithoutAPolicyOrUnknown_IsRefused(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, publisher.Config{Executor: "e", PolicyMode: publisher.PolicyObserve}.Validate(), "PolicyMode is observe without a Policy: set Policy, or remove PolicyMode")
	require.ErrorContains(t, publisher.Config{Executor: "e", Policy: noDelete, PolicyMode: "watch"}.Validate(), `PolicyMode is "watch"`)
	require.NoError(t, publisher.Config{Executor: "e", Policy: noDelete, PolicyMode: publisher.PolicyEnforce}.Validate())
}
