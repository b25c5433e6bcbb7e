package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// The turn of a reminder is started again after a takeover, and superseded with its messages.
func TestLoop_KilledBeforeTheAnswerToAReminder_TheModelIsRemindedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{2: calls(call("a", "submit", `{"result":"x"}`))}}
	ctx, die := context.WithCancel(t.Context())
	killed := func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 2 {
			die()
			return publisher.Answer{}, context.Canceled
		}
		return m.model(ctx, request)
	}
	loop := publisher.Loop{Model: killed, Tools: []publisher.Tool{submit()}, Complete: "submit"}
	require.Error(t, loop.Work(ctx, start(t, w.fleet(), "r1")))
	loop.Model = m.model
	require.NoError(t, loop.Work(t.Context(), resume(t, w.fleet(), "r1")))
	said := m.sent()[1]
	require.Contains(t, said[len(said)-1], "user: You answered without calling a tool.")
}

// A tool without a policy is held, whatever an earlier version of the agent recorded of the call.
func TestLoop_ToolLostItsPolicy_ItsCallsAreHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	ctx, die := context.WithCancel(t.Context())
	first := look(func(context.Context, int) (string, error) {
		die()
		return "", context.Canceled
	})
	require.Error(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{first}}.Work(ctx, start(t, w.fleet(), "r1")))
	ran := 0
	second := publisher.Tool{Name: "look", Timeout: time.Hour, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		ran++
		return publisher.Result("seen")
	}}
	err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{second}}.Work(t.Context(), resume(t, w.fleet(), "r1"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.Zero(t, ran)
}

func TestNewTool_SchemaIsReplaced_TheNewOneIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tool := look(nil)
	tool.Parameters = raw(`{"type":"object","properties":{"at":{"type":"integer","maximum":9}}}`)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("", "look", `{"at":10}`), call("", "look", `{"at":9,"more":true}`))}}
	m.answers[1] = publisher.Answer{
		Message: assistant(schema.CallPart("", "look"), schema.CallPart("", "look")), Calls: m.answers[1].Calls,
	}
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{tool}}.Work(t.Context(), start(t, w.fleet(), "r1")))
	said := m.sent()[1]
	require.Equal(t, `assistant calls call-1-1 look{"at":10}`, said[len(said)-4], "each part names its own call")
	require.Contains(t, said[len(said)-2], "do not match the schema")
	require.Equal(t, `tool call-1-2 "line 9"`, said[len(said)-1])
}

func TestRetryable_ErrorThatNamesItsType_KeepsIt(t *testing.T) {
	t.Parallel()
	failure, ok := errors.AsType[publisher.Failure](publisher.Retryable(ownFailure{errors.New("busy")}))
	require.True(t, ok)
	want := ownFailure{errors.New("busy")}.ToolFailure()
	require.Equal(t, want.Type, failure.ToolFailure().Type)
	require.True(t, failure.ToolFailure().Retryable)
}
