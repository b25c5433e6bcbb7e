package publisher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// question is what the tests ask.
var question = schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: "Really?", ResponseSchema: raw(`{"type":"boolean"}`)}

// asked is what came of a question.
type asked struct {
	input schema.RunInputData
	err   error
}

// ask asks in the background, and returns once the question is in the log.
func (w *world) ask(ctx context.Context, run *publisher.Run) <-chan asked {
	w.tb.Helper()
	done := make(chan asked, 1)
	go func() {
		input, err := run.Ask(ctx, question)
		done <- asked{input, err}
	}()
	require.Eventually(w.tb, func() bool { return w.fold(run.ID()).Head.Status == schema.StatusWaiting }, patience, 1e6)
	return done
}

func TestAsk_Notice_ReturnsAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	done := w.ask(t.Context(), run)
	w.control("r1", 1, &schema.RunInputData{InterruptID: "q1", Payload: raw("true"), By: "ann"})
	w.notify("exec-1", "r1")
	got := <-done
	require.NoError(t, got.err)
	require.Equal(t, "true", string(got.input.Payload))
	again, err := run.Ask(t.Context(), question)
	require.NoError(t, err, "work that is run again is given the recorded answer")
	require.Equal(t, got.input, again)
	require.Equal(t, []string{"run.started", "run.waiting", "run.input"}, names(w.log("r1")))
	require.Equal(t, schema.StatusRunning, w.requireSameFold(run).Head.Status)
}

func TestWait_NoticeLost_AnswerLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	publisher.SetWaitPoll(f, 1e7)
	run := start(t, f, "r1")
	done := w.ask(t.Context(), run)
	w.control("r1", 1, &schema.RunInputData{InterruptID: "q1", Payload: raw("true"), By: "ann"})
	require.NoError(t, (<-done).err)
}

func TestAsk_Takeover_AskedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	first := w.fleet()
	w.ask(t.Context(), start(t, first, "r1"))
	second := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	run := resume(t, second, "r1")
	done := w.ask(t.Context(), run)
	w.control("r1", 2, &schema.RunInputData{InterruptID: "q1", Payload: raw("false"), By: "ann"})
	w.notify("exec-2", "r1")
	require.Equal(t, "false", string((<-done).input.Payload))
	require.Equal(t, []string{"run.started", "run.waiting", "run.resumed", "run.input"}, names(w.log("r1")))

	third := resume(t, second, "r1")
	input, err := third.AwaitInput(t.Context(), "q1")
	require.NoError(t, err)
	require.Equal(t, "false", string(input.Payload))
	_, err = third.AwaitInput(t.Context(), "never asked")
	require.ErrorIs(t, err, publisher.ErrUnknownInterrupt)
}

func TestWait_RunEnds_Returns(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		control schema.Data
		epoch   schema.Epoch
		want    error
	}{
		"called off":       {control: &schema.RunInputData{InterruptID: "q1", Status: "cancelled", By: "ann"}, want: publisher.ErrInputCancelled},
		"expired":          {control: &schema.RunInputData{InterruptID: "q1", Status: "expired"}, want: publisher.ErrInputExpired},
		"the run's cancel": {control: &schema.RunCancelRequestedData{By: "ann"}, want: publisher.ErrCancelRequested},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			done := w.ask(t.Context(), run)
			w.control("r1", 1, test.control)
			w.notify("exec-1", "r1")
			require.ErrorIs(t, (<-done).err, test.want)
			require.NoError(t, run.Err(), "the handle goes on")
		})
	}
	t.Run("a takeover", func(t *testing.T) {
		w := newWorld(t)
		w.serve()
		run := start(t, w.fleet(), "r1")
		done := w.ask(t.Context(), run)
		resume(t, w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }), "r1")
		w.notify("exec-1", "r1")
		require.ErrorIs(t, (<-done).err, publisher.ErrFenced)
	})
	t.Run("the caller's end", func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := w.ask(ctx, start(t, w.fleet(), "r1"))
		enough := errors.New("enough")
		cancel(enough)
		require.ErrorIs(t, (<-done).err, enough)
	})
	t.Run("the fleet's end", func(t *testing.T) {
		w := newWorld(t)
		f := w.fleet()
		done := w.ask(t.Context(), start(t, f, "r1"))
		require.NoError(t, f.Close(t.Context()))
		require.ErrorIs(t, (<-done).err, publisher.ErrStopped)
	})
}

func TestAsk_NoID_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	_, err := start(t, f, "r1").Ask(t.Context(), schema.RunWaitingData{Reason: schema.WaitAuth})
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.Len(t, w.log("r1"), 1, "nothing is asked")
}

func TestWait_HeldCall_UntilSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "charge"}
	crashed(t, w, f, call)
	run := resume(t, f, "r1")
	charge := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("charged")
	}
	_, err := run.Turn(1).Tool(t.Context(), call, charge)
	held, ok := errors.AsType[*publisher.HeldError](err)
	require.True(t, ok, "%v", err)
	done := make(chan error, 2)
	for range 2 {
		go func() { done <- run.AwaitSettled(t.Context(), held.Key) }()
		require.Eventually(t, func() bool { return w.fold("r1").Head.Status == schema.StatusWaiting }, patience, 1e6)
	}
	w.control("r1", 2, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "ann"})
	w.notify("exec-1", "r1")
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	result, err := run.Turn(1).Tool(t.Context(), call, charge)
	require.NoError(t, err)
	require.Equal(t, `"charged"`, string(result.Result))
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key), "there is nothing to wait for")
	s := w.requireSameFold(run)
	require.Len(t, s.Waits, 1, "the wait is published once")
	require.Equal(t, schema.StatusRunning, s.Head.Status)
}

func TestWait_SettledMeanwhile_Returns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	crashed(t, w, f, publisher.ToolCall{ID: "c1", Name: "charge"})
	run := resume(t, f, "r1")
	w.control("r1", 2, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAbandoned, By: "ann"})
	err := run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "w", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"})
	require.ErrorIs(t, err, publisher.ErrRejected, "the settlement was found when it was published")
	require.NoError(t, run.AwaitSettled(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}))
	require.Empty(t, w.requireSameFold(run).Waits)
}

func TestAsk_UnusableResponseSchema_IsRefusedAndNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	q := question
	q.ResponseSchema = raw(`{"$ref":"https://example.org/answer.json"}`)
	_, err := run.Ask(t.Context(), q)
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.ErrorContains(t, err, "no schema below $defs")
	require.Equal(t, []string{"run.started"}, names(w.log("r1")))
}
