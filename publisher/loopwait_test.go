package publisher_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// detachedLoop serves a loop of one tool whose model calls it once, and has room for one run.
func (w *world) detachedLoop(t *testing.T, tool publisher.Tool) (*served, *scripted) {
	t.Helper()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("c1", tool.Name, `{}`))}}
	return serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity, spec.WaitDetached = 1, true
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{tool}}}
	}), m
}

// asks is a tool that asks a person for a colour.
func asks(policy schema.Replay) publisher.Tool {
	return publisher.NewTool("ask", "", policy, func(ctx context.Context, _ struct{}) (string, error) {
		input, err := publisher.InvocationOf(ctx).Run().Ask(ctx, schema.RunWaitingData{InterruptID: "colour", Reason: schema.WaitHumanInput})
		if err != nil {
			return "", err
		}
		var colour string
		return colour, json.Unmarshal(input.Payload, &colour)
	})
}

// awaits is a tool that waits for a message.
func awaits(timeout time.Duration) publisher.Tool {
	tool := publisher.NewTool("wait", "", publisher.Pure, func(ctx context.Context, _ struct{}) (string, error) {
		_, err := publisher.InvocationOf(ctx).Run().AwaitSignal(ctx)
		return "A message has come.", err
	})
	tool.Timeout = timeout
	return tool
}

func TestLoop_ToolAsksDetached_RunIsReleasedAndGoesOnWithTheAnswer(t *testing.T) {
	t.Parallel()
	for _, policy := range []schema.Replay{publisher.Pure, publisher.Idempotent} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			s, m := w.detachedLoop(t, asks(policy))
			begin(t, s, "r1")
			got := s.outcome(t, "r1")
			require.Equal(t, publisher.OutcomeWaiting, got.outcome, "%v", got.err)
			require.ErrorIs(t, got.err, publisher.ErrWaiting)
			head := w.fold("r1").Head
			require.Len(t, head.OpenCalls, 1, "no outcome is recorded")
			require.Len(t, head.Interrupts, 1)
			require.NoError(t, w.fleet(named("ann")).Input(t.Context(), "r1", publisher.Input{InterruptID: "colour", EventID: head.Interrupts[0].Position.ID, Payload: raw(`"red"`)}))
			require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
			require.Contains(t, m.sent()[1], `tool c1 "red"`)
		})
	}
}

func TestLoop_HoldToolAsksDetached_ConfigurationError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s, _ := w.detachedLoop(t, asks(publisher.Hold))
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	state := w.fold("r1")
	require.Empty(t, state.Waits, "no person is asked a question whose answer nothing reads")
	require.Contains(t, state.Calls[0].Error.Message, "make it pure or idempotent")
}

func TestLoop_ToolAwaitsSignalDetached_NeedsNoCapacity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s, m := w.detachedLoop(t, awaits(0))
	for _, run := range []string{"r1", "r2"} { // there is room for one
		require.NoError(t, submitOnly(t.Context(), w.fleet(named("starter")), publisher.RunSpec{ID: run, Agent: "coder", Task: "wait"}))
		require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, run).outcome)
		head := w.fold(run).Head
		require.Equal(t, schema.StatusWaiting, head.Status)
		require.False(t, head.Interrupts[0].NeedsPerson())
		require.Zero(t, head.Stalled)
	}
	wait := w.fold("r1").Head.Interrupts[0]
	for _, status := range []string{schema.InputResolved, schema.InputCancelled} {
		err := w.fleet(named("ann")).Input(t.Context(), "r1", publisher.Input{InterruptID: wait.InterruptID, EventID: wait.Position.ID, Status: status, Payload: raw(`"hurry"`)})
		require.ErrorIs(t, err, publisher.ErrConflict, "an answer would not reach the tool")
		require.ErrorContains(t, err, "waits for a signal")
	}
	require.NoError(t, w.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hurry"}))
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	sent := m.sent()
	require.Contains(t, sent[len(sent)-1], `tool c1 "A message has come."`)
	require.Contains(t, sent[len(sent)-1], `user: Message "hurry" from ann.`)
	require.Empty(t, w.fold("r1").Head.Interrupts)
	require.Equal(t, schema.StatusWaiting, w.fold("r2").Head.Status)
}

// The deadline of the tool is the deadline of the wait, on whichever executor.
func TestLoop_ToolAwaitsSignalDetached_TimeoutEndsTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s, _ := w.detachedLoop(t, awaits(time.Second))
	begin(t, s, "r1")
	for got := s.outcome(t, "r1"); got.outcome != publisher.OutcomeCompleted; got = s.outcome(t, "r1") {
		require.Equal(t, publisher.OutcomeWaiting, got.outcome)
	}
	require.Equal(t, "timeout", w.fold("r1").Calls[0].Error.Type)
}
