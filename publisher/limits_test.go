package publisher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

var tokens = publisher.Limit{Kind: "tokens", Value: 1200, Maximum: 1000}

func sums(n *int, summary string) func(context.Context, *publisher.Turn) (string, error) {
	return func(ctx context.Context, turn *publisher.Turn) (string, error) {
		*n++
		_, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text("It is half done."))})
		return summary, err
	}
}

func TestLimit_Reached_EndsWithSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	answers(t, openTurn(t, run))
	n := 0
	require.NoError(t, run.LimitReached(t.Context(), tokens, sums(&n, "half done"), publisher.RunEnd{Status: schema.StatusFailed}))
	require.Equal(t, []string{"limit.reached", "turn.started", "turn.answered", "run.ended"}, names(w.log("r1"))[2:])
	s := w.requireSameFold(run)
	require.Equal(t, schema.StatusFailed, s.Head.Status)
	require.Equal(t, "half done", s.Head.Summary)
	require.Equal(t, "tokens", s.Head.Limit)
	require.Empty(t, s.Head.CompletedBy)
	require.Equal(t, schema.PurposeRecovery, s.Turns[1].Purpose)
	require.JSONEq(t, `1200`, string(s.Limits[0].Value))
	require.NoError(t, run.LimitReached(t.Context(), tokens, sums(&n, ""), publisher.RunEnd{}), "it has ended so already")
	require.Equal(t, 1, n)
}

func TestSummary_Sources_BestChosen(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		wrapUp func(context.Context, *publisher.Turn) (string, error)
		end    publisher.RunEnd
		want   string
	}{
		"what wrapUp says": {wrapUp: sums(new(int), "a"), end: publisher.RunEnd{Summary: "b"}, want: "a"},
		"what end says":    {wrapUp: sums(new(int), ""), end: publisher.RunEnd{Summary: "b"}, want: "b"},
		"the last answer":  {wrapUp: sums(new(int), ""), want: "It is half done."},
		"the limit": {wrapUp: func(ctx context.Context, turn *publisher.Turn) (string, error) {
			_, err := turn.Answer(ctx, publisher.Answer{Message: assistant(), Usage: &schema.Usage{InputTokens: 5}})
			return "", err
		}, want: "limit reached: tokens"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			require.NoError(t, run.LimitReached(t.Context(), tokens, test.wrapUp, test.end))
			require.Equal(t, test.want, w.requireSameFold(run).Head.Summary)
		})
	}
}

// The executor dies behind each step.
func TestLimit_EachCrash_Continues(t *testing.T) {
	t.Parallel()
	limit := func(t *testing.T, run *publisher.Run) {
		t.Helper()
		require.NoError(t, run.Limit(t.Context(), tokens.Kind, tokens.Value, tokens.Maximum))
	}
	begin := func(t *testing.T, run *publisher.Run) *publisher.Turn {
		t.Helper()
		limit(t, run)
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Purpose: schema.PurposeRecovery})
		require.NoError(t, err)
		return turn
	}
	tests := map[string]struct {
		before func(t *testing.T, run *publisher.Run)
		runs   int
	}{
		"behind the limit": {before: limit, runs: 1},
		"behind the start of the turn": {before: func(t *testing.T, run *publisher.Run) {
			t.Helper()
			begin(t, run)
		}, runs: 1},
		"behind the answer": {before: func(t *testing.T, run *publisher.Run) {
			t.Helper()
			turn := begin(t, run)
			_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("It is half done."))})
			require.NoError(t, err)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			f := w.fleet()
			test.before(t, start(t, f, "r1"))
			run := resume(t, f, "r1")
			n := 0
			require.NoError(t, run.LimitReached(t.Context(), tokens, sums(&n, ""), publisher.RunEnd{}))
			require.Equal(t, test.runs, n)
			s := w.requireSameFold(run)
			require.Len(t, s.Limits, 1)
			require.Len(t, s.Turns, 1)
			require.Equal(t, "It is half done.", s.Head.Summary)
			require.Equal(t, "tokens", s.Head.Limit)
		})
	}
}

func TestLimit_RecoveryFails_Continues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	down := errors.New("no model")
	err := run.LimitReached(t.Context(), tokens, func(context.Context, *publisher.Turn) (string, error) { return "", down }, publisher.RunEnd{})
	require.ErrorIs(t, err, down)
	require.False(t, run.Head().Status.Terminal())
	n := 0
	require.NoError(t, run.LimitReached(t.Context(), tokens, sums(&n, "done"), publisher.RunEnd{}))
	s := w.requireSameFold(run)
	require.Len(t, s.Turns, 1)
	require.Len(t, s.Limits, 1)
	wrong, ok := errors.AsType[*schema.DataError](run.LimitReached(t.Context(), publisher.Limit{Kind: "patience"}, nil, publisher.RunEnd{}))
	require.True(t, ok)
	require.Equal(t, "/limit", wrong.Path)
}

func TestContract_Output_EndsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	bad := true
	tests := map[string]struct {
		call  func(t *testing.T, turn *publisher.Turn)
		wrong string
	}{
		"returned": {call: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "submit"}, newOutside(t).tool)
			require.NoError(t, err)
		}},
		"unknown": {call: func(*testing.T, *publisher.Turn) {}, wrong: "was not recorded"},
		"open": {call: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			_, err := turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "submit"})
			require.NoError(t, err)
		}, wrong: "has no outcome yet"},
		"failed": {call: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "submit"})
			require.NoError(t, err)
			require.NoError(t, turn.Fail(t.Context(), keys[0], schema.Error{Type: "error"}))
		}, wrong: "has failed"},
		"returned an error": {call: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "submit"})
			require.NoError(t, err)
			require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{IsError: &bad}))
		}, wrong: "returned an error"},
	}
	i := 0
	for name, test := range tests {
		i++
		id := "r" + string(rune('0'+i))
		t.Run(name, func(t *testing.T) {
			run := start(t, f, id)
			test.call(t, openTurn(t, run))
			err := run.Complete(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, publisher.RunEnd{Summary: "done"})
			s := w.requireSameFold(run)
			if test.wrong != "" {
				require.ErrorIs(t, err, publisher.ErrConflict)
				require.ErrorContains(t, err, test.wrong)
				require.False(t, s.Head.Status.Terminal())
				return
			}
			require.NoError(t, err)
			require.Equal(t, schema.StatusCompleted, s.Head.Status)
			require.Equal(t, "c1", s.Head.CompletedBy)
			require.JSONEq(t, `"effect 1"`, string(s.Ended.Output))
		})
	}
	run := start(t, f, "s1")
	require.ErrorIs(t, run.Complete(t.Context(), schema.CallKey{}, publisher.RunEnd{Status: schema.StatusFailed}), publisher.ErrConfig)
}

func TestContextTokens_LatestTurn_Decides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	turnWith := func(u *schema.Usage) func() {
		return func() {
			_, err := openTurn(t, run).Answer(t.Context(), publisher.Answer{Message: assistant(), Usage: u})
			require.NoError(t, err)
		}
	}
	steps := []struct {
		name   string
		do     func()
		tokens int64
	}{
		{"a new run", func() {}, 0},
		{"input and output count", turnWith(&schema.Usage{InputTokens: 700, OutputTokens: 99}), 799},
		{"at the warning", turnWith(&schema.Usage{InputTokens: 700, OutputTokens: 100}), 800},
		{"a turn without usage changes nothing", turnWith(nil), 800},
		{"nor does one whose usage is empty, which its event leaves out", turnWith(&schema.Usage{}), 800},
		{"nor does one that is open", func() { openTurn(t, run) }, 800},
		{"cached input is part of the input", turnWith(&schema.Usage{InputTokens: 900, CacheReadInputTokens: 500, OutputTokens: 49}), 949},
		{"or counted in addition to it", turnWith(&schema.Usage{InputTokens: 10, CacheReadInputTokens: 900, CacheCreationInputTokens: 30, OutputTokens: 10}), 950},
		{"a compaction makes room", func() {
			require.NoError(t, run.Compact(t.Context(), schema.ContextCompactedData{Summary: "s", ThroughTurn: run.Head().Turn, TokensAfter: 120}))
		}, 120},
		{"until the next turn", turnWith(&schema.Usage{InputTokens: 2000}), 2000},
	}
	for _, step := range steps {
		step.do()
		require.Equal(t, step.tokens, run.ContextTokens(), step.name)
	}
}
