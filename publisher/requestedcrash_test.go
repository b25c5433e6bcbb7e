package publisher_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A person denies the call; the executor dies before it acts on that.
func TestRequested_Takeover_PersonDeniedRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	answers(t, turn, call)
	require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: schema.DecisionAsk}, turn.Number()))
	asksAbout(t, w, turn)
	w.serve()
	err := f.Input(t.Context(), "r1", publisher.Input{InterruptID: "i", EventID: questionOf(t, f, "r1", "i"), Payload: raw(`{"decision":"deny"}`), By: "ann"})
	require.NoError(t, err)
	two, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "restart"})
	require.NoError(t, err)
	var n atomic.Int64
	_, err = two.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	t.Log(err)
	require.Zero(t, n.Load(), "a person denied it")
}

// asksAbout asks the question about call a and leaves the answer to another executor.
func asksAbout(t *testing.T, w *world, turn *publisher.Turn) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = turn.Run().Ask(ctx, schema.RunWaitingData{InterruptID: "i", Reason: schema.WaitToolApproval, ToolCallID: "a", Occurrence: 1, Message: "may it?"})
	}()
	require.Eventually(t, func() bool { return len(w.fold("r1").Head.Interrupts) == 1 }, 5*time.Second, time.Millisecond)
	cancel()
	<-done
}

// Begin goes past a recorded decision.
func TestRequested_BeginDeniedCall_Refused(t *testing.T) {
	for _, how := range []string{schema.DecisionDeny, schema.DecisionAsk} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f := w.fleet()
			turn := openTurn(t, start(t, f, "r1"))
			answers(t, turn, publisher.ToolCall{ID: "a", Name: "mail"})
			require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: how}, turn.Number()))
			w.serve()
			two := resume(t, f, "r1")
			err := two.OpenTurn().Begin(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1})
			require.Error(t, err, "WM-E-068: a call that a person is asked about is not begun before it was allowed")
		})
	}
}

// Hold calls that the base abandoned are in doubt in the fork: another fork, or the base after a rewind, may make them.
func TestRequested_ForkOfAbandonedCall_MadeAfterSettlement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	origin := start(t, f, "origin")
	turn := openTurn(t, origin)
	call := publisher.ToolCall{ID: "c2", Name: "pay"}
	answers(t, turn, call, call)
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
	p, err := schema.ParsePoint("seq:2")
	require.NoError(t, err)
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin", At: p})
	require.NoError(t, err)
	var ran atomic.Int64
	for range 2 {
		_, err = fork.OpenTurn().Tool(t.Context(), call, counted(&ran, "fork"))
		held, ok := errors.AsType[*publisher.HeldError](err)
		require.True(t, ok, "%v", err)
		_, err = f.Settle(t.Context(), "fork", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"})
		require.NoError(t, err)
		require.NoError(t, fork.AwaitSettled(t.Context(), held.Key))
		_, err = fork.OpenTurn().Tool(t.Context(), call, counted(&ran, "fork"))
		require.NoError(t, err)
		if fork.OpenTurn() == nil {
			break
		}
	}
	require.Equal(t, int64(2), ran.Load())
	require.NoError(t, origin.Sync(t.Context()), "the fork has marked it")
	w.requireSameFold(origin)
}

// Forks before, between and behind two calls of an answer.
func TestRequested_ForkWithinAnAnswer_Consistent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	origin := start(t, f, "origin")
	turn := openTurn(t, origin)
	a, b := publisher.ToolCall{ID: "a", Name: "pay"}, publisher.ToolCall{ID: "a", Name: "pay", Occurrence: 2}
	answers(t, turn, a, a)
	var ran atomic.Int64
	_, err := turn.Tool(t.Context(), a, counted(&ran, 1))
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), b, counted(&ran, 2))
	require.NoError(t, err)
	require.NoError(t, origin.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	for i, at := range []string{"result:1", "result:2", "seq:2", "seq:4", "turn:1", "end"} {
		p, err := schema.ParsePoint(at)
		require.NoError(t, err)
		fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "fork" + string(rune('a'+i)), Base: "origin", At: p})
		require.NoError(t, err, at)
		for _, c := range fork.Head().OpenCalls {
			require.True(t, c.State.InDoubt(), "%s: the base began it later: %+v", at, c)
		}
		t.Log(at, len(fork.Head().OpenCalls), fork.Head().TurnOpen)
	}
}

// Turn.End says its message although the last outcome has just ended the turn.
func TestRequested_EndWithLastOutcome_OneEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := 0
	f := w.fleet()
	for i := range 30 {
		run := start(t, f, "r"+strconv.Itoa(i))
		turn := openTurn(t, run)
		call := publisher.ToolCall{ID: "a", Name: "read", Replay: schema.ReplayPure}
		answers(t, turn, call)
		var n atomic.Int64
		var wg sync.WaitGroup
		var one, two error
		wg.Go(func() { _, one = turn.Tool(t.Context(), call, counted(&n, 1)) })
		wg.Go(func() { two = turn.End(t.Context(), publisher.TurnEnd{Messages: []schema.Message{user("said")}}) })
		wg.Wait()
		_ = one
		require.NoError(t, two)
		if s := run.State(); len(s.Messages) != 2 {
			lost++
		}
	}
	require.Zero(t, lost, "messages of Turn.End, which returned nil, are in no state")
}

// Answers with shared ids, tools in parallel, then a takeover.
func TestRequested_ParallelTools_Recorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	var n atomic.Int64
	err := func(ctx context.Context) error {
		for range 3 {
			turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
			if err != nil {
				return err
			}
			call := publisher.ToolCall{ID: "a", Name: "mail"}
			pure := publisher.ToolCall{ID: "a", Name: "mail", Replay: schema.ReplayPure}
			if _, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call, pure, call}}); err != nil {
				return err
			}
			var wg sync.WaitGroup
			errs := make([]error, 3)
			for i := range 3 {
				wg.Go(func() {
					c := call
					c.Occurrence = i + 1
					_, errs[i] = turn.Tool(ctx, c, counted(&n, i))
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
		return nil
	}(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(9), n.Load())
	s := w.requireSameFold(run)
	require.False(t, s.Head.TurnOpen)
	require.Empty(t, s.Head.OpenCalls)
}

// The same with a question that is still open: the next executor begins the call by Begin.
func TestRequested_BeginWithOpenQuestion_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	answers(t, turn, publisher.ToolCall{ID: "a", Name: "mail"})
	asksAbout(t, w, turn)
	w.serve()
	two := resume(t, f, "r1")
	require.Error(t, two.OpenTurn().Begin(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}))
}

// Two handles of one request id: the first begins a hold call by Turn.Call.
func TestRequested_RepeatedTakeover_HoldCallHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	answers(t, turn, call)
	w.serve()
	spec := publisher.ResumeSpec{Reason: "restart", RequestID: "q1"}
	one, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	two, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	var n atomic.Int64
	var wg sync.WaitGroup
	for _, r := range []*publisher.Run{one, two} {
		wg.Go(func() { _, _ = r.OpenTurn().Tool(t.Context(), call, counted(&n, "sent")) })
	}
	wg.Wait()
	require.Equal(t, int64(1), n.Load())
}

// A policy that is stricter now: verify, asked of the tool, and not done; then a takeover; then the lenient one again.
func TestRequested_StricterThenLenient_StricterHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	call := publisher.ToolCall{ID: "a", Name: "mail", Replay: schema.ReplayIdempotent}
	answers(t, turn, call)
	w.serve()
	hold := call
	hold.Replay = schema.ReplayHold
	two := resume(t, f, "r1")
	var n atomic.Int64
	_, err := two.OpenTurn().Tool(t.Context(), hold, counted(&n, "x"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, CallEpoch: attempt(t, f, "r1", schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}), How: schema.SettledRerun, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, two.Sync(t.Context()))
	ctx, die := context.WithCancelCause(t.Context())
	_, err = two.OpenTurn().Tool(ctx, hold, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		die(errors.New("gone"))
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	require.Equal(t, int64(1), n.Load())
	three := resume(t, f, "r1")
	_, err = three.OpenTurn().Tool(t.Context(), call, counted(&n, "x"))
	require.ErrorIs(t, err, publisher.ErrHeld, "the recorded policy is hold now")
	require.Equal(t, int64(1), n.Load())
	w.requireSameFold(three)
}

// A requested call of a pure tool that the same handle ran, and whose context ended, runs again by a stricter policy?
func TestRequested_StricterInOneHandle_Holds(t *testing.T) {
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
	call.Replay = schema.ReplayHold
	// By Begin, for a tool that is run by other means.
	err = turn.Begin(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1})
	t.Log("begin:", err)
	_, err = turn.Tool(t.Context(), call, counted(&n, "x"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.Equal(t, int64(1), n.Load())
}
