package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// signalTo sends a signal to run r1.
func signalTo(tb testing.TB, f *publisher.Fleet, id, payload string) {
	tb.Helper()
	require.NoError(tb, f.Signal(context.Background(), "r1", publisher.SignalSpec{ID: id, Name: "note", Payload: raw(payload), By: "ann"}))
}

// toldIn are the ids of the signals that each turn.started of a log names, and the number of messages that the event has.
func toldIn(recs []schema.Record) (list []string) {
	for _, rec := range recs {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil || e.Name() != schema.TurnStarted {
			continue
		}
		if data, err := schema.ParseData(e); err == nil {
			if d, ok := data.(*schema.TurnStartedData); ok && len(d.Signals) > 0 {
				list = append(list, fmt.Sprintf("turn %d: %s: %d messages", d.Turn, strings.Join(d.Signals, " "), len(d.Messages)))
			}
		}
	}
	return list
}

// heard waits until the handle of the run has heard of so many signals.
func heard(tb testing.TB, run *publisher.Run, n int) {
	tb.Helper()
	require.Eventually(tb, func() bool { return len(run.Head().Signals) == n }, patience, 1e6)
}

func TestLoop_SignalsWhileItWorks_ToldWithTheNextTurnAndAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f, other := w.fleet(), w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	run := start(t, f, "r1")
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	loop := publisher.Loop{Tools: []publisher.Tool{look(func(context.Context, int) (string, error) {
		signalTo(t, other, "s1", `"first"`)
		signalTo(t, other, "s2", `{"n":2}`)
		heard(t, run, 2)
		return "ok", nil
	})}}
	loop.Model = func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 2 { // it answers without a call, and does not know of this one
			signalTo(t, other, "s3", "")
		}
		return m.model(ctx, request)
	}
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, []string{"turn 2: s1 s2: 2 messages", "turn 3: s3: 1 messages"}, toldIn(w.log("r1")))
	sent := m.sent()
	require.Len(t, sent, 3)
	require.Equal(t, []string{
		"user: write it", `assistant calls a look{"at":1}`, `tool a "ok"`, "user: Message \"note\" from ann:\nfirst", "user: Message \"note\" from ann:\n{\"n\":2}",
		"assistant: I am done.", `user: Message "note" from ann.`,
	}, sent[2])
	s := w.requireSameFold(run)
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	require.Empty(t, s.Head.Signals)
	require.Zero(t, s.Head.Counts.DeadLetters)
}

// The signal is sent between the last look and the publish of run.ended, which meets it: no notice comes.
func TestLoop_SignalInTheMomentOfTheEnd_Answered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	other := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	var armed, sent atomic.Bool
	f := w.fleet(func(c *publisher.Config) {
		c.Now = func() time.Time {
			if armed.Load() && !sent.Load() {
				if all := names(w.log("r1")); all[len(all)-1] == schema.TurnAnswered && sent.CompareAndSwap(false, true) {
					signalTo(t, other, "s1", `"wait"`)
				}
			}
			return time.Now()
		}
	})
	run := start(t, f, "r1")
	m := new(scripted)
	armed.Store(true)
	require.NoError(t, publisher.Loop{Model: m.model}.Work(t.Context(), run))
	require.True(t, sent.Load())
	require.Equal(t, []string{"run.started", "turn.started", "turn.answered", "signal.sent", "turn.started", "turn.answered", "run.ended"}, names(w.log("r1")))
	require.Empty(t, w.requireSameFold(run).Head.Signals)
}

func TestLoop_TakenOverWithinTheTurn_SignalsAreInItOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	signalTo(t, f, "s1", `"first"`)
	ctx, die := context.WithCancel(t.Context())
	err := publisher.Loop{Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		die()
		return publisher.Answer{}, errors.New("dead")
	}}.Work(ctx, run)
	require.Error(t, err)
	require.EqualValues(t, 1, run.Head().Signals[0].Turn)
	signalTo(t, f, "s2", `"second"`)

	m := new(scripted)
	second := resume(t, w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }), "r1")
	require.NoError(t, publisher.Loop{Model: m.model}.Work(t.Context(), second))
	require.Equal(t, []string{"turn 1: s1: 2 messages", "turn 1: s1 s2: 3 messages"}, toldIn(w.log("r1")))
	require.Equal(t, [][]string{{"user: write it", "user: Message \"note\" from ann:\nfirst", "user: Message \"note\" from ann:\nsecond"}}, m.sent())
	s := w.requireSameFold(second)
	require.Len(t, s.Conversation(), 4)
	require.Empty(t, s.Head.Signals)
}

func TestLoop_SignalBehindTheCompletionTool_AnsweredAndCompletedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	m := &scripted{answers: map[int32]publisher.Answer{
		1: calls(call("a", "submit", `{"result":"1"}`)), 3: calls(call("b", "submit", `{"result":"2"}`)),
	}}
	loop := publisher.Loop{Complete: "submit", Tools: []publisher.Tool{submit()}, Model: func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 1 {
			signalTo(t, f, "s1", `"make it 2"`)
		}
		return m.model(ctx, request)
	}}
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, []string{"turn 2: s1: 1 messages"}, toldIn(w.log("r1")))
	last := m.sent()[2]
	require.Equal(t, "user: You answered without calling a tool. Continue the work, or call submit if it is done.", last[len(last)-1], "turn 2 has no reminder, turn 3 has")
	s := w.requireSameFold(run)
	require.Equal(t, `"2"`, string(s.Ended.Output))
}

// At a limit no turn is left: the run ends as it would, and what was not consumed is told.
func TestLoop_SignalAtALimit_EndsAndTellsWhatIsUnread(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]publisher.Answer{
		"completed": {Message: assistant(schema.Text("I am done."))},
		"failed":    calls(call("a", "look", `{"at":1}`)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			f := w.fleet()
			run := start(t, f, "r1")
			m := &scripted{answers: map[int32]publisher.Answer{1: answer}}
			loop := publisher.Loop{MaxTurns: 1, Tools: []publisher.Tool{look(nil)}, Model: func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
				if request.Turn == 1 {
					signalTo(t, f, "s1", "1")
				}
				return m.model(ctx, request)
			}}
			require.NoError(t, loop.Work(t.Context(), run))
			require.Empty(t, toldIn(w.log("r1")))
			result, err := f.Result(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, name, string(result.Status))
			require.Len(t, result.Unread, 1)
			require.Equal(t, "s1", result.Unread[0].SignalID)
		})
	}
}

// A turn that a limit ends before its answer has told the model nothing: its signal is not consumed, and the result says so.
func TestLoop_LimitBeforeTheAnswerToASignal_EndsAndTellsItIsUnread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	signalTo(t, f, "s1", "1")
	ctx, die := context.WithCancel(t.Context())
	err := publisher.Loop{Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		die()
		return publisher.Answer{}, errors.New("dead")
	}}.Work(ctx, run)
	require.Error(t, err)
	second := resume(t, w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }), "r1")
	require.NoError(t, publisher.Loop{MaxTime: time.Nanosecond, Model: new(scripted).model}.Work(t.Context(), second))
	require.Equal(t, []string{"turn 1: s1: 2 messages"}, toldIn(w.log("r1")))
	all := names(w.log("r1"))
	require.Equal(t, []string{schema.TurnEnded, schema.TurnStarted, schema.TurnAnswered, schema.RunEnded}, all[max(len(all)-4, 0):])
	result, err := f.Result(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, result.Unread, 1)
	require.Equal(t, "s1", result.Unread[0].SignalID)
	w.requireSameFold(second)
}

// A turn that ends in an error, or that another turn comes after, has no answer: its signals are not consumed, and a later turn takes them.
func TestTurn_SignalsAndNoAnswer_ALaterTurnTakesThem(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*testing.T, *publisher.Turn) error{
		"ended in an error": func(t *testing.T, turn *publisher.Turn) error {
			t.Helper()
			return turn.End(t.Context(), publisher.TurnEnd{Error: &schema.Error{Type: "model", Message: "gone"}})
		},
		"left for the next": func(t *testing.T, turn *publisher.Turn) error {
			t.Helper()
			next, err := turn.Run().StartTurn(t.Context(), publisher.TurnSpec{Number: 2})
			if err == nil {
				_, err = next.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("of something else"))})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			f := w.fleet()
			run := start(t, f, "r1")
			signalTo(t, f, "s1", "1")
			require.NoError(t, run.Sync(t.Context()))
			turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Signals: []string{"s1"}})
			require.NoError(t, err)
			require.NoError(t, over(t, turn))
			require.ErrorIs(t, run.End(t.Context(), publisher.RunEnd{NoSignals: true}), publisher.ErrSignalled)
			next, err := run.StartTurn(t.Context(), publisher.TurnSpec{Signals: []string{"s1"}})
			require.NoError(t, err)
			_, err = next.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("heard"))})
			require.NoError(t, err)
			require.NoError(t, run.End(t.Context(), publisher.RunEnd{NoSignals: true}))
			s := w.requireSameFold(run)
			require.Empty(t, s.Head.Signals)
			require.NotEmpty(t, s.Signals[0].ConsumedAt)
			require.Equal(t, next.Number(), s.Signals[0].Turn)
			require.Zero(t, s.Head.Counts.DeadLetters)
		})
	}
}

// One turn tells of so many signals that they fit; the next ones come behind its answer.
func TestLoop_LargeSignals_ToldInSeveralTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	for _, id := range []string{"s1", "s2", "s3"} {
		signalTo(t, f, id, `"`+strings.Repeat(id, 30<<10)+`"`)
	}
	require.NoError(t, run.Sync(t.Context()))
	require.NoError(t, publisher.Loop{Model: new(scripted).model}.Work(t.Context(), run))
	require.Equal(t, []string{"turn 1: s1 s2: 3 messages", "turn 2: s3: 1 messages"}, toldIn(w.log("r1")))
}

// A run that waits for a person without an executor is claimed for the signal, and goes on to wait.
func TestLoop_SignalToARunThatWaits_ToldBehindTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{Decision: schema.DecisionAsk, Reason: "because"}, nil
		}
	})
	e := serveRuns(t, f, nil, func(s *publisher.ExecutorSpec) {
		s.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{look(nil)}}}
		s.WaitDetached, s.Capacity = true, 1
	})
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.Equal(t, publisher.OutcomeWaiting, e.outcome(t, "r1").outcome)
	for i := range 4 { // more than the claims without progress of a quarantine
		signalTo(t, f, fmt.Sprint("s", i), "1")
		require.Equal(t, publisher.OutcomeWaiting, e.outcome(t, "r1").outcome)
	}
	head, err := f.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, head.Signals, 4)
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.NoError(t, f.Input(t.Context(), "r1", publisher.Input{InterruptID: head.Interrupts[0].InterruptID, EventID: head.Interrupts[0].Position.ID, Payload: raw(`{"decision":"allow"}`)}))
	require.Equal(t, publisher.OutcomeCompleted, e.outcome(t, "r1").outcome)
	require.Equal(t, []string{"turn 2: s0 s1 s2 s3: 4 messages"}, toldIn(w.log("r1")))
}
