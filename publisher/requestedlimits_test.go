package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestRequested_ManyMediumCalls_Fit(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: answers of a thousand calls")
	}
	for _, size := range []int{950, 1100} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			var calls []publisher.ToolCall
			for i := range 1000 {
				calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "read", Replay: schema.ReplayPure, Arguments: raw(`{"x":"` + strings.Repeat("y", size) + `"}`)})
			}
			_, err := openTurn(t, run).Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: calls})
			require.NoError(t, err, "fields go to blobs until the event fits")
		})
	}
}

// With Policy: each crash point of a requested hold call behind an approval.
func TestRequested_PolicyCrashPoints_RunOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	var asked atomic.Int64
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			asked.Add(1)
			return publisher.Decision{Decision: schema.DecisionAllow}, nil
		}
	})
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	// No answer: Tool records it as requested first.
	ctx, die := context.WithCancelCause(t.Context())
	var n atomic.Int64
	_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		die(errors.New("gone"))
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	two := resume(t, f, "r1")
	_, err = two.OpenTurn().Tool(t.Context(), call, counted(&n, 1))
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.Equal(t, int64(1), n.Load())
	require.Equal(t, int64(1), asked.Load())
	w.requireSameFold(two)
}

// The turn of an earlier executor has a call that was requested because of its policy, and not begun; the next starts the turn again and answers it.
func TestRequested_RestartedTurn_EndsWithAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{}, errors.New("the policy's server is away")
		}
	})
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	var n atomic.Int64
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "a", Name: "mail"}, counted(&n, 1))
	require.Error(t, err)
	g := w.fleet()
	two := resume(t, g, "r1")
	again, err := two.StartTurn(t.Context(), publisher.TurnSpec{Number: 1, Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	pure := publisher.ToolCall{ID: "b", Name: "read", Replay: schema.ReplayPure}
	answers(t, again, pure)
	_, err = again.Tool(t.Context(), pure, counted(&n, 1))
	require.NoError(t, err)
	require.Nil(t, two.OpenTurn(), "the turn is over with the last outcome of the answer's calls; what the superseded try asked for is no call of it")
}

// Redaction reaches the arguments of an answer, and Tool still compares them.
func TestRequested_RedactedAnswer_Runs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.Redaction = &publisher.Redaction{Fields: []string{"password"}} })
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "login", Arguments: raw(`{"password":"geheim"}`)}
	answers(t, turn, call)
	for _, rec := range w.log("r1") {
		require.NotContains(t, string(rec.Body), "geheim")
	}
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), call, counted(&n, 1))
	require.NoError(t, err)
}

func TestRequested_LargeSources_Fit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	source := raw(`{"signature":"` + strings.Repeat("y", 280<<10) + `"}`)
	_, err := turn.Call(t.Context(), publisher.ToolCall{ID: "z", Name: "read", Replay: schema.ReplayPure, Source: source})
	require.NoError(t, err, "a call of its own takes it")
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{
		{ID: "a", Name: "read", Replay: schema.ReplayPure, Source: source}, {ID: "b", Name: "read", Replay: schema.ReplayPure, Source: source},
	}})
	require.NoError(t, err, "fields go to blobs until the event fits")
}

func TestRequested_RestartedTurnReusesID_NewCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{}, errors.New("the policy's server is away")
		}
	})
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	var n atomic.Int64
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "call_0", Name: "mail", Arguments: raw(`{"to":"a"}`)}, counted(&n, 1))
	require.Error(t, err)
	two := resume(t, w.fleet(), "r1")
	again, err := two.StartTurn(t.Context(), publisher.TurnSpec{Number: 1, Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "call_0", Name: "mail", Arguments: raw(`{"to":"b"}`)}
	answers(t, again, call)
	_, err = again.Tool(t.Context(), call, counted(&n, 1))
	require.NoError(t, err, "the answer's only call of that id")
}

func TestRequested_StricterExecutor_Asks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail", Replay: schema.ReplayIdempotent}
	answers(t, turn, call)
	var n atomic.Int64
	ctx, die := context.WithCancelCause(t.Context())
	_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		die(errors.New("gone"))
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	w.serve()
	two := resume(t, f, "r1")
	call.Replay = schema.ReplayHold
	_, err = two.OpenTurn().Call(t.Context(), call)
	require.Error(t, err, "an older executor may have run it (it did), and this one's policy is hold: Call says that the tool may run")
}

// A person denied, by the question; Turn.Call begins all the same.
func TestRequested_CallWithOpenApproval_Waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	answers(t, turn, call)
	require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: schema.DecisionAsk}, turn.Number()))
	asksAbout(t, w, turn)
	_, err := turn.Call(t.Context(), call)
	require.Error(t, err, "WM-E-068")
}
