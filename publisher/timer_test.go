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

// sleeps is work that sleeps until a time far away.
func sleeps(ctx context.Context, run *publisher.Run) error {
	return run.Sleep(ctx, "night", time.Now().Add(time.Hour))
}

func TestSleep_ExecutorWithoutWaitDetached_ReleasesTheRunUntilThen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
		return run.Sleep(ctx, "nap", time.Now().Add(300*time.Millisecond))
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome, "%v", got.err)
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	state := w.fold("r1")
	require.Len(t, state.Waits, 1)
	require.Equal(t, schema.InputExpired, state.Waits[0].Input.Status)
	require.False(t, (&schema.OpenInterrupt{Reason: schema.WaitTimer}).NeedsPerson())
}

// A message wakes the executor, which finds that it is not time yet, and releases the run again, once.
func TestSleep_SignalBeforeItsTime_WaitsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), sleeps, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	asked := w.fold("r1").Head.Interrupts
	require.NoError(t, w.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hello"}))
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	head := w.fold("r1").Head
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.Equal(t, asked, head.Interrupts, "the same wait, with the same end")
	require.NoError(t, w.fleet(named("ann")).Input(t.Context(), "r1", publisher.Input{InterruptID: "night", EventID: asked[0].Position.ID, Status: schema.InputCancelled}))
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome, "a person ends the wait")
}

func TestSleep_Cancelled_EndsTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), sleeps, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	require.NoError(t, w.fleet(named("ann")).Cancel(t.Context(), "r1", "ann", "enough"))
	require.Equal(t, publisher.OutcomeCancelled, s.outcome(t, "r1").outcome)
}

func TestSleep_HoldToolUnderAnExecutor_ConfigurationError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s, _ := w.detachedLoop(t, publisher.NewTool("nap", "", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) {
		return "", publisher.InvocationOf(ctx).Run().Sleep(ctx, "", time.Now().Add(time.Hour))
	}))
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	state := w.fold("r1")
	require.Empty(t, state.Waits)
	require.Contains(t, state.Calls[0].Error.Message, "make it pure or idempotent")
}

func TestSleep_WithoutAnExecutor_WaitsInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	until := time.Now().Add(300 * time.Millisecond)
	require.NoError(t, run.Sleep(t.Context(), "nap", until))
	require.False(t, time.Now().Before(until))
	require.NoError(t, run.Sleep(t.Context(), "nap", time.Now().Add(time.Hour)), "this wait is over")
	for _, id := range []string{"", "retry.1", "approval.x"} {
		require.ErrorIs(t, run.Sleep(t.Context(), id, until), publisher.ErrConfig, id)
		_, err := run.AwaitSignalUntil(t.Context(), id, until)
		require.ErrorIs(t, err, publisher.ErrConfig, id)
	}
}

func TestSleep_Unrecorded_WaitsInThisProcess(t *testing.T) {
	t.Parallel()
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "a"}, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.NoError(t, run.Sleep(t.Context(), "nap", time.Now().Add(time.Millisecond)))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.ErrorContains(t, run.Sleep(ctx, "night", time.Now().Add(time.Hour)), "enough")
}

func TestAwaitSignalUntil_NoSignal_SaysSoInEachEpoch(t *testing.T) {
	t.Parallel()
	for _, detached := range []bool{false, true} {
		w := newWorld(t)
		w.daemon()
		var last error
		s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
			_, last = run.AwaitSignalUntil(ctx, "reply", time.Now().Add(300*time.Millisecond))
			if errors.Is(last, publisher.ErrInputExpired) {
				return nil
			}
			return last
		}, func(spec *publisher.ExecutorSpec) { spec.Capacity, spec.WaitDetached = 1, detached })
		begin(t, s, "r1")
		if detached {
			require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
		}
		require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome, "%v", last)
		require.ErrorIs(t, last, context.DeadlineExceeded)
		require.ErrorContains(t, last, "none was sent before")
		require.Len(t, w.fold("r1").Waits, 1)
	}
}

func TestAwaitSignalUntil_SignalInTime_ReturnsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
		signals, err := run.AwaitSignalUntil(ctx, "reply", time.Now().Add(time.Hour))
		if err != nil {
			return err
		}
		if err := run.ConsumeSignals(ctx, signals[0].ID); err != nil {
			return err
		}
		return run.End(ctx, publisher.RunEnd{Summary: signals[0].Name})
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity, spec.WaitDetached = 1, true })
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	require.NotEmpty(t, w.fold("r1").Head.Interrupts[0].ExpiresAt)
	require.NoError(t, w.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hello"}))
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, "hello", w.fold("r1").Ended.Summary)
}

// A time that no duration and no event can have is refused, and not rounded to one that is over.
func TestSleep_TimeFarAway_ConfigurationError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run, err := w.fleet().Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	for _, until := range []time.Time{time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(100_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC)} {
		require.ErrorIs(t, run.Sleep(t.Context(), "night", until), publisher.ErrConfig)
		_, err := run.AwaitSignalUntil(t.Context(), "night", until)
		require.ErrorIs(t, err, publisher.ErrConfig)
	}
	require.Empty(t, run.Head().Interrupts)
}
