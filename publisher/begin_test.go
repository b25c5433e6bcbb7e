package publisher_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// lostAck is an executor whose acknowledgements are lost from some moment on, until it hears again.
type lostAck struct {
	// returned: the outcome of the call before is lost. Else it is the record of the call itself.
	returned bool
	// early: the person settles at once, and not when told that the call is held.
	early bool
	// byBegin: the second executor runs the tool by other means than Turn.Tool.
	byBegin bool
	how     schema.Settlement
}

// An executor writes an event and does not hear that it is stored. Another one takes the run over, and a person settles the call
// in doubt. When the first one hears again its event is stored, and the run is not its own.
func (l lostAck) play(t *testing.T, w *world, url string, options ...nats.Option) {
	t.Helper()
	p := newProxy(t, url)
	a := w.fleet(func(c *publisher.Config) {
		c.Conn, c.URL, c.Executor, c.PublishTimeout, c.TryTimeout = nil, p.url(), "exec-a", time.Minute, 200*time.Millisecond
		c.Options = append(options, nats.IgnoreDiscoveredServers())
	})
	b := w.fleet(func(c *publisher.Config) { c.Executor = "exec-b" })
	publisher.SetOutwait(b, publisher.Outwait)
	before := publisher.ToolCall{ID: "p", Name: "look", Replay: schema.ReplayPure}
	hold := publisher.ToolCall{ID: "h", Name: "mail"}
	var ran, ranOld atomic.Int64
	turn := openTurn(t, start(t, a, "r1"))
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{before, hold}})
	require.NoError(t, err)
	want := len(w.log("r1")) + 1
	done := make(chan error, 1)
	go func() {
		_, err := turn.Tool(t.Context(), before, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			if l.returned {
				p.dropAcks(-1)
			}
			return publisher.Result("p")
		})
		if err == nil {
			if !l.returned {
				p.dropAcks(-1)
			}
			_, err = turn.Tool(t.Context(), hold, counted(&ranOld, "a"))
		}
		done <- err
	}()
	if !l.returned {
		want++
	}
	require.Eventually(t, func() bool { return len(w.log("r1")) >= want }, time.Minute, time.Millisecond, "it is stored")
	require.Eventually(t, func() bool { return p.dropped() > 0 }, time.Minute, time.Millisecond, "and that is not heard")

	taken := time.Now()
	run := resume(t, b, "r1")
	if l.returned {
		// The call was not begun: it is made, and no person is asked.
		_, err = run.Turn(1).Tool(t.Context(), hold, counted(&ran, "b"))
		require.NoError(t, err)
		p.dropAcks(0)
		require.ErrorIs(t, <-done, publisher.ErrFenced)
		require.Equal(t, []int64{1, 0}, []int64{ran.Load(), ranOld.Load()})
		return
	}
	key := schema.CallKey{Turn: 1, ToolCallID: "h", Occurrence: 1}
	if !l.early {
		_, err = run.Turn(1).Tool(t.Context(), hold, nil)
		require.ErrorIs(t, err, publisher.ErrHeld)
		require.GreaterOrEqual(t, time.Since(taken), publisher.Outwait, "until then the executor before might have begun it, behind a person's look")
	}
	_, err = b.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: key, CallEpoch: attempt(t, b, "r1", key), How: l.how, By: "ann"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return run.Sync(t.Context()) == nil && !slices.ContainsFunc(run.Head().OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key && c.State.InDoubt() })
	}, time.Minute, time.Millisecond, "a replica may show the settlement a moment late")
	if l.byBegin {
		err = beginTwice(t, run.OpenTurn(), key)
		ran.Add(1)
	} else {
		_, err = run.Turn(1).Tool(t.Context(), hold, counted(&ran, "b"))
	}
	if l.how == schema.SettledRerun {
		require.NoError(t, err)
		require.Equal(t, int64(1), ran.Load())
		require.GreaterOrEqual(t, time.Since(taken), publisher.Outwait, "until then the executor before might have begun it")
	} else {
		require.ErrorIs(t, err, publisher.ErrAbandoned)
	}
	p.dropAcks(0)
	require.ErrorIs(t, <-done, publisher.ErrFenced)
	require.Zero(t, ranOld.Load(), "the tool ran in an epoch that was over")
}

// beginTwice begins a call from two goroutines. It fails if the second one does not wait as long as the first.
func beginTwice(t *testing.T, turn *publisher.Turn, key schema.CallKey) error {
	t.Helper()
	type end struct {
		at  time.Time
		err error
	}
	ends := make(chan end, 2)
	for range 2 {
		go func() {
			err := turn.Begin(t.Context(), key)
			ends <- end{time.Now(), err}
		}()
	}
	first, second := <-ends, <-ends
	require.Less(t, second.at.Sub(first.at), time.Second, "both wait for the executor before")
	return errors.Join(first.err, second.err)
}

func TestTool_AcknowledgementLostAndRunTakenOver_HoldToolDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]lostAck{
		"its begin, settled as rerun":                {how: schema.SettledRerun},
		"its begin, settled as rerun at once":        {how: schema.SettledRerun, early: true},
		"its begin, settled as rerun at once, begun": {how: schema.SettledRerun, early: true, byBegin: true},
		"its begin, settled as abandoned":            {how: schema.SettledAbandoned},
		"the outcome before it":                      {returned: true},
	} {
		t.Run("one server, "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			l.play(t, w, w.server.URL(), w.server.Options()...)
		})
		t.Run("three servers, "+name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.serveOn(c.nc)
			l.play(t, c.world, c.nc.ConnectedUrl())
		})
	}
}

func TestTool_ProofOfTheEpochIsOld_BeginIsRecordedFirst(t *testing.T) {
	t.Parallel()
	for _, replay := range []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayVerify, schema.ReplayHold} {
		t.Run(string(replay), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			turn := openTurn(t, run)
			call := publisher.ToolCall{ID: "c1", Name: "x", Replay: replay}
			if replay == schema.ReplayVerify {
				call.VerifySubject = "x.verify"
			}
			_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call}})
			require.NoError(t, err)
			require.NoError(t, turn.Begin(t.Context(), c1))
			publisher.AgeProof(run, 3*time.Second)
			var ran atomic.Int64
			_, err = turn.Tool(t.Context(), call, counted(&ran, "x"))
			require.NoError(t, err)
			want := []string{"run.started", "turn.answered", "tool.called", "tool.returned"}
			if replay == schema.ReplayVerify || replay == schema.ReplayHold {
				want = []string{"run.started", "turn.answered", "tool.called", "tool.decided", "tool.returned"}
			}
			require.Equal(t, want, names(w.log("r1")))
			require.Equal(t, int64(1), ran.Load())
			w.requireSameFold(run)
		})
	}
}

func TestBegin_ToolRunByOtherMeans_ProvesTheEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "x"})
	require.NoError(t, err)
	require.NoError(t, turn.Begin(t.Context(), keys[0]))
	require.Len(t, w.log("r1"), 3, "the call itself has proven it")
	publisher.AgeProof(run, 3*time.Second)
	require.NoError(t, turn.Begin(t.Context(), keys[0]))
	require.Equal(t, []string{"run.started", "turn.started", "tool.called", "tool.decided"}, names(w.log("r1")))
	resume(t, f, "r1")
	publisher.AgeProof(run, 3*time.Second)
	require.ErrorIs(t, turn.Begin(t.Context(), keys[0]), publisher.ErrFenced)
}

func TestBegin_CallInDoubtOrClosed_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "hold", Name: "x"}, publisher.ToolCall{ID: "pure", Name: "x", Replay: schema.ReplayPure})
	require.NoError(t, err)
	run := resume(t, f, "r1")
	turn = run.OpenTurn()
	var held *publisher.HeldError
	require.ErrorAs(t, turn.Begin(t.Context(), keys[0]), &held)
	require.Equal(t, keys[0], held.Key)
	require.ErrorAs(t, turn.Begin(t.Context(), keys[1]), &held)
	require.Contains(t, held.Detail, "Turn.Tool settles it")

	// Settled as rerun: to others it counts as begun from here on.
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: keys[0], CallEpoch: attempt(t, f, "r1", keys[0]), How: schema.SettledRerun, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	require.NoError(t, turn.Begin(t.Context(), keys[0]))
	require.False(t, run.Head().OpenCalls[0].State.Requested())
	require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{}))
	err = turn.Begin(t.Context(), keys[0])
	require.ErrorIs(t, err, publisher.ErrConflict)
	require.ErrorContains(t, err, "its outcome is recorded")
	w.requireSameFold(run)
}

// Every acknowledgement comes too late to prove anything.
func TestBegin_NoProofInTime_FiveEventsAndAnError(t *testing.T) {
	t.Parallel()
	for _, byTool := range []bool{true, false} {
		t.Run(map[bool]string{true: "Tool", false: "Begin"}[byTool], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f := w.fleet()
			publisher.SetProofAge(f, 0)
			turn := openTurn(t, start(t, f, "r1"))
			call := publisher.ToolCall{ID: "c1", Name: "x"}
			keys, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call}})
			require.NoError(t, err)
			before := names(w.log("r1"))
			if byTool {
				_, err = turn.Tool(t.Context(), call, counted(new(atomic.Int64), "done"))
			} else {
				err = turn.Begin(t.Context(), keys[0])
			}
			require.ErrorIs(t, err, publisher.ErrUnavailable)
			require.Equal(t, slices.Concat(before, []string{"tool.called"}, slices.Repeat([]string{"tool.decided"}, publisher.BeginTries)), names(w.log("r1")))
		})
	}
}

// That a call began is no policy's decision: the next executor's policy is asked.
func TestTool_BeginIsRecorded_PolicyOfTheNextExecutorIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: "c1", Name: "x", Replay: schema.ReplayVerify, VerifySubject: "x.verify"}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("x")), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	require.NoError(t, turn.Begin(t.Context(), c1))
	publisher.AgeProof(run, 3*time.Second)
	crash, cancel := context.WithCancel(t.Context())
	_, err = turn.Tool(crash, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		cancel()
		return publisher.ToolResult{}, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "tool.decided", names(w.log("r1"))[3])
	stop, err := publisher.ServeVerify(w.nc, "x.verify", "", func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
		return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	next := resume(t, w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{Decision: schema.DecisionDeny, Policy: "none of it"}, nil
		}
	}), "r1")
	var ran atomic.Int64
	_, err = next.Turn(1).Tool(t.Context(), call, counted(&ran, "x"))
	var failed *publisher.ToolError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, publisher.DeniedType, failed.Failure.Type)
	require.Zero(t, ran.Load())
}
