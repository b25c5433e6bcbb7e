package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// untilTold returns nil as soon as its context ends, as much code does that was written for a server.
func untilTold(begun chan<- struct{}) publisher.Work {
	return func(ctx context.Context, _ *publisher.Run) error {
		begun <- struct{}{}
		<-ctx.Done()
		return nil
	}
}

func TestExecutor_NilAfterStop_NotDone(t *testing.T) {
	t.Parallel()
	t.Run("by the executor's shutdown", func(t *testing.T) {
		w := newWorld(t)
		begun := make(chan struct{}, 1)
		s := serveRuns(t, w.fleet(), untilTold(begun))
		begin(t, s, "r1")
		<-begun
		require.NoError(t, s.stop())
		require.Equal(t, publisher.OutcomeInterrupted, s.outcome(t, "r1").outcome)
		require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status, "others go on with it")
	})
	t.Run("by a request for the run's end", func(t *testing.T) {
		w := newWorld(t)
		begun := make(chan struct{}, 1)
		s := serveRuns(t, w.fleet(), untilTold(begun))
		begin(t, s, "r1")
		<-begun
		w.control("r1", 1, &schema.RunCancelRequestedData{By: "ann"})
		w.notify("exec-1", "r1")
		require.Equal(t, publisher.OutcomeCancelled, s.outcome(t, "r1").outcome)
		require.Equal(t, schema.StatusCancelled, w.fold("r1").Head.Status)
	})
}

func TestExecutor_WorkCallsGoexit_RunFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := serveRuns(t, w.fleet(), func(context.Context, *publisher.Run) error {
		runtime.Goexit()
		return nil
	})
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeFailed, got.outcome)
	require.ErrorContains(t, got.err, "Goexit")
}

func TestComplete_CallInDoubt_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	called(t, f, publisher.ToolCall{ID: "c1", Name: "charge"})
	w.orphan("r1", 1)
	// This work does not come to the call again: its model asked for something else this time.
	s := serveRuns(t, w.fleet(named("exec-2")), func(ctx context.Context, run *publisher.Run) error {
		if turn := run.OpenTurn(); turn != nil {
			return turn.End(ctx, publisher.TurnEnd{})
		}
		return nil
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome)
	require.ErrorIs(t, got.err, publisher.ErrHeld)
	head := w.fold("r1").Head
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.Equal(t, schema.WaitToolInDoubt, head.Interrupts[0].Reason, "a person is asked about it")
	w.control("r1", 2, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAbandoned, By: "ann"})
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
}

func TestComplete_ToolTimedOut_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	var charges atomic.Int32
	s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
		if run.OpenTurn() != nil || run.Head().Turn > 0 {
			return nil
		}
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		if err != nil {
			return err
		}
		short, cancel := context.WithCancel(ctx)
		_, err = turn.Tool(short, publisher.ToolCall{ID: "c1", Name: "charge"}, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
			charges.Add(1)
			cancel()
			return publisher.ToolResult{}, ctx.Err()
		})
		require.Error(t, err) // which this work takes lightly
		return turn.End(ctx, publisher.TurnEnd{})
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	for range 2 { // the first leaves it, to the second it is in doubt
		got := s.outcome(t, "r1")
		require.Equal(t, publisher.OutcomeWaiting, got.outcome)
		require.ErrorIs(t, got.err, publisher.ErrHeld)
	}
	require.Equal(t, schema.WaitToolInDoubt, w.fold("r1").Head.Interrupts[0].Reason, "a person is asked about it")
	require.Equal(t, int32(1), charges.Load())
	w.control("r1", 2, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAbandoned, By: "ann"})
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
}

func TestExecutor_HeldCall_WorkMayFailRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	called(t, f, publisher.ToolCall{ID: "c1", Name: "charge"})
	w.orphan("r1", 1)
	s := serveRuns(t, w.fleet(named("exec-2")), func(context.Context, *publisher.Run) error { return errors.New("no") },
		func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	require.Equal(t, publisher.OutcomeFailed, s.outcome(t, "r1").outcome)
}

func TestQuarantine_RollingRestarts_NotReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	begun := make(chan struct{}, 1)
	s := serveRuns(t, w.fleet(), untilTold(begun))
	begin(t, s, "r1") // whose only turn takes longer than the restarts
	for i := range 2 * schema.DefaultMaxClaims {
		select {
		case <-begun:
		case <-time.After(patience):
			require.FailNow(t, "no executor gets the run any more", "restart %d: %+v", i, w.fold("r1").Head)
		}
		require.NoError(t, s.stop())
		s = serveRuns(t, w.fleet(named(fmt.Sprintf("exec-%d", i+2))), untilTold(begun), func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	}
	<-begun
}

func TestStart_ReplyLost_DrivenByRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	s := serveRuns(t, f, func(context.Context, *publisher.Run) error { return nil })
	p.deafen(f)
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	p.heal(f)
	require.Equal(t, []string{"run.started"}, names(w.log("r1")))
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	_, err = s.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.ErrorIs(t, err, publisher.ErrRunExists, "and not once more")
}

func TestServe_FleetClosedBefore_RunsInHandAreLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	outcomes := make(chan ended, 1)
	e, err := f.NewExecutor(publisher.ExecutorSpec{
		Capacity:  -1,
		Agents:    map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": working(nil)},
		OnOutcome: func(run string, outcome publisher.Outcome, err error) { outcomes <- ended{run, outcome, err} },
	})
	require.NoError(t, err)
	_, err = e.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.NoError(t, f.Close(t.Context()))
	err = e.Serve(t.Context())
	require.ErrorIs(t, err, publisher.ErrStopped)
	require.ErrorContains(t, err, "outcome of run r1 not published")
	select {
	case got := <-outcomes:
		require.Equal(t, publisher.OutcomeLeft, got.outcome)
		require.Equal(t, "r1", got.run)
	default:
		require.Fail(t, "the outcome of r1 was not reported")
	}
}
