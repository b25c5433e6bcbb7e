package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// working is what makes the same work for every run.
func working(work publisher.Work) func(context.Context, *publisher.Run) (publisher.Work, error) {
	return func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil }
}

// ended is what an executor said of a run.
type ended struct {
	run     string
	outcome publisher.Outcome
	err     error
}

// served is an executor in the test, under way.
type served struct {
	*publisher.Executor
	outcomes chan ended
	// stop ends Serve and returns what it returned.
	stop func() error
}

// serveRuns makes an executor of f whose only agent is coder, and serves.
func serveRuns(tb testing.TB, f *publisher.Fleet, work publisher.Work, changes ...func(*publisher.ExecutorSpec)) *served {
	tb.Helper()
	s := &served{outcomes: make(chan ended, 100)}
	spec := publisher.ExecutorSpec{
		Capacity: -1,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			s.outcomes <- ended{run, outcome, err}
		},
	}
	if work != nil {
		spec.Agents = map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": working(work)}
	}
	for _, change := range changes {
		change(&spec)
	}
	e, err := f.NewExecutor(spec)
	require.NoError(tb, err)
	s.Executor = e
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	tb.Cleanup(func() { _ = s.stop() })
	return s
}

func (s *served) outcome(tb testing.TB, run string) ended {
	tb.Helper()
	select {
	case got := <-s.outcomes:
		require.Equal(tb, run, got.run)
		return got
	case <-time.After(patience):
		require.FailNow(tb, "the executor is not done with run "+run)
		return ended{}
	}
}

func begin(tb testing.TB, s *served, id string) *publisher.Run {
	tb.Helper()
	run, err := s.Start(tb.Context(), publisher.RunSpec{ID: id})
	require.NoError(tb, err)
	return run
}

// ownFailure says itself what is recorded of it.
type ownFailure struct{ error }

func (ownFailure) ToolFailure() schema.Error {
	return schema.Error{Type: "no_budget", Message: "spent"}
}

func TestExecutor_WorkResult_DecidesRun(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		work    publisher.Work
		outcome publisher.Outcome
		events  []string
		status  schema.Status
		failure *schema.Error
		control schema.Data
	}{
		"nil completes it": {
			work:    func(context.Context, *publisher.Run) error { return nil },
			outcome: publisher.OutcomeCompleted, events: []string{"run.started", "run.ended"}, status: schema.StatusCompleted,
		},
		"an end of its own stands": {
			work: func(ctx context.Context, run *publisher.Run) error {
				return errors.Join(run.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled}), errors.New("and yet"))
			},
			outcome: publisher.OutcomeCancelled, events: []string{"run.started", "run.ended"}, status: schema.StatusCancelled,
		},
		"an interruption of its own stands": {
			work:    func(ctx context.Context, run *publisher.Run) error { return run.Interrupt(ctx, "budget") },
			outcome: publisher.OutcomeInterrupted, events: []string{"run.started", "run.interrupted"}, status: schema.StatusInterrupted,
		},
		"an error fails it": {
			work:    func(context.Context, *publisher.Run) error { return errors.New("the roof leaks") },
			outcome: publisher.OutcomeFailed, events: []string{"run.started", "run.ended"}, status: schema.StatusFailed,
			failure: &schema.Error{Type: "error", Message: "the roof leaks"},
		},
		"an error may say what is recorded": {
			work: func(context.Context, *publisher.Run) error {
				return fmt.Errorf("work: %w", ownFailure{errors.New("x")})
			},
			outcome: publisher.OutcomeFailed, events: []string{"run.started", "run.ended"}, status: schema.StatusFailed,
			failure: &schema.Error{Type: "no_budget", Message: "spent"},
		},
		"a panic fails it": {
			work:    func(context.Context, *publisher.Run) error { panic("out of cheese") },
			outcome: publisher.OutcomeFailed, events: []string{"run.started", "run.ended"}, status: schema.StatusFailed,
			failure: &schema.Error{Type: "panic", Message: "panic: out of cheese"},
		},
		"that a run waits lets it go": {
			work: func(ctx context.Context, run *publisher.Run) error {
				return errors.Join(run.Wait(ctx, question), publisher.ErrWaiting)
			},
			outcome: publisher.OutcomeWaiting, events: []string{"run.started", "run.waiting", "run.interrupted"}, status: schema.StatusWaiting,
		},
		"what it could not record is for others to try": {
			work:    func(context.Context, *publisher.Run) error { return fmt.Errorf("turn 1: %w", publisher.ErrUnavailable) },
			outcome: publisher.OutcomeInterrupted, events: []string{"run.started", "run.interrupted"}, status: schema.StatusInterrupted,
		},
		"a refused permission is recorded, and others try": {
			work:    func(context.Context, *publisher.Run) error { return fmt.Errorf("blob: %w", publisher.ErrNotPermitted) },
			outcome: publisher.OutcomeInterrupted, events: []string{"run.started", "error.raised", "run.interrupted"}, status: schema.StatusInterrupted,
		},
		"a request for its end cancels it": {
			work: func(ctx context.Context, _ *publisher.Run) error {
				<-ctx.Done()
				return errors.New("stopped in the middle")
			},
			control: &schema.RunCancelRequestedData{By: "ann"},
			outcome: publisher.OutcomeCancelled, events: []string{"run.started", "run.cancel_requested", "run.ended"}, status: schema.StatusCancelled,
		},
		"a fenced handle publishes nothing": {
			work: func(ctx context.Context, _ *publisher.Run) error {
				<-ctx.Done()
				return nil
			},
			control: &schema.RunResumedData{Executor: "exec-2", Reason: "request", RequestID: "q"},
			outcome: publisher.OutcomeDropped, events: []string{"run.started", "run.resumed"}, status: schema.StatusRunning,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := serveRuns(t, w.fleet(), test.work)
			run := begin(t, s, "r1")
			if resumed, ok := test.control.(*schema.RunResumedData); ok {
				head := w.fold("r1").Head
				resumed.From = schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest}
				w.control("r1", 2, resumed)
			} else if test.control != nil {
				w.control("r1", 1, test.control)
			}
			if test.control != nil {
				w.notify("exec-1", "r1")
			}
			got := s.outcome(t, "r1")
			require.Equal(t, test.outcome, got.outcome, "%v", got.err)
			require.Equal(t, test.events, names(w.log("r1")))
			folded := w.fold("r1")
			require.Equal(t, test.status, folded.Head.Status)
			if test.failure != nil {
				require.Equal(t, test.failure, folded.Ended.Error)
			}
			if test.status == schema.StatusInterrupted || test.status == schema.StatusWaiting {
				if name != "an interruption of its own stands" {
					require.Error(t, run.Mark(t.Context(), "x"), "nothing follows what the executor said last")
				}
			}
			require.NoError(t, s.stop())
		})
	}
}

func TestExecutor_Shutdown_RunsClaimableAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	begun, cause := make(chan struct{}), make(chan error, 3)
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		begun <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	for _, id := range []string{"r1", "r2", "r3"} {
		begin(t, s, id)
		<-begun
	}
	require.NoError(t, s.stop())
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r4"})
	require.ErrorIs(t, err, publisher.ErrStopped)
	second := w.fleet(named("exec-2"))
	for range 3 {
		require.ErrorIs(t, <-cause, publisher.ErrShutdown)
		require.Equal(t, publisher.OutcomeInterrupted, (<-s.outcomes).outcome)
		claimed(t, second, publisher.ClaimSpec{})
	}
	require.Equal(t, "shutdown", interruption(t, w, "r1"))
}

func interruption(t *testing.T, w *world, run string) string {
	t.Helper()
	for _, rec := range w.log(run) {
		e, err := schema.Decode(rec.Header, rec.Body)
		require.NoError(t, err)
		data, err := schema.ParseData(e)
		require.NoError(t, err)
		if d, ok := data.(*schema.RunInterruptedData); ok {
			return d.Reason
		}
	}
	return ""
}

func TestExecutor_WorkIgnoresStop_AbandonedAndFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	begun, released := make(chan struct{}), make(chan struct{})
	after := make(chan error, 1)
	s := serveRuns(t, f, func(_ context.Context, run *publisher.Run) error {
		close(begun)
		<-released
		after <- run.Mark(context.Background(), "too late")
		return nil
	}, func(spec *publisher.ExecutorSpec) { spec.Grace = 50 * time.Millisecond })
	begin(t, s, "r1")
	<-begun
	require.NoError(t, s.stop())
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeInterrupted, got.outcome)
	require.ErrorIs(t, got.err, publisher.ErrShutdown)
	close(released)
	require.ErrorIs(t, <-after, publisher.ErrShutdown)
	require.Equal(t, []string{"run.started", "run.interrupted"}, names(w.log("r1")))
	require.Empty(t, s.outcomes, "its return means nothing any more")
}

func TestExecutor_ToolOutlivesShutdown_ResultRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	released, handed := make(chan struct{}), make(chan error, 1)
	s := serveRuns(t, f, func(_ context.Context, run *publisher.Run) error {
		turn, err := run.StartTurn(context.Background(), publisher.TurnSpec{})
		if err != nil {
			return err
		}
		_, err = turn.Tool(context.Background(), publisher.ToolCall{ID: "c1", Name: "charge"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			<-released
			return publisher.Result("charged")
		})
		handed <- err
		return err
	}, func(spec *publisher.ExecutorSpec) { spec.Grace = 50 * time.Millisecond })
	begin(t, s, "r1")
	require.Eventually(t, func() bool { return len(w.fold("r1").Calls) == 1 }, patience, time.Millisecond)
	require.NoError(t, s.stop())
	run, err := w.fleet(named("exec-2")).Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "claim"})
	require.NoError(t, err)
	close(released)
	require.ErrorIs(t, <-handed, publisher.ErrShutdown)
	require.NoError(t, run.Sync(t.Context()))
	result, err := run.Turn(1).Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "charge"}, nil)
	require.NoError(t, err)
	require.Equal(t, `"charged"`, string(result.Result), "adopted")
}

func TestExecutor_WaitingRun_ReleasedAndReclaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	asked, err := w.nc.SubscribeSync(schema.ServiceSubject(schema.VerbClaim, "default", ""))
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	var starts atomic.Int32
	s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
		starts.Add(1)
		input, err := run.Ask(ctx, question)
		if err != nil {
			return err
		}
		return run.End(ctx, publisher.RunEnd{Output: []byte(input.Payload)})
	}, func(spec *publisher.ExecutorSpec) { spec.WaitDetached, spec.Capacity = true, 2 })
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome)
	require.ErrorIs(t, got.err, publisher.ErrWaiting)
	require.Equal(t, "waiting", interruption(t, w, "r1"))
	for range 2 {
		_, err := asked.NextMsg(patience)
		require.NoError(t, err)
	}
	require.Equal(t, int32(1), starts.Load(), "no executor drives it before it is answered")
	w.control("r1", 1, &schema.RunInputData{InterruptID: "q1", Payload: raw("true"), By: "ann"})
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	folded := w.fold("r1")
	require.Equal(t, "true", string(folded.Ended.Output))
	require.Equal(t, []string{"run.started", "run.waiting", "run.interrupted", "run.input", "run.resumed", "run.ended"}, names(w.log("r1")))
}

func TestExecutor_HeldCall_WaitsForSettlement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "charge"}
	called(t, f, call)
	w.orphan("r1", 1)
	work := func(ctx context.Context, run *publisher.Run) error {
		result, err := run.Turn(1).Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result("charged twice")
		})
		if err != nil {
			return fmt.Errorf("work: %w", err)
		}
		return run.End(ctx, publisher.RunEnd{Output: result.Result})
	}
	s := serveRuns(t, w.fleet(named("exec-2")), work, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome)
	require.ErrorIs(t, got.err, publisher.ErrHeld)
	head := w.fold("r1").Head
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.Equal(t, schema.WaitToolInDoubt, head.Interrupts[0].Reason)

	// An executor drives it anyway: the wait is not published again.
	third := serveRuns(t, w.fleet(named("exec-3")), work)
	resumed := resume(t, f, "r1")
	require.NoError(t, resumed.Err())
	require.ErrorIs(t, third.Adopt(resumed), publisher.ErrConfig, "use a run of this executor's fleet handle")
	again := serveRuns(t, f, work)
	require.NoError(t, again.Adopt(resumed))
	require.Equal(t, publisher.OutcomeWaiting, again.outcome(t, "r1").outcome)
	require.Len(t, w.fold("r1").Waits, 1)

	w.control("r1", 3, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledDecided, Result: raw(`"charged"`), By: "ann"})
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, `"charged"`, string(w.fold("r1").Ended.Output))
}

func TestExecutor_MaxRuns_NotExceeded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	var runs []string
	for i := range 20 {
		runs = append(runs, fmt.Sprintf("r%d", i))
		start(t, f, runs[i])
		w.orphan(runs[i], 1)
	}
	next := w.heartbeats()
	var inHand, most atomic.Int32
	release := make(chan struct{})
	second := w.fleet(named("exec-2"), func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	s := serveRuns(t, second, func(context.Context, *publisher.Run) error {
		n := inHand.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		inHand.Add(-1)
		return nil
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 3 })
	require.Eventually(t, func() bool {
		h := next()
		return h.Executor == "exec-2" && len(h.Held) == 3 && inHand.Load() == 3 // a run is held before its work begins
	}, patience, time.Millisecond, "it takes no more than its capacity")
	close(release)
	for range runs {
		require.Equal(t, publisher.OutcomeCompleted, (<-s.outcomes).outcome)
	}
	require.Equal(t, int32(3), most.Load())
	for _, run := range runs {
		require.Equal(t, schema.StatusCompleted, w.fold(run).Head.Status)
	}
}

func TestExecutor_ManyRunsOfATenant_OthersTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	submit := func(tenant string, runs int) {
		for i := range runs {
			_, err := f.Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("%s-%02d", tenant, i), Labels: map[string]string{schema.TenantLabel: tenant}})
			require.NoError(t, err)
		}
	}
	submit("big", 60)
	submit("small", 4)
	_, err := f.Head(t.Context(), "small-03") // the daemon has folded them all
	require.NoError(t, err)
	var mu sync.Mutex
	var begun []string
	s := serveRuns(t, w.fleet(named("exec-2")), func(_ context.Context, run *publisher.Run) error {
		mu.Lock()
		defer mu.Unlock()
		begun = append(begun, run.ID()[:3])
		return nil
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 2 })
	for range 64 {
		require.Equal(t, publisher.OutcomeCompleted, (<-s.outcomes).outcome)
	}
	slices.Reverse(begun)
	require.Greater(t, slices.Index(begun, "sma"), 10, "the runs that were submitted last do not wait for the others: %s", begun)
}

func TestExecutor_AdoptedRun_KeepsHandleAndEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	second := serveRuns(t, f, func(ctx context.Context, run *publisher.Run) error { return run.Mark(ctx, "second") })
	first := serveRuns(t, f, func(ctx context.Context, run *publisher.Run) error {
		return errors.Join(run.Mark(ctx, "first"), second.Adopt(run))
	})
	run := begin(t, first, "r1")
	require.Equal(t, publisher.OutcomeHandedOver, first.outcome(t, "r1").outcome)
	require.Equal(t, publisher.OutcomeCompleted, second.outcome(t, "r1").outcome)
	require.Equal(t, schema.Epoch(1), run.Epoch())
	require.Equal(t, []string{"run.started", "checkpoint.marked", "checkpoint.marked", "run.ended"}, names(w.log("r1")))
	require.ErrorIs(t, second.Adopt(run), publisher.ErrRunEnded)
	w.requireSameFold(run)
}

func TestExecutor_UnknownAgent_LeftToOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	factories := map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"fails":   func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, errors.New("no model") },
		"panics":  func(context.Context, *publisher.Run) (publisher.Work, error) { panic("no model") },
		"nothing": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, nil },
	}
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) { spec.Agents = factories })
	for agent := range factories {
		_, err := s.Start(t.Context(), publisher.RunSpec{ID: agent, Agent: agent})
		require.NoError(t, err)
		got := s.outcome(t, agent)
		require.Equal(t, publisher.OutcomeInterrupted, got.outcome, agent)
		require.Error(t, got.err)
		state := w.fold(agent)
		require.Equal(t, schema.StatusInterrupted, state.Head.Status)
		require.Len(t, state.Errors, 1, "why is in the log, once")
		require.Contains(t, got.err.Error(), state.Errors[0].Error.Message)
	}
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "unknown"})
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.Empty(t, w.log("r1"))
}

func TestExecutor_GraceOver_UnrecordedLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	begun := make(chan struct{})
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}, func(spec *publisher.ExecutorSpec) { spec.Grace = 300 * time.Millisecond })
	begin(t, s, "r1")
	<-begun
	p.deafen(f)
	w.limit(1) // nothing is stored either
	require.ErrorContains(t, s.stop(), "r1")
	require.Equal(t, publisher.OutcomeLeft, s.outcome(t, "r1").outcome)
}

func TestExecutor_ServerAwayAtEnd_EndRecordedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) {
		c.Conn, c.URL, c.Options, c.TryTimeout = nil, p.url(), w.server.Options(), 100*time.Millisecond
	})
	s := serveRuns(t, f, func(context.Context, *publisher.Run) error {
		p.deafen(f)
		return nil
	})
	begin(t, s, "r1")
	require.Eventually(t, func() bool { return p.dropped() > 4 }, patience, time.Millisecond, "it goes on trying")
	p.dropAcks(0)
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, []string{"run.started", "run.ended"}, names(w.log("r1")))
}

func TestExecutor_RunsAddedBeforeServe_Driven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	outcomes := make(chan publisher.Outcome, 1)
	e, err := f.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": working(func(context.Context, *publisher.Run) error { return nil }),
		},
		Capacity: -1, OnOutcome: func(_ string, o publisher.Outcome, _ error) { outcomes <- o },
	})
	require.NoError(t, err)
	_, err = e.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	require.Equal(t, publisher.OutcomeCompleted, <-outcomes)
	require.ErrorIs(t, e.Serve(ctx), publisher.ErrConfig, "once")
	cancel()
	require.NoError(t, <-done)
}

func TestExecutorSpec_Invalid_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	agents := map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": working(nil)}
	for name, spec := range map[string]publisher.ExecutorSpec{
		"no agent":         {},
		"a wrong name":     {Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"a.b": agents["coder"]}},
		"no function":      {Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": nil}},
		"a negative grace": {Agents: agents, Grace: -1},
	} {
		_, err := f.NewExecutor(spec)
		require.ErrorIs(t, err, publisher.ErrConfig, name)
	}
}

func TestExecutor_FleetClosed_Ends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	begin(t, s, "r1")
	require.NoError(t, f.Close(t.Context()))
	require.Equal(t, publisher.OutcomeLeft, s.outcome(t, "r1").outcome)
	require.ErrorIs(t, s.stop(), publisher.ErrStopped)
}
