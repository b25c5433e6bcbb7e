package publisher_test

import (
	"context"
	"encoding/json"
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

// counted is a tool that counts its runs.
func counted(n *atomic.Int64, result any) publisher.ToolFunc {
	return func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		return publisher.Result(result)
	}
}

func openTurn(tb testing.TB, run *publisher.Run) *publisher.Turn {
	tb.Helper()
	turn, err := run.StartTurn(tb.Context(), publisher.TurnSpec{})
	require.NoError(tb, err)
	return turn
}

// crashed is a run whose executor vanished inside the tool of one call.
func crashed(t *testing.T, w *world, f *publisher.Fleet, call publisher.ToolCall) {
	t.Helper()
	called(t, f, call)
	w.serve()
}

// called is crashed for a test that has a daemon: a second service, which assigns no runs, would answer every second
// claim.
func called(t *testing.T, f *publisher.Fleet, call publisher.ToolCall) {
	t.Helper()
	turn := openTurn(t, start(t, f, "r1"))
	keys, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart(call.ID, call.Name)), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	require.NoError(t, turn.Begin(t.Context(), keys[0]))
}

func resume(tb testing.TB, f *publisher.Fleet, id string) *publisher.Run {
	tb.Helper()
	run, err := f.Resume(tb.Context(), id, publisher.ResumeSpec{Reason: "restart"})
	require.NoError(tb, err)
	return run
}

func TestTool_Run_BetweenItsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	result, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "read", Replay: schema.ReplayPure},
		func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			require.Equal(t, "r1.1.c1.1", inv.IdempotencyKey)
			require.Equal(t, 1, inv.Attempt)
			require.Equal(t, "tool.called", names(w.log("r1"))[2], "the call is durable before the tool runs")
			require.Len(t, w.log("r1"), 3)
			return publisher.Result(map[string]int{"lines": 3})
		})
	require.NoError(t, err)
	require.JSONEq(t, `{"lines":3}`, string(result.Result))
	require.False(t, result.Recorded)
	s := w.requireSameFold(run)
	require.Equal(t, schema.OutcomeReturned, s.Calls[0].Outcome)
	require.JSONEq(t, `{"lines":3}`, string(s.Calls[0].Result))
}

func TestTool_RecordedAnswer_Runs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "c1", Name: "deploy", Arguments: raw(`{"to":"prod"}`)}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart("c1", "deploy")), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	var n atomic.Int64
	_, err = turn.Tool(t.Context(), call, counted(&n, "ok"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load(), "hold is about calls in doubt only")
	w.requireSameFold(run)
}

func TestTool_RecordedResult_NotRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy", Arguments: raw(`{"to":"prod","n":1}`)}
	turn := openTurn(t, start(t, f, "r1"))
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), call, counted(&n, "ok"))
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "fail"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		return publisher.ToolResult{}, errors.New("no such host")
	})
	require.ErrorIs(t, err, publisher.ErrToolFailed)

	w.serve()
	run := resume(t, f, "r1")
	turn = run.OpenTurn()
	require.NotNil(t, turn)
	before := len(w.log("r1"))
	call.Arguments = raw(`{ "n": 1.0, "to": "prod" }`)
	result, err := turn.Tool(t.Context(), call, counted(&n, "again"))
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.JSONEq(t, `"ok"`, string(result.Result))
	var failed *publisher.ToolError
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "fail"}, counted(&n, "again"))
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Replayed)
	require.Equal(t, "no such host", failed.Failure.Message)
	require.Equal(t, int64(2), n.Load())
	require.Len(t, w.log("r1"), before)
}

func TestTool_ReusedID_NewCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	var n atomic.Int64
	for i := range 3 {
		result, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "call_0", Name: "add", Arguments: raw(fmt.Sprint(i))}, counted(&n, i))
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprint(i), string(result.Result))
	}
	w.serve()
	run = resume(t, f, "r1")
	turn = run.OpenTurn()
	for i := range 4 {
		result, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "call_0", Name: "add", Arguments: raw(fmt.Sprint(i))}, counted(&n, i))
		require.NoError(t, err)
		require.Equal(t, i < 3, result.Recorded)
	}
	require.Equal(t, int64(4), n.Load())
	w.requireSameFold(run)
}

func TestTool_CallInDoubt_FollowsPolicy(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		replay schema.Replay
		held   string
	}{
		"pure is run again":       {replay: schema.ReplayPure},
		"idempotent is run again": {replay: schema.ReplayIdempotent},
		"hold is held":            {replay: schema.ReplayHold, held: "waymark settle --fleet default r1 1 c1 --epoch 1 --how"},
		"no policy is held":       {held: "waymark settle --fleet default r1 1 c1 --epoch 1 --how"},
		"verify is held":          {replay: schema.ReplayVerify, held: "verify"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet()
			call := publisher.ToolCall{ID: "c1", Name: "deploy", Arguments: raw(`{"to":"prod"}`), Replay: test.replay}
			if test.replay == schema.ReplayVerify {
				call.VerifySubject = "tools.deploy.verify"
			}
			crashed(t, w, f, call)
			run := resume(t, f, "r1")
			require.Len(t, run.State().Head.InDoubt(), 1)
			var inv publisher.Invocation
			var n atomic.Int64
			_, err := run.Turn(1).Tool(t.Context(), call, func(_ context.Context, i publisher.Invocation) (publisher.ToolResult, error) {
				inv = i
				n.Add(1)
				return publisher.Result("ok")
			})
			if test.held != "" {
				require.ErrorIs(t, err, publisher.ErrHeld)
				require.ErrorContains(t, err, test.held)
				var held *publisher.HeldError
				require.ErrorAs(t, err, &held)
				require.Equal(t, "c1", held.Key.ToolCallID)
				require.Zero(t, n.Load())
				require.Len(t, run.State().Head.InDoubt(), 1)
				return
			}
			require.NoError(t, err)
			require.Equal(t, int64(1), n.Load())
			require.Equal(t, "r1.1.c1.1", inv.IdempotencyKey)
			require.Equal(t, 2, inv.Attempt)
			require.Equal(t, []string{"run.started", "turn.answered", "tool.called", "run.resumed", "tool.settled", "tool.returned"}, names(w.log("r1")))
			s := w.requireSameFold(run)
			require.Equal(t, []schema.Settlement{schema.SettledRerun}, s.Calls[0].Settlements)
		})
	}
}

func TestTool_OperatorSettles_Continues(t *testing.T) {
	t.Parallel()
	tests := map[schema.Settlement]struct {
		ran  int64
		want error
	}{
		schema.SettledRerun:     {ran: 1},
		schema.SettledDecided:   {},
		schema.SettledAbandoned: {want: publisher.ErrAbandoned},
	}
	for how, test := range tests {
		t.Run(string(how), func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet()
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			crashed(t, w, f, call)
			run := resume(t, f, "r1")
			var n atomic.Int64
			_, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
			require.ErrorIs(t, err, publisher.ErrHeld)
			request := schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, CallEpoch: 1, How: how, By: "anna"}
			if how == schema.SettledDecided {
				request.Result = raw(`"by hand"`)
			}
			first, err := f.Settle(t.Context(), "r1", request)
			require.NoError(t, err)
			again, err := f.Settle(t.Context(), "r1", request)
			require.NoError(t, err)
			require.Equal(t, first.EventID, again.EventID, "it is settled once")
			request.By = "bob"
			_, err = f.Settle(t.Context(), "r1", request)
			require.ErrorContains(t, err, "settled already")
			require.NoError(t, run.Sync(t.Context()))
			result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.ran, n.Load())
			if how == schema.SettledDecided {
				require.JSONEq(t, `"by hand"`, string(result.Result))
			}
			w.requireSameFold(run)
		})
	}
}

func TestTool_SettledByAnother_DecidesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy", Replay: schema.ReplayPure}
	crashed(t, w, f, call)
	run := resume(t, f, "r1")
	// The operator is faster than this handle knows.
	_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{
		CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, CallEpoch: attempt(t, f, "r1", schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}), How: schema.SettledDecided, Result: raw(`"by hand"`), By: "anna",
	})
	require.NoError(t, err)
	var n atomic.Int64
	result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.JSONEq(t, `"by hand"`, string(result.Result))
	require.Zero(t, n.Load())
	w.requireSameFold(run)
}

func TestTool_FencedLateResult_Adopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	crashed(t, w, f, call)
	old := w.fold("r1").Head
	run := resume(t, f, "r1")
	// The older executor has no SDK: its result arrives late, and the log takes it as evidence.
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-0", Epoch: 1, Last: old.Sequence}
	e, err := writer.Event(&schema.ToolReturnedData{ToolCallID: "c1", Result: raw(`"deployed"`)}, 1, time.Now(), 0)
	require.NoError(t, err)
	w.put(e)
	// A wait for a person is refused once the result is there, also if this handle has not seen it yet.
	err = run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "w", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"})
	require.ErrorIs(t, err, publisher.ErrNotInDoubt)
	require.NoError(t, run.AwaitSettled(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}))
	var n atomic.Int64
	result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "ran"))
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.JSONEq(t, `"deployed"`, string(result.Result))
	require.Zero(t, n.Load())
	s := w.requireSameFold(run)
	require.Equal(t, []schema.Settlement{schema.SettledAdopted}, s.Calls[0].Settlements)
}

func TestTool_Divergence_ShowsBothSides(t *testing.T) {
	t.Parallel()
	tests := map[string]publisher.ToolCall{
		"another tool":    {ID: "c1", Name: "destroy", Arguments: raw(`{"to":"prod"}`)},
		"other arguments": {ID: "c1", Name: "deploy", Arguments: raw(`{"to":"test"}`)},
		"no arguments":    {ID: "c1", Name: "deploy"},
	}
	for name, asked := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet()
			turn := openTurn(t, start(t, f, "r1"))
			var n atomic.Int64
			_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy", Arguments: raw(`{"to":"prod"}`)}, counted(&n, "ok"))
			require.NoError(t, err)
			w.serve()
			run := resume(t, f, "r1")
			_, err = run.Turn(1).Tool(t.Context(), asked, counted(&n, "ok"))
			require.ErrorIs(t, err, publisher.ErrDiverged)
			require.ErrorContains(t, err, fmt.Sprintf(`was recorded as deploy({"to":"prod"}) and is now requested as %s(%s)`, asked.Name, asked.Arguments))
			require.Equal(t, int64(1), n.Load())
			asked.Occurrence = 2
			_, err = run.Turn(1).Tool(t.Context(), asked, counted(&n, "ok"))
			require.NoError(t, err, "the executor may insist on a new call")
			w.requireSameFold(run)
		})
	}
}

func TestTool_NumbersOfTheArguments_ComparedExactlyAndKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(redacting)
	turn := openTurn(t, start(t, f, "r1"))
	var n atomic.Int64
	const arguments, balance = `{"account":9007199254740993,"limit":1.50,"password":"x"}`, `{"balance":0.1000000000000000055511151231257827,"units":18446744073709551617}`
	call := publisher.ToolCall{ID: "c1", Name: "read_account", Arguments: raw(arguments), Replay: schema.ReplayPure}
	_, err := turn.Tool(t.Context(), call, counted(&n, json.RawMessage(balance)))
	require.NoError(t, err)
	run := resume(t, f, "r1")
	require.Equal(t, raw(`{"account":9007199254740993,"limit":1.50,"password":"[redacted]"}`), []byte(run.State().Calls[0].Arguments))

	for _, same := range []string{arguments, `{"limit":15e-1, "account":9007199254740993.0, "password":"x"}`} {
		call.Arguments, call.Occurrence = raw(same), 1
		result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, "other"))
		require.NoError(t, err, same)
		require.True(t, result.Recorded)
		require.Equal(t, balance, string(result.Result), "as recorded")
	}
	call.Arguments = raw(`{"account":9007199254740992,"limit":1.50,"password":"x"}`)
	_, err = run.Turn(1).Tool(t.Context(), call, counted(&n, "balance of another account"))
	require.ErrorIs(t, err, publisher.ErrDiverged)
	require.Equal(t, int64(1), n.Load())
}

func TestTool_Panics_IsAFailureOnlyWhereItMayRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	panics := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { panic("division by zero") }
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "x", Replay: schema.ReplayPure}, panics)
	var failed *publisher.ToolError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "panic", failed.Failure.Type)
	require.Equal(t, "panic: division by zero", failed.Failure.Message)
	require.Equal(t, schema.OutcomeFailed, w.requireSameFold(run).Calls[0].Outcome)

	// It may have had its effect before it panicked.
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "x"}, panics)
	held, ok := errors.AsType[*publisher.HeldError](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, held.Command, "--how decided --result JSON")
	require.ErrorContains(t, err, "panic: division by zero")
	require.Equal(t, schema.OutcomeOpen, w.requireSameFold(run).Calls[1].Outcome)
}

func TestTool_ContextEnds_StaysOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	for _, replay := range []schema.Replay{schema.ReplayHold, schema.ReplayPure} {
		call := publisher.ToolCall{ID: string(replay), Name: "x", Replay: replay}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
			cancel()
			return publisher.ToolResult{}, ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Len(t, run.Head().OpenCalls, 2)
	var n atomic.Int64
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "hold", Name: "x"}, counted(&n, "ok"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "pure", Name: "x", Replay: schema.ReplayPure}, counted(&n, "ok"))
	require.NoError(t, err)
	require.Equal(t, int64(1), n.Load())
	w.requireSameFold(run)
}

func TestTool_CallerLeft_ResultRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := openTurn(t, run).Tool(ctx, publisher.ToolCall{ID: "c1", Name: "x"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		cancel()
		return publisher.Result("done")
	})
	require.NoError(t, err)
	require.Equal(t, schema.OutcomeReturned, w.requireSameFold(run).Calls[0].Outcome)
}

func TestTool_ParallelInTurn_Recorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	var calls []publisher.ToolCall
	var parts []schema.Part
	for i := range 40 {
		id := fmt.Sprintf("c%d", i)
		calls = append(calls, publisher.ToolCall{ID: id, Name: "x", Arguments: raw(fmt.Sprint(i)), Replay: schema.ReplayPure})
		parts = append(parts, schema.CallPart(id, "x"))
	}
	keys, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(parts...), Calls: calls})
	require.NoError(t, err)
	require.Len(t, keys, len(calls))
	var group sync.WaitGroup
	var n atomic.Int64
	for _, call := range calls {
		group.Go(func() {
			result, err := turn.Tool(t.Context(), call, counted(&n, call.ID))
			if err != nil || string(result.Result) != `"`+call.ID+`"` {
				t.Errorf("call %s: %s, %v", call.ID, result.Result, err)
			}
		})
	}
	group.Wait()
	require.Equal(t, int64(len(calls)), n.Load())
	require.Nil(t, run.OpenTurn(), "the turn ends with the last outcome")
	s := w.requireSameFold(run)
	for i, c := range s.Calls {
		require.Equal(t, calls[i].ID, c.ToolCallID, "the recorded order of calls is kept")
		require.Equal(t, schema.OutcomeReturned, c.Outcome)
	}
}

func TestTool_LargeArguments_Compared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	big := raw(`{"text":"` + strings.Repeat("x", 300<<10) + `"}`)
	call := publisher.ToolCall{ID: "c1", Name: "write", Arguments: big}
	var n atomic.Int64
	_, err := openTurn(t, start(t, f, "r1")).Tool(t.Context(), call, counted(&n, strings.Repeat("y", 300<<10)))
	require.NoError(t, err)
	w.serve()
	run := resume(t, f, "r1")
	result, err := run.Turn(1).Tool(t.Context(), call, counted(&n, ""))
	require.NoError(t, err)
	require.Len(t, result.Result, 300<<10+2)
	require.Equal(t, int64(1), n.Load())
	run = resume(t, f, "r1")
	call.Arguments = raw(`{"text":"` + strings.Repeat("x", 300<<10-1) + `z"}`)
	_, err = run.Turn(1).Tool(t.Context(), call, counted(&n, ""))
	require.ErrorIs(t, err, publisher.ErrDiverged)
}

func TestTool_ResultUnrecorded_NotRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	var n atomic.Int64
	pay := publisher.ToolCall{ID: "c1", Name: "pay"}
	tool := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		p.deafen(f)
		return publisher.Result("paid")
	}
	for range 2 {
		result, err := turn.Tool(t.Context(), pay, tool)
		require.ErrorIs(t, err, publisher.ErrUnresolved)
		require.JSONEq(t, `"paid"`, string(result.Result), "the result is not lost to the caller")
	}
	p.heal(f)
	result, err := turn.Tool(t.Context(), pay, tool)
	require.NoError(t, err)
	require.JSONEq(t, `"paid"`, string(result.Result))

	// The same when something else finds out meanwhile that the outcome is durable.
	resolved := publisher.ToolCall{ID: "resolved", Name: "pay"}
	_, err = turn.Tool(t.Context(), resolved, tool)
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	p.heal(f)
	require.NoError(t, run.Resolve(t.Context()))
	result, err = turn.Tool(t.Context(), resolved, tool)
	require.NoError(t, err)
	require.JSONEq(t, `"paid"`, string(result.Result))
	require.Equal(t, int64(2), n.Load(), "the same call is meant, and not another with its id")
	n.Store(1)

	// The same when the call itself has no answer: the tool has not run.
	p.deafen(f)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "pay"}, tool)
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	require.Equal(t, int64(1), n.Load())
	p.heal(f)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "pay"}, counted(&n, "paid"))
	require.NoError(t, err)
	require.Equal(t, int64(2), n.Load())

	w.limit(1)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c3", Name: "pay"}, counted(&n, "paid"))
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	require.Equal(t, int64(2), n.Load())
	w.limit(64 << 20)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c3", Name: "pay"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		n.Add(1)
		w.limit(1)
		return publisher.ToolResult{}, errors.New("no money")
	})
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	require.NotErrorIs(t, err, publisher.ErrToolFailed, "that is for a recorded failure")
	w.limit(64 << 20)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c3", Name: "pay"}, counted(&n, "paid"))
	require.ErrorIs(t, err, publisher.ErrToolFailed, "the failure is what is published")
	require.Equal(t, int64(3), n.Load())
	require.Len(t, w.requireSameFold(run).Calls, 4)
}
