package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestAnswer_WaitingExecutor_Reached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	done := w.ask(t.Context(), run)
	ann := w.fleet(named("ann"))
	err := ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q1", EventID: questionOf(t, ann, "r1", "q1"), Payload: raw(`"perhaps"`)})
	require.ErrorIs(t, err, publisher.ErrInvalidAnswer)
	invalid, ok := errors.AsType[*publisher.InvalidAnswerError](err)
	require.True(t, ok)
	require.Len(t, invalid.Places, 1)
	require.NotEmpty(t, invalid.Places[0].Problem)
	require.ErrorIs(t, ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q2", EventID: "e"}), publisher.ErrUnknownInterrupt)
	require.ErrorIs(t, ann.Input(t.Context(), "r1", publisher.Input{}), publisher.ErrConfig)
	require.ErrorContains(t, ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q1"}), "EventID")
	require.NoError(t, ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q1", EventID: questionOf(t, ann, "r1", "q1"), Payload: raw("true")}))
	got := <-done
	require.NoError(t, got.err)
	require.Equal(t, "true", string(got.input.Payload))
	require.Equal(t, "ann", got.input.By)
	w.requireSameFold(run)
}

func TestInput_RunAsksAnotherThingNow_IsAConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	ask := func(message string) string {
		require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: message}))
		return run.Head().Interrupts[0].Position.ID
	}
	first, second := ask("Delete the old logs?"), ask("Delete production?")
	ann := w.fleet(named("ann"))
	err := ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q1", EventID: first, Payload: raw(`"yes"`)})
	require.ErrorIs(t, err, publisher.ErrConflict)
	require.ErrorContains(t, err, "Delete production?")
	require.NoError(t, ann.Input(t.Context(), "r1", publisher.Input{InterruptID: "q1", EventID: second, Payload: raw(`"no"`)}))
}

func TestCancel_IdleExecutor_RunEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	cause := make(chan error, 1)
	s := serveRuns(t, w.fleet(), func(ctx context.Context, _ *publisher.Run) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return context.Cause(ctx)
	})
	begin(t, s, "r1")
	require.NoError(t, w.fleet(named("ann")).Cancel(t.Context(), "r1", "", "wrong order"))
	require.ErrorIs(t, <-cause, publisher.ErrCancelRequested)
	require.Equal(t, publisher.OutcomeCancelled, s.outcome(t, "r1").outcome)
	require.ErrorIs(t, w.fleet().Cancel(t.Context(), "r1", "ann", ""), publisher.ErrRunEnded)
}

func TestShutdown_OpenRuns_ClaimedByNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	first := w.fleet()
	start(t, first, "r1")
	require.NoError(t, first.Close(t.Context()), "it leaves without a word about its run")
	s := serveRuns(t, w.fleet(named("exec-2")), func(context.Context, *publisher.Run) error { return nil },
		func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, []string{"run.started", "run.orphaned", "run.resumed", "run.ended"}, names(w.log("r1")))
}

// Executors share the credentials of their fleet: one can publish in the name of another, and cannot sign for it.
func TestExecutor_LeavingSaidByAnother_KeepsItsRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	victim, other := w.fleet(), w.fleet(named("exec-2"))
	start(t, victim, "r1")
	start(t, other, "r2")
	for _, forged := range []schema.Heartbeat{
		{Executor: "exec-1", Instance: victim.Instance(), Beat: 1 << 60, Leaving: true},
		{Executor: "exec-1", Instance: victim.Instance(), Beat: 1 << 60, Held: []schema.HeldRun{}},
	} {
		body, err := json.Marshal(&forged)
		require.NoError(t, err)
		require.NoError(t, w.nc.Publish(schema.HeartbeatSubject("default", "exec-1"), body))
	}
	require.NoError(t, w.nc.Flush())
	require.NoError(t, other.Close(t.Context()), "it leaves behind them")
	require.Eventually(t, func() bool { return len(w.log("r2")) == 2 }, patience, time.Millisecond)
	require.Equal(t, []string{"run.started", "run.orphaned"}, names(w.log("r2")))
	require.Equal(t, []string{"run.started"}, names(w.log("r1")))
}

func TestCancel_OrphanedRun_ClaimedAndEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, run.Wait(t.Context(), question))
	require.NoError(t, run.Interrupt(t.Context(), "waiting"))
	require.NoError(t, f.Cancel(t.Context(), "r1", "ann", ""))
	s := serveRuns(t, f, func(ctx context.Context, run *publisher.Run) error {
		require.ErrorIs(t, context.Cause(ctx), publisher.ErrCancelRequested, "from the beginning")
		require.NoError(t, run.Mark(context.WithoutCancel(ctx), "wound up"))
		return ctx.Err()
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	require.Equal(t, publisher.OutcomeCancelled, s.outcome(t, "r1").outcome)
	require.Equal(t, []string{"run.started", "run.waiting", "run.interrupted", "run.cancel_requested", "run.resumed", "checkpoint.marked", "run.ended"},
		names(w.log("r1")))
}

func TestQuarantine_NoProgress_NotClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 1
		spec.Agents = map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, errors.New("no model") },
		}
	})
	begin(t, s, "r1")
	for range 4 { // once as it was started, and three claims
		require.Equal(t, publisher.OutcomeInterrupted, s.outcome(t, "r1").outcome)
	}
	head := w.fold("r1").Head
	require.True(t, head.Quarantined(0))
	_, err := w.fleet().Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrNothing)
	_, err = w.fleet().Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "claim"})
	require.ErrorIs(t, err, publisher.ErrQuarantined)
	_, err = w.fleet().Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err, "a request by name gets it")
}
