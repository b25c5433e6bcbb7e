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

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Submit whose second event was not sent; submitting again lets the run go.
func TestSubmit_FailsBetweenItsEvents_AgainLetsItGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	var on atomic.Bool
	f := w.fleet(func(c *publisher.Config) {
		c.Now = func() time.Time {
			if on.Load() && n.Add(1) >= 2 && !strings.Contains(stack(), "heartbeat") {
				cancel()
			}
			return time.Now()
		}
	})
	on.Store(true)
	spec := publisher.RunSpec{ID: "r1", Task: "write it"}
	_, err := f.Submit(ctx, spec)
	t.Log(err, n.Load(), names(w.log("r1")))
	require.Error(t, err)
	require.Equal(t, []string{"run.started"}, names(w.log("r1")))
	require.NoError(t, submitOnly(t.Context(), f, spec))
	require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status, "no executor can claim it while this process lives")
}

// A hold tool whose result is no JSON had its effect all the same.
func TestResult_OfAHoldToolIsNoText_TheModelIsNotToldThatItFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "shell", `{}`))}}
	sent := 0
	shell := publisher.NewTool("shell", "", publisher.Hold, func(context.Context, struct{}) (string, error) { sent++; return "caf\xe9", nil })
	run := start(t, w.fleet(), "r1")
	err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{shell}}.Work(t.Context(), run)
	require.Equal(t, 1, sent)
	if err == nil {
		said := m.sent()[1]
		require.NotContains(t, said[len(said)-1], "error", "the model is invited to do it again")
	}
}

// Answers of all kinds: a run must not die by them.
func TestLoop_Answers_Recorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	text := func(s string) publisher.Answer { return publisher.Answer{Message: assistant(schema.Text(s))} }
	many := func(n int) (a publisher.Answer) {
		for i := range n {
			a.Calls = append(a.Calls, call(fmt.Sprint("c", i), "look", `{"at":1}`))
		}
		return a
	}
	for name, answer := range map[string]publisher.Answer{
		"empty":        {},
		"emptytext":    text(""),
		"utf8":         text("caf\xe9"),
		"control":      text("\x00\x1b"),
		"longid":       calls(call(strings.Repeat("i", 10<<10), "look", `{"at":1}`)),
		"controlid":    calls(call("a\nb", "look", `{"at":1}`)),
		"utf8id":       calls(call("a\xff", "look", `{"at":1}`)),
		"noname":       calls(call("a", "", `{"at":1}`)),
		"longname":     calls(call("a", strings.Repeat("n", 10<<10), `{"at":1}`)),
		"user":         {Message: user("I am a user")},
		"1025":         many(1025),
		"huge":         text(strings.Repeat("words ", 1<<18)),
		"usage":        {Message: assistant(schema.Text("a")), Usage: &schema.Usage{InputTokens: -5}},
		"partnocall":   {Message: assistant(schema.CallPart("zz", "look"))},
		"callnopart":   {Message: assistant(schema.Text("b")), Calls: []publisher.ToolCall{call("a", "look", `{"at":1}`), call("a", "look", `{"at":2}`)}},
		"source":       {Message: assistant(schema.Text("b")), Source: []byte(`{"a":`)},
		"finish":       {Message: assistant(schema.Text("b")), FinishReasons: []string{"stop\x00"}},
		"policy":       calls(publisher.ToolCall{ID: "a", Name: "fly", Replay: "never", Arguments: raw(`{}`)}),
		"verifyunkown": calls(publisher.ToolCall{ID: "a", Name: "fly", Replay: schema.ReplayVerify, Arguments: raw(`{}`)}),
		"key":          calls(publisher.ToolCall{ID: "a", Name: "look", IdempotencyKey: strings.Repeat("k", 10<<10), Arguments: raw(`{"at":1}`)}),
	} {
		m := &scripted{answers: map[int32]publisher.Answer{1: answer}}
		run := start(t, f, "r"+name)
		err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}}.Work(t.Context(), run)
		t.Logf("%s: asked %d, status %s, %.300v", name, len(m.asked), run.Head().Status, err)
		if err == nil && name == "partnocall" {
			t.Log(m.sent())
		}
		if err != nil {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}

// A run that failed because the completion tool was never called is reopened.
func TestLoop_ReopenedAfterReminders_TheModelIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	m := new(scripted)
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{submit()}, Complete: "submit"}
	run := start(t, f, "r1")
	err := loop.Work(t.Context(), run)
	require.Error(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed}))
	run, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "reopen"})
	require.NoError(t, err)
	require.NoError(t, run.AddMessage(t.Context(), user("Call submit now.")))
	m.answers = map[int32]publisher.Answer{5: calls(call("a", "submit", `{"result":"x"}`))}
	require.NoError(t, loop.Work(t.Context(), run), "it fails without asking the model")
}

// A call in doubt of an earlier turn: the run is not completed over it.
func TestLoop_ACallInDoubtOfAnEarlierTurn_TheRunIsNotCompleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	old := start(t, f, "r1")
	turn := openTurn(t, old)
	ctx, die := context.WithCancel(t.Context())
	_, err := turn.Tool(ctx, publisher.ToolCall{ID: "a", Name: "mail"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		die()
		return publisher.ToolResult{}, context.Canceled
	})
	require.Error(t, err)
	require.NoError(t, old.Interrupt(t.Context(), schema.InterruptedPreempted))
	m := new(scripted)
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 0
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{look(nil)}}}
	})
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome, "the run is %s with the open calls %+v", w.fold("r1").Head.Status, w.fold("r1").Head.OpenCalls)
}

// A tool that changes its arguments in place.
func TestLoop_AToolChangesItsArguments_TheRecordStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	var given []string
	tool := publisher.Tool{Name: "look", Replay: publisher.Pure, Run: func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		given = append(given, string(inv.Arguments))
		copy(inv.Arguments, `{"xx":9}`)
		if len(given) < 2 {
			return publisher.ToolResult{}, publisher.Retryable(errors.New("busy"))
		}
		return publisher.Result("x")
	}}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{tool}}.Work(t.Context(), run))
	said := m.sent()[1]
	t.Log(given, said)
	w.requireSameFold(run)
	require.Equal(t, []string{`{"at":1}`, `{"at":1}`}, given)
}

func TestLoop_ArgumentTypes_Decoded(t *testing.T) {
	w := newWorld(t)
	tryType[struct {
		V time.Duration `json:"v"`
	}](t, w, "duration", `{"v":1000}`, `{"v":"1s"}`)
	tryType[struct {
		V []byte `json:"v"`
	}](t, w, "bytes", `{"v":"aGVsbG8="}`, `{"v":[1,2]}`)
	tryType[struct {
		V time.Time `json:"v"`
	}](t, w, "time", `{"v":"2026-01-02T03:04:05Z"}`)
	tryType[struct {
		V int `json:"v,string"`
	}](t, w, "string", `{"v":"5"}`, `{"v":5}`)
	tryType[struct {
		V jsontext.Value `json:"v"`
	}](t, w, "value", `{"v":{"a":1}}`, `{"v":[1]}`)
	tryType[struct {
		V [4]byte `json:"v"`
	}](t, w, "array", `{"v":[1,2,3,4]}`, `{"v":"aGVsbA=="}`)
	tryType[struct {
		V map[string]any `json:"v"`
	}](t, w, "map", `{"v":{"a":1}}`)
	tryType[map[string]int](t, w, "mapint", `{"v":1}`)
	tryType[struct{ place }](t, w, "embedded", `{"at":1}`, `{"place":{"at":1}}`)
	tryType[struct {
		V uint8 `json:"v"`
	}](t, w, "uint8", `{"v":5}`)
	tryType[struct {
		V *int `json:"v"`
	}](t, w, "ptr", `{"v":5}`)
	tryType[struct {
		V int `json:"v,omitempty,case:ignore"`
	}](t, w, "ignore", `{"v":5}`)
	tryType[struct {
		Place place `json:",inline"`
	}](t, w, "inline", `{"at":5}`, `{"Place":{"at":5}}`)
	tryType[struct {
		V int                       `json:"v"`
		X map[string]jsontext.Value `json:",embed"`
	}](t, w, "embed", `{"v":5}`)
}

// A hold tool times out; its late outcome, a takeover at the same time, two executors.
func TestLoop_TimeoutAndTakeover_TheEffectIsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", ``), call("a", "mail", ``))}}
	var sent atomic.Int64
	in := make(chan struct{}, 10)
	mail := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) {
		sent.Add(1)
		in <- struct{}{}
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	mail.Timeout = 100 * time.Millisecond
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}
	run := start(t, w.fleet(), "r1")
	done := make(chan error, 1)
	go func() { done <- loop.Work(t.Context(), run) }()
	<-in
	var all sync.WaitGroup
	for i := range 2 {
		f := w.fleet(func(c *publisher.Config) { c.Executor = fmt.Sprint("exec-", i+2) })
		all.Go(func() {
			run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "restart"})
			if err == nil {
				err = loop.Work(t.Context(), run)
			}
			t.Log(i, err)
		})
	}
	all.Wait()
	t.Log(<-done)
	require.EqualValues(t, 1, sent.Load())
}

// Shutdown and cancellation in each phase leave no goroutine.
func TestLoop_ModelPanics_RunFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	for _, where := range []string{"model", "compact"} {
		n := 0
		loop := publisher.Loop{Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
			if n++; where == "model" {
				panic("oh")
			}
			a := calls(call("a", "look", `{"at":1}`))
			a.Usage = &schema.Usage{InputTokens: 900}
			return a, nil
		}, ModelTimeout: time.Second, Tools: []publisher.Tool{look(nil)}, Window: 1000, Compact: func(context.Context, *publisher.Run, []schema.Message) (string, error) { panic("no") }}
		s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) { spec.Loops = map[string]publisher.Loop{"coder": loop} })
		begin(t, s, "r"+where)
		got := s.outcome(t, "r"+where)
		t.Log(got.outcome, got.err, n)
		require.Equal(t, publisher.OutcomeFailed, got.outcome)
	}
}

// Cancelled in the model, which answers all the same.
func TestLoop_CancelledDuringModelCall_Ends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	ctx, die := context.WithCancel(t.Context())
	model := func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		die()
		return calls(call("a", "mail", `{}`)), nil
	}
	sent := 0
	mail := publisher.NewTool("mail", "", publisher.Hold, func(context.Context, struct{}) (string, error) { sent++; return "sent", nil })
	run := start(t, w.fleet(), "r1")
	err := publisher.Loop{Model: model, Tools: []publisher.Tool{mail}}.Work(ctx, run)
	t.Log(err, sent, names(w.log("r1")))
	require.Error(t, err)
	require.Zero(t, sent)
}

// Tools of an answer that ran before a version with other names: what was recorded stays; what is open is settled.
func TestLoop_ToolsRenamed_Reported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`), call("a", "mail", `{"at":1}`), call("a", "look", `{"at":2}`), call("b", "mail", `{"at":2}`))}}
	ctx, die := context.WithCancel(t.Context())
	n := 0
	mail := publisher.NewTool("mail", "", publisher.Hold, func(context.Context, place) (string, error) {
		n++
		die()
		return "", context.Canceled
	})
	require.Error(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil), mail}}.Work(ctx, start(t, w.fleet(), "r1")))
	f := w.fleet()
	run := resume(t, f, "r1")
	send := publisher.NewTool("send", "", publisher.Pure, func(context.Context, place) (string, error) { n++; return "", nil })
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{send}}
	err := loop.Work(t.Context(), run)
	held, ok := errors.AsType[*publisher.HeldError](err)
	require.True(t, ok, "%v", err)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
	err = loop.Work(t.Context(), run)
	t.Log(err, n, m.sent()[1])
	require.Equal(t, 1, n)
}

// Shutdown while a pure tool is between two tries, and while the model is.
func TestLoop_ShutdownInPause_Stops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for _, where := range []string{"model", "tool"} {
		in := make(chan struct{}, 10)
		m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
		var n atomic.Int64
		loop := publisher.Loop{Model: func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
			if where == "model" {
				in <- struct{}{}
				return publisher.Answer{}, errors.New("busy")
			}
			return m.model(ctx, r)
		}, ToolTries: 20, Tools: []publisher.Tool{look(func(context.Context, int) (string, error) {
			if n.Add(1) == 1 {
				in <- struct{}{}
			}
			return "", publisher.Retryable(errors.New("busy"))
		})}}
		s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) { spec.Loops = map[string]publisher.Loop{"coder": loop} })
		begin(t, s, "r"+where)
		<-in
		began := time.Now()
		require.NoError(t, s.stop())
		got := s.outcome(t, "r"+where)
		t.Log(where, got.outcome, got.err, time.Since(began), names(w.log("r"+where)))
		require.Equal(t, publisher.OutcomeInterrupted, got.outcome)
	}
}

// A run that asks for a tool which the loop has not is given back: an executor that has it can complete it.
func TestLoop_RunAsksForACompletionToolItHasNot_GivesTheRunBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{}
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model}}
	})
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Complete: "submit"})
	require.NoError(t, err)
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeInterrupted, got.outcome)
	require.ErrorContains(t, got.err, "add this tool to the loop")
	require.Empty(t, m.sent(), "the model is not asked")
	require.Equal(t, []string{"run.started", "error.raised", "run.interrupted"}, names(w.log("r1")))
}

// The executor dies between limit.reached and the recovery turn, in an open turn.
func TestLoop_DiesAroundLimit_Continues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for _, at := range []string{schema.LimitReached, schema.TurnStarted, "turn.ended"} {
		id := "r" + strings.ReplaceAll(at, ".", "")
		f := w.fleet()
		run := start(t, f, id)
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("write it")}})
		require.NoError(t, err)
		require.NoError(t, run.Limit(t.Context(), schema.LimitTime, 1, 1))
		if at != schema.LimitReached {
			require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
		}
		if at == schema.TurnStarted {
			_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Purpose: schema.PurposeRecovery, Messages: []schema.Message{user("sum up")}})
			require.NoError(t, err)
		}
		m := new(scripted)
		run = resume(t, w.fleet(), id)
		require.NoError(t, publisher.Loop{Model: m.model}.Work(t.Context(), run))
		h := w.requireSameFold(run).Head
		t.Log(at, h.Status, h.Limit, h.Turn, m.sent())
		require.Len(t, m.asked, 1)
		require.Equal(t, schema.StatusFailed, h.Status)
	}
}
