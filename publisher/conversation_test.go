package publisher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// told is a tool that keeps what it was told.
func told(inv *publisher.Invocation) publisher.ToolFunc {
	return func(_ context.Context, got publisher.Invocation) (publisher.ToolResult, error) {
		*inv = got
		return publisher.Result("done")
	}
}

func TestInvocation_Tool_HasNameAndArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "a", Name: "pay", Arguments: raw(`{"cents":1e2}`)}
	answers(t, openTurn(t, start(t, f, "r1")), call)
	w.serve()
	run := resume(t, f, "r1")
	call.Arguments = raw(`{"cents":100}`)
	var inv publisher.Invocation
	_, err := run.OpenTurn().Tool(t.Context(), call, told(&inv))
	require.NoError(t, err)
	require.Equal(t, "pay", inv.Name)
	require.Equal(t, `{"cents":1e2}`, string(inv.Arguments), "as recorded, not as the caller spells them")
}

func TestInvocation_LargeArguments_AreLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	call := publisher.ToolCall{ID: "a", Name: "write", Arguments: raw(`{"text":"` + strings.Repeat("x", 300<<10) + `"}`), Replay: schema.ReplayPure}
	var inv publisher.Invocation
	_, err := openTurn(t, start(t, w.fleet(), "r1")).Tool(t.Context(), call, told(&inv))
	require.NoError(t, err)
	require.Equal(t, string(call.Arguments), string(inv.Arguments))
}

func TestInvocation_RedactedArguments_TheToolGetsTheRealOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.Redaction = &publisher.Redaction{Fields: []string{"password"}} }), "r1")
	call := publisher.ToolCall{ID: "a", Name: "login", Arguments: raw(`{"password":"hunter2"}`)}
	var inv publisher.Invocation
	_, err := openTurn(t, run).Tool(t.Context(), call, told(&inv))
	require.NoError(t, err)
	require.JSONEq(t, `{"password":"hunter2"}`, string(inv.Arguments))
	require.NotContains(t, string(run.State().Calls[0].Arguments), "hunter2")
}

func TestTool_NoTool_TheCallFailsAndNothingBegins(t *testing.T) {
	t.Parallel()
	asked := 0
	for name, policy := range map[string]publisher.Policy{"no policy": nil, "a policy": func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
		asked++
		return publisher.Decision{Decision: schema.DecisionAsk}, nil
	}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(func(c *publisher.Config) { c.Policy = policy }), "r1")
			turn := openTurn(t, run)
			call := publisher.ToolCall{ID: "a", Name: "fly"}
			answers(t, turn, call)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := turn.Tool(ctx, call, nil)
			failed, ok := errors.AsType[*publisher.ToolError](err)
			require.True(t, ok, err)
			require.Equal(t, schema.Error{Type: "unknown_tool", Message: `there is no tool "fly"`}, failed.Failure)
			require.Equal(t, []string{"run.started", "turn.answered", "tool.failed"}, names(w.log("r1")))
			require.Zero(t, asked, "no person is asked about a tool that is not there")
		})
	}
}

// A hold call that an earlier executor began may have had its effect, also where the next executor lacks the tool.
func TestTool_NoToolForACallInDoubt_IsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	crashed(t, w, f, call)
	_, err := resume(t, f, "r1").OpenTurn().Tool(t.Context(), call, nil)
	require.ErrorIs(t, err, publisher.ErrHeld)
}

func TestTool_ArgumentsThatAreNoJSON_TheRecordedFailureIsReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	call := publisher.ToolCall{ID: "a", Name: "look", Arguments: raw(`{"at":`)}
	answers(t, turn, call)
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), call, counted(&n, "seen"))
	failed, ok := errors.AsType[*publisher.ToolError](err)
	require.True(t, ok, err)
	require.Equal(t, "invalid_arguments", failed.Failure.Type)
	require.Zero(t, n.Load())
}

func TestCalls_AreThoseOfTheTurn_AsToolTakesThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	want := publisher.ToolCall{
		ID: "a", Occurrence: 1, Name: "book", Arguments: raw(`{"seat":"7A"}`), Replay: schema.ReplayVerify, VerifySubject: "bookings.verify",
		IdempotencyKey: "k", SideEffect: "books", Timeout: 1500e6, Source: raw(`{"x":1}`),
	}
	again := publisher.ToolCall{ID: "a", Occurrence: 2, Name: "write", Arguments: raw(`{"text":"` + strings.Repeat("x", 300<<10) + `"}`), Replay: schema.ReplayPure}
	answers(t, openTurn(t, run), want, again)
	w.serve()
	run = resume(t, f, "r1")
	calls, err := run.Turn(1).Calls(t.Context())
	require.NoError(t, err)
	require.Equal(t, []publisher.ToolCall{want, again}, calls)
	require.Empty(t, run.State().Calls[1].Arguments, "the handle's state is not changed")
	calls, err = run.Turn(2).Calls(t.Context())
	require.NoError(t, err)
	require.Empty(t, calls)
}

func TestConversation_EncryptedContent_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Publish(t.Context(), &schema.TurnAnsweredData{
		Turn: 1, Message: assistant(schema.Text("c2VjcmV0")),
		Calls: []schema.RequestedCall{{ToolCallID: "a", Name: "pay", Arguments: raw(`"c2VjcmV0"`)}},
		Refs: []schema.Ref{
			{Path: "/message/parts/0/content", KeyID: "k1", Codec: "aes-256-gcm"}, {Path: "/calls/0/arguments", KeyID: "k2", Codec: "aes-256-gcm"},
		},
	}, 1))
	_, err := run.Conversation(t.Context())
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.ErrorContains(t, err, "conversation of run r1: /parts/0/content of message 1: the content is encrypted with key k1")
	_, err = run.Turn(1).Calls(t.Context())
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	task, err := run.Task(t.Context())
	require.NoError(t, err)
	require.Equal(t, "write it", task)
}

// A long run has more large fields than a conversation may: those that a compaction replaced are not loaded.
func TestConversation_OfACompactedRun_LoadsOnlyItsLargeFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.MaxBlob = 320 << 10 }), "r1")
	for i := range 10 {
		call := publisher.ToolCall{ID: "a", Name: "read", Replay: schema.ReplayPure}
		turn := openTurn(t, run)
		answers(t, turn, call)
		_, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result(strings.Repeat(string(rune('a'+i)), 300<<10))
		})
		require.NoError(t, err)
	}
	_, err := run.Conversation(t.Context())
	require.ErrorIs(t, err, publisher.ErrBlob)
	require.NoError(t, run.Compact(t.Context(), schema.ContextCompactedData{Summary: "so far", ThroughTurn: 9}))
	told, err := run.Conversation(t.Context())
	require.NoError(t, err)
	require.Len(t, told, 3)
	require.Equal(t, "so far", *told[0].Parts[0].Content)
	require.Len(t, told[2].Parts[0].Response, 300<<10+2)
}
