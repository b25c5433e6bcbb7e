package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestRequested_ParallelToolsOfLazyTurn_Run(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 10 {
		run := start(t, w.fleet(), fmt.Sprintf("r%d", i))
		turn := openTurn(t, run)
		errs := make([]error, 4)
		var wg sync.WaitGroup
		var n atomic.Int64
		for j := range errs {
			wg.Go(func() {
				_, errs[j] = turn.Tool(t.Context(), publisher.ToolCall{ID: fmt.Sprint(j), Name: "read", Replay: schema.ReplayPure}, counted(&n, 1))
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
	}
}

func TestRequested_Occurrence_FirstUnfinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	answers(t, turn, call, call)
	var n atomic.Int64
	// The second of the two is done first.
	second := call
	second.Occurrence = 2
	_, err := turn.Tool(t.Context(), second, counted(&n, "second"))
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), call, counted(&n, "first"))
	require.NoError(t, err, "0 means the first that this handle has not brought to an end")
	require.Equal(t, int64(2), n.Load())
}

// A pure call that failed to begin must not lead to another call being begun.
func TestRequested_MissingOccurrence_BeginsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "a", Name: "mail"}
	answers(t, turn, call, call)
	third := call
	third.Occurrence = 3
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), third, counted(&n, "third"))
	t.Log(err, names(w.log("r1")))
	for _, c := range run.Head().OpenCalls {
		if c.Occurrence < 3 {
			require.True(t, c.State.Requested(), "call %v was begun without a request to run it", c.CallKey)
		}
	}
}

func TestRequested_TakeoverWithStricterPolicy_NotRunTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	start(t, f, "r1")
	w.serve()
	spec := publisher.ResumeSpec{Reason: "restart", RequestID: "q1"}
	one, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	turn := openTurn(t, one)
	call := publisher.ToolCall{ID: "a", Name: "mail", Replay: schema.ReplayIdempotent}
	answers(t, turn, call)
	var n atomic.Int64
	// The process dies within the tool, behind its effect.
	ctx, die := context.WithCancelCause(t.Context())
	_, err = turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		die(errors.New("the process vanishes"))
		return publisher.ToolResult{}, context.Cause(ctx)
	})
	require.Error(t, err)
	// It is started again with the same request, by a version whose tool is hold.
	two, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	require.Equal(t, one.Head().Epoch, two.Head().Epoch)
	call.Replay = schema.ReplayHold
	_, err = two.OpenTurn().Tool(t.Context(), call, counted(&n, "again"))
	t.Log(err)
	require.Equal(t, int64(1), n.Load(), "the stricter of the recorded and the present policy counts")
}

func TestRequested_TakeoverOfUndecidedCall_NotRun(t *testing.T) {
	for _, how := range []string{"policy", "person"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f := w.fleet()
			run := start(t, f, "r1")
			turn := openTurn(t, run)
			call := publisher.ToolCall{ID: "a", Name: "mail"}
			answers(t, turn, call)
			w.serve()
			if how == "policy" {
				require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: schema.DecisionDeny}, turn.Number()))
			} else {
				require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: schema.DecisionAsk}, turn.Number()))
				w.control("r1", 1, &schema.RunInputData{InterruptID: "none", Payload: []byte(`{"decision":"deny"}`)})
			}
			two, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "restart"})
			require.NoError(t, err)
			var n atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := two.Turn(1).Tool(ctx, call, counted(&n, "ran"))
				done <- err
			}()
			if how == "policy" {
				require.ErrorIs(t, <-done, publisher.ErrToolFailed)
			} else {
				require.Eventually(t, func() bool { return len(w.fold("r1").Head.Interrupts) == 1 }, patience, time.Millisecond, "the person is asked")
				cancel()
				require.ErrorIs(t, <-done, context.Canceled)
			}
			cancel()
			require.Zero(t, n.Load(), "it was not allowed")
		})
	}
}

// A call that cannot be made is recorded closed, so that the model is not asked for ever.
func TestAnswer_ArgumentsAreNoJSON_CallIsRecordedAsFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{
		{ID: "a", Name: "read", Arguments: raw(`{"a":`)}, {ID: "b", Name: "read", Arguments: raw(`{"a":`), Error: &schema.Error{Type: "bad"}},
	}})
	require.NoError(t, err)
	s := w.requireSameFold(run)
	require.JSONEq(t, `"{\"a\":"`, string(s.Calls[0].Arguments), "as the model gave them")
	require.Equal(t, "invalid_arguments", s.Calls[0].Error.Type)
	require.Equal(t, "bad", s.Calls[1].Error.Type)
	require.Nil(t, run.OpenTurn())
}

// A name that no event can carry is recorded as a failed call, too, and asking for the call returns the failure.
func TestAnswer_NameCannotBeRecorded_CallIsRecordedAsFailed(t *testing.T) {
	t.Parallel()
	for name, recorded := range map[string]string{
		"": "?", "read\n": "read?", strings.Repeat("é", 200): strings.Repeat("é", 128), "a" + strings.Repeat("é", 200): "a" + strings.Repeat("é", 127),
	} {
		w := newWorld(t)
		run := start(t, w.fleet(), "r1")
		turn := openTurn(t, run)
		bad := publisher.ToolCall{ID: "a", Name: name, Replay: schema.ReplayPure}
		good := publisher.ToolCall{ID: "b", Name: "read", Replay: schema.ReplayPure}
		_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{bad, good}})
		require.NoError(t, err, "%q", name)
		_, err = turn.Tool(t.Context(), bad, nil)
		require.ErrorIs(t, err, publisher.ErrToolFailed, "%q", name)
		var n atomic.Int64
		_, err = turn.Tool(t.Context(), good, counted(&n, 1))
		require.NoError(t, err)
		s := w.requireSameFold(run)
		require.Equal(t, recorded, s.Calls[0].Name)
		require.Equal(t, "unknown_tool", s.Calls[0].Error.Type)
		require.Nil(t, run.OpenTurn())
	}
}

func TestRequested_MoreCallsThanFit_AreRecordedAsFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	var calls []publisher.ToolCall
	for i := range schema.MaxOpenCalls + 2 {
		calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "read", Replay: schema.ReplayPure})
	}
	answers(t, turn, calls...)
	require.Len(t, run.Head().OpenCalls, schema.MaxOpenCalls)
	for _, c := range calls[schema.MaxOpenCalls:] {
		var n atomic.Int64
		_, err := turn.Tool(t.Context(), c, counted(&n, 1))
		require.ErrorIs(t, err, publisher.ErrToolFailed)
		var failed *publisher.ToolError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "too_many_calls", failed.Failure.Type)
		require.Zero(t, n.Load())
	}
	w.requireSameFold(run)
}

func TestRequested_FourLargeArguments_Fit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	var calls []publisher.ToolCall
	for i := range 6 {
		calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "read", Replay: schema.ReplayPure, Arguments: raw(`{"x":"` + strings.Repeat("y", 200<<10) + `"}`)})
	}
	answers(t, turn, calls...)
	w.serve()
	two := resume(t, w.fleet(), "r1")
	var n atomic.Int64
	for _, c := range calls {
		_, err := two.Turn(1).Tool(t.Context(), c, counted(&n, 1))
		require.NoError(t, err)
	}
	w.requireSameFold(two)
}

func TestRequested_RerunOfEarlierTurn_Allowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	run := resume(t, f, "r1")
	first := run.OpenTurn()
	var n atomic.Int64
	_, err := first.Tool(t.Context(), call, counted(&n, "ran"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	// The agent goes on meanwhile.
	answers(t, openTurn(t, run), publisher.ToolCall{ID: "x", Name: "read", Replay: schema.ReplayPure})
	clearCall(t, f)
	require.NoError(t, run.Sync(t.Context()))
	_, err = first.Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load())
}
