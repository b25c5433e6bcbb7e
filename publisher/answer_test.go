package publisher_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// answers records an answer that asks for calls.
func answers(t *testing.T, turn *publisher.Turn, calls ...publisher.ToolCall) {
	t.Helper()
	m := assistant()
	for _, c := range calls {
		m.Parts = append(m.Parts, schema.CallPart(c.ID, c.Name))
	}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: m, Calls: calls})
	require.NoError(t, err)
}

// A turn with two pure tools is three events, and one with a side effect four.
func TestAnswer_Turn_IsThreeFacts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	pure := []publisher.ToolCall{{ID: "c1", Name: "read", Replay: schema.ReplayPure}, {ID: "c2", Name: "read", Replay: schema.ReplayIdempotent}}
	answers(t, turn, pure...)
	var n atomic.Int64
	for _, call := range pure {
		_, err := turn.Tool(t.Context(), call, counted(&n, "text"))
		require.NoError(t, err)
	}
	require.Nil(t, run.OpenTurn())
	turn = openTurn(t, run)
	require.Equal(t, int32(2), turn.Number())
	mail := publisher.ToolCall{ID: "c1", Name: "mail"}
	answers(t, turn, mail)
	_, err := turn.Tool(t.Context(), mail, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		require.Equal(t, "tool.called", names(w.log("r1"))[5], "it is begun before it runs")
		return publisher.Result("sent")
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"run.started", "turn.answered", "tool.returned", "tool.returned", "turn.answered", "tool.called", "tool.returned",
	}, names(w.log("r1")))
	s := w.requireSameFold(run)
	require.False(t, s.Head.TurnOpen)
	require.Empty(t, s.Head.OpenCalls)
	require.Equal(t, int64(2), n.Load())
}

// The executor dies in the second of two mails of one answer. The first was sent, the third was not begun: only the second is held.
func TestAnswer_ExecutorDies_OnlyTheCallThatWasBegunIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	mails := []publisher.ToolCall{{ID: "c1", Name: "mail"}, {ID: "c2", Name: "mail"}, {ID: "c3", Name: "mail"}, {ID: "c4", Name: "read", Replay: schema.ReplayPure}}
	turn := openTurn(t, start(t, f, "r1"))
	answers(t, turn, mails...)
	var sent atomic.Int64
	_, err := turn.Tool(t.Context(), mails[0], counted(&sent, "sent"))
	require.NoError(t, err)
	ctx, die := context.WithCancelCause(t.Context())
	_, err = turn.Tool(ctx, mails[1], func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		sent.Add(1)
		die(errors.New("the executor dies"))
		return publisher.ToolResult{}, ctx.Err()
	})
	require.Error(t, err)

	run := resume(t, f, "r1")
	turn = run.OpenTurn()
	plan, err := f.Plan(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, []schema.CallAction{schema.CallHold, schema.CallMake, schema.CallRerun}, []schema.CallAction{plan.Calls[0].Action, plan.Calls[1].Action, plan.Calls[2].Action})
	result, err := turn.Tool(t.Context(), mails[0], counted(&sent, "sent"))
	require.NoError(t, err)
	require.True(t, result.Recorded)
	_, err = turn.Tool(t.Context(), mails[1], counted(&sent, "sent"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	_, err = turn.Tool(t.Context(), mails[2], counted(&sent, "sent"))
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), mails[3], counted(new(atomic.Int64), "text"))
	require.NoError(t, err)
	require.Equal(t, int64(3), sent.Load())
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c3"}, CallEpoch: 1, How: schema.SettledAbandoned, By: "ann"})
	require.Error(t, err, "it has its outcome")
	w.requireSameFold(run)
}

// What an executor of an earlier epoch may have run by the policy that is recorded, one whose own policy is stricter does not run.
func TestAnswer_PolicyIsStricterNow_CallIsInDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	asked := 0
	serveVerify(t, w, func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
		asked++
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: raw(`"done"`)}, nil
	})
	turn := openTurn(t, start(t, f, "r1"))
	answers(t, turn, publisher.ToolCall{ID: "c1", Name: "pay", Replay: schema.ReplayPure}, publisher.ToolCall{ID: "c2", Name: "pay", Replay: schema.ReplayPure},
		publisher.ToolCall{ID: "c3", Name: "pay", Replay: schema.ReplayPure})
	// Within its epoch it knows that it has not run the call: it is begun, by the stricter policy.
	var ran atomic.Int64
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c3", Name: "pay", Replay: schema.ReplayVerify, VerifySubject: verifySubject}, counted(&ran, "c3"))
	require.NoError(t, err)
	require.Equal(t, schema.ReplayVerify, w.fold("r1").Calls[2].Replay)

	run := resume(t, f, "r1")
	turn = run.OpenTurn()
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "pay", Replay: schema.ReplayHold}, counted(&ran, "c1"))
	var held *publisher.HeldError
	require.ErrorAs(t, err, &held)
	result, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "pay", Replay: schema.ReplayVerify, VerifySubject: verifySubject}, counted(&ran, "c2"))
	require.NoError(t, err)
	require.JSONEq(t, `"done"`, string(result.Result))
	require.Equal(t, 1, asked)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "pay", Replay: schema.ReplayHold}, counted(&ran, "c1"))
	require.NoError(t, err)
	require.Equal(t, int64(2), ran.Load())
	w.requireSameFold(run)
}

func TestAnswer_SameIDs_EachCallHasItsOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	calls := []publisher.ToolCall{
		{ID: "c", Name: "a", Replay: schema.ReplayPure}, {ID: "c", Name: "b"}, {ID: "c", Name: "rm", Error: &schema.Error{Type: "unknown_tool", Message: "there is no rm"}},
	}
	answers(t, turn, calls...)
	for i, name := range []string{"b", "a"} {
		call := publisher.ToolCall{ID: "c", Name: name, Occurrence: 2 - i}
		if name == "a" {
			call.Replay = schema.ReplayPure
		}
		_, err := turn.Tool(t.Context(), call, counted(new(atomic.Int64), name))
		require.NoError(t, err)
	}
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c", Name: "rm", Occurrence: 3}, counted(new(atomic.Int64), "rm"))
	var failed *publisher.ToolError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "unknown_tool", failed.Failure.Type)
	s := w.requireSameFold(run)
	for i, want := range []string{`"a"`, `"b"`, ""} {
		require.Equal(t, want, string(s.Calls[i].Result))
	}
	require.False(t, s.Head.TurnOpen)
}

func TestAnswer_LargeArguments_GoToTheBlobStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	// None of them is large by itself: the event would be.
	calls := make([]publisher.ToolCall, 4)
	for i := range calls {
		calls[i] = publisher.ToolCall{ID: string(rune('a' + i)), Name: "write", Arguments: raw(`"` + strings.Repeat(string(rune('a'+i)), 150<<10) + `"`), Replay: schema.ReplayPure}
	}
	answers(t, turn, calls...)
	s := w.requireSameFold(run)
	moved := 0
	for i := range s.Calls {
		moved += len(s.Calls[i].Refs)
	}
	require.Positive(t, moved)
	require.NoError(t, w.fleet().Hydrate(t.Context(), s))
	for i := range s.Calls {
		require.Equal(t, string(calls[i].Arguments), string(s.Calls[i].Arguments))
		_, err := turn.Tool(t.Context(), calls[i], counted(new(atomic.Int64), i))
		require.NoError(t, err, "what is asked is compared with what is stored")
	}
}

// Nothing is lost in silence: what the provider said belongs to the answer, and what is said behind it is published.
func TestEnd_TurnIsAnswered_SaysWhatItDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	answers(t, turn)
	require.Nil(t, run.OpenTurn())
	require.ErrorIs(t, turn.End(t.Context(), publisher.TurnEnd{Usage: &schema.Usage{InputTokens: 1}}), publisher.ErrConflict)
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Messages: []schema.Message{user("more")}, Error: &schema.Error{Type: "late"}}))
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
	turn = openTurn(t, run)
	answers(t, turn, publisher.ToolCall{ID: "c1", Name: "mail"}, publisher.ToolCall{ID: "c2", Name: "mail"})
	require.NoError(t, turn.Begin(t.Context(), schema.CallKey{Turn: 2, ToolCallID: "c2", Occurrence: 1}))
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Error: &schema.Error{Type: "stopped"}}), "early")
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant()})
	require.ErrorIs(t, err, publisher.ErrRejected, "a turn is answered once")
	require.Equal(t, []string{
		"run.started", "turn.answered", "turn.ended", "turn.answered", "tool.called", "turn.ended",
	}, names(w.log("r1")))
	s := w.requireSameFold(run)
	require.Len(t, s.Messages, 3)
	require.Equal(t, "late", s.Turns[0].Ended.Error.Type)
	require.Equal(t, schema.OutcomeAbandoned, s.Calls[0].Outcome)
	require.Equal(t, schema.OutcomeOpen, s.Calls[1].Outcome)
}

func TestTool_FirstOfItsTurnFromManyGoroutines_TurnIsStartedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn := openTurn(t, run)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: string(rune('a' + i)), Name: "x", Replay: schema.ReplayPure}, counted(new(atomic.Int64), i))
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 20, int(w.requireSameFold(run).Head.Counts.ToolResults))
}

// The turn's start is stored, and what came of the event behind it is not known: repeating the call resolves it.
func TestTool_StartIsStoredAndTheCallIsUnresolved_IsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	p.deafen(f)
	call := publisher.ToolCall{ID: "c1", Name: "x", Replay: schema.ReplayPure}
	_, err := turn.Call(t.Context(), call)
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	p.heal(f)
	_, err = turn.Call(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, []string{"run.started", "turn.started", "tool.called"}, names(w.log("r1")))
	w.requireSameFold(run)
}

// A turn that has nothing to say begins with its answer; with anything else, it says that it began.
func TestStartTurn_NothingNew_IsPublishedWhenItIsNeeded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec publisher.TurnSpec
		then func(t *testing.T, turn *publisher.Turn)
		want []string
	}{
		"nothing":    {want: []string{"run.started"}},
		"messages":   {spec: publisher.TurnSpec{Messages: []schema.Message{user("go")}}, want: []string{"run.started", "turn.started"}},
		"a recovery": {spec: publisher.TurnSpec{Purpose: schema.PurposeRecovery}, want: []string{"run.started", "turn.started"}},
		"a message": {then: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			require.NoError(t, turn.AddMessage(t.Context(), user("go")))
		}, want: []string{"run.started", "turn.started", "message.added"}},
		"a call": {then: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			keys, err := turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "x"})
			require.NoError(t, err)
			require.Equal(t, []schema.CallKey{{Turn: 1, ToolCallID: "c1", Occurrence: 1}}, keys)
		}, want: []string{"run.started", "turn.started", "tool.called"}},
		"its end": {then: func(t *testing.T, turn *publisher.Turn) {
			t.Helper()
			require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Usage: &schema.Usage{InputTokens: 1}}))
		}, want: []string{"run.started", "turn.started", "turn.ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			turn, err := run.StartTurn(t.Context(), test.spec)
			require.NoError(t, err)
			if test.then != nil {
				test.then(t, turn)
			}
			require.Equal(t, test.want, names(w.log("r1")))
			w.requireSameFold(run)
		})
	}
}

// A call behind the end of its turn belongs to the next one: it is refused before anything is published.
func TestCall_EndedTurn_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	call := publisher.ToolCall{ID: "c1", Name: "ls", Replay: schema.ReplayPure}
	turn := openTurn(t, run)
	keys, err := turn.Call(t.Context(), call)
	require.NoError(t, err)
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
	before := len(w.log("r1"))
	call.ID = "c2"
	_, err = turn.Call(t.Context(), call)
	refused, ok := errors.AsType[*publisher.RejectedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, schema.ReasonTurnOrder, refused.Reason)
	_, err = turn.Tool(t.Context(), call, counted(new(atomic.Int64), "ran"))
	require.ErrorIs(t, err, publisher.ErrRejected)
	require.Len(t, w.log("r1"), before)
	require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{}), "an open call gets its outcome")
	_, err = openTurn(t, run).Call(t.Context(), call)
	require.NoError(t, err)
	w.requireSameFold(run)
}
