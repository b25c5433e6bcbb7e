package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Redaction and Submit: the same spec again is the same run.
func TestLoop_Redaction_SubmitTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(redacting)
	spec := publisher.RunSpec{ID: "r1", Task: "use " + canary, Labels: map[string]string{"password": "x", "team": "blue"}}
	require.NoError(t, submitOnly(t.Context(), f, spec))
	require.NoError(t, submitOnly(t.Context(), f, spec))
}

func stack() string {
	b := make([]byte, 16<<10)
	return string(b[:runtime.Stack(b, false)])
}

// An answer whose text is large is the run's summary.
func TestLoop_LargeAnswer_IsTheSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	text := strings.Repeat("words ", 60<<10)
	m := &scripted{answers: map[int32]publisher.Answer{1: {Message: assistant(schema.Text(text))}}}
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, publisher.Loop{Model: m.model}.Work(t.Context(), run))
	result, err := f.Result(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, result.Summary, len(text))
}

// A6b. A tool whose error is no UTF-8 or large.
func TestLoop_ErrorsOfTools_AreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	for name, text := range map[string]string{"utf8": "caf\xe9", "large": strings.Repeat("x", 3<<20), "empty": "", "nul": "a\x00b\x1b[2J"} {
		m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "shell", `{}`))}}
		shell := publisher.NewTool("shell", "", publisher.Hold, func(context.Context, struct{}) (string, error) { return "", errors.New(text) })
		run := start(t, f, "r"+name)
		err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{shell}}.Work(t.Context(), run)
		if err != nil {
			t.Errorf("%s: %.300v", name, err)
		}
		require.Equal(t, schema.OutcomeFailed, run.State().Calls[0].Outcome, name)
	}
}

// The loop goes on with the same handle: after a model's error, and adopted by another executor.
func TestLoop_SameHandle_Continues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	down := true
	m := new(scripted)
	model := func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		if down {
			return publisher.Answer{}, publisher.Permanent(errors.New("down"))
		}
		return m.model(ctx, r)
	}
	loop := publisher.Loop{Model: model}
	run := start(t, w.fleet(), "r1")
	require.ErrorContains(t, loop.Work(t.Context(), run), "down")
	down = false
	require.NoError(t, loop.Work(t.Context(), run))
}

func TestLoop_AdoptedDuringModelCall_Continues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	asked := make(chan struct{})
	first := publisher.Loop{Model: func(ctx context.Context, _ publisher.ModelRequest) (publisher.Answer, error) {
		close(asked)
		<-ctx.Done()
		return publisher.Answer{}, context.Cause(ctx)
	}}
	one := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) { spec.Loops = map[string]publisher.Loop{"coder": first} })
	two := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: new(scripted).model}}
	})
	run, err := one.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "write it"})
	require.NoError(t, err)
	<-asked
	require.NoError(t, two.Adopt(run))
	got := two.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

func TestLoop_ForkedInTheRecoveryTurn_GoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`)), 2: {Message: assistant(schema.Text("half"))}}}
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}, MaxTurns: 1}
	require.NoError(t, loop.Work(t.Context(), start(t, f, "r1")))
	loop.MaxTurns = 100
	t.Log(names(w.log("r1")))
	for n, rec := range w.log("r1") {
		_ = rec
		id := fmt.Sprint("f", n+1)
		run, err := f.Fork(t.Context(), publisher.ForkSpec{ID: id, Base: "r1", At: schema.Point{Kind: schema.PointRecord, Number: uint64(n + 1)}})
		if err != nil {
			t.Log(id, err)
			continue
		}
		fm := new(scripted)
		floop := loop
		floop.Model = fm.model
		err = floop.Work(t.Context(), run)
		h := run.Head()
		t.Logf("%s: %v, %s, limit %q, asked %d, summary %q", id, err, h.Status, h.Limit, len(fm.asked), h.Summary)
		if h.Status != schema.StatusCompleted {
			t.Errorf("fork at record %d (%s) ended as %s: %s", n+1, names(w.log("r1"))[n], h.Status, h.Summary)
		}
	}
}

// A policy that panics costs one run, not the process.
func TestLoop_APolicyPanics_TheProcessLives(t *testing.T) {
	if os.Getenv("ATTACK18_PANIC") == "" {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLoop_APolicyPanics_TheProcessLives$", "-test.v")
		cmd.Env = append(os.Environ(), "ATTACK18_PANIC=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%.1500s", out)
		return
	}
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) { panic("policy") }
	})
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{look(nil)}}}
	})
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeFailed, s.outcome(t, "r1").outcome)
}

// An agent without words: a hand-off.
func TestLoop_AcceptedHandoff_TheModelReadsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	old := start(t, f, "r1")
	turn := openTurn(t, old)
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("So far."))})
	require.NoError(t, err)
	child, err := old.Continue(t.Context(), old.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical", Remaining: []schema.HandoffRemaining{{File: "a.go", Description: "mend a.go"}}}), publisher.RunSpec{})
	require.NoError(t, err)
	m := new(scripted)
	err = publisher.Loop{Model: m.model}.Work(t.Context(), child)
	t.Log(err, m.sent())
	require.NotEmpty(t, m.sent()[0], "the model is asked without a word")
}

// The result of a type that cannot be written as JSON is found before the tool has its effect.
func TestLoop_TypesOfResults_AreRefusedByValidate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", `{}`))}}
	type took struct{ Took time.Duration }
	sent := 0
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{publisher.NewTool("mail", "", publisher.Hold, func(context.Context, struct{}) (took, error) { sent++; return took{time.Second}, nil })}}
	if loop.Validate() != nil {
		return
	}
	require.NoError(t, loop.Work(t.Context(), start(t, w.fleet(), "r1")))
	said := m.sent()[1]
	require.NotContains(t, said[len(said)-1], "error", "sent %d times, and the model reads that it failed", sent)
}

// A call recorded as pure, begun as hold by a stricter version, in doubt, settled as rerun, run by the older version: once.
func TestLoop_StricterThenLooser_ARerunRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", ``))}}
	loop := func(policy schema.Replay, f func(ctx context.Context) error) publisher.Loop {
		return publisher.Loop{Model: m.model, Tools: []publisher.Tool{publisher.NewTool("mail", "", policy, func(ctx context.Context, _ struct{}) (string, error) { return "", f(ctx) })}}
	}
	// Recorded as pure; dies before it begins: the answer is stored and the executor is gone.
	ctx, die := context.WithCancel(t.Context())
	first := loop(publisher.Pure, nil)
	model := first.Model
	first.Model = func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) { return model(ctx, r) }
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	answer, _ := m.model(ctx, publisher.ModelRequest{Turn: 1})
	answer.Message = assistant(schema.CallPart("a", "mail"))
	answer.Calls[0].Replay = publisher.Pure
	_, err = turn.Answer(ctx, answer)
	require.NoError(t, err)
	// The stricter version, in the same epoch, dies in it.
	sent := 0
	strict := loop(publisher.Hold, func(context.Context) error { sent++; die(); return context.Canceled })
	require.Error(t, strict.Work(ctx, run))
	require.Equal(t, 1, sent)
	f := w.fleet()
	run = resume(t, f, "r1")
	// The older version.
	looser := loop(publisher.Pure, func(context.Context) error { sent++; return publisher.Retryable(errors.New("busy")) })
	held, ok := errors.AsType[*publisher.HeldError](looser.Work(t.Context(), run))
	require.True(t, ok)
	require.Equal(t, 1, sent)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
	require.NoError(t, looser.Work(t.Context(), run))
	require.Equal(t, 2, sent, "a person let a hold call run once more, and it ran three times")
}

// Compact fails once.
func TestLoop_CompactFailsOnce_Retries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	n := 0
	model := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		a := calls(call("a", "look", `{"at":1}`))
		if r.Turn >= 2 {
			a = publisher.Answer{Message: assistant(schema.Text("done"))}
		}
		a.Usage = &schema.Usage{InputTokens: 840}
		return a, nil
	}
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: model, Tools: []publisher.Tool{look(nil)}, Window: 1000, Compact: func(context.Context, *publisher.Run, []schema.Message) (string, error) {
			if n++; n == 1 {
				return "", errors.New("the summary model is busy")
			}
			return "so far", nil
		}}}
	})
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

// Result while the run is reopened again and again: a status that is no end is no result.
func TestResult_RunReopened_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Summary: "one"}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var all sync.WaitGroup
	var bad atomic.Int64
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := f.Result(ctx, "r1")
				if err == nil && (!r.Status.Terminal() || r.Summary == "") {
					bad.Add(1)
					t.Logf("%+v", r)
					return
				}
			}
		})
	}
	for ctx.Err() == nil {
		run, err := f.Resume(ctx, "r1", publisher.ResumeSpec{Reason: "reopen"})
		if err == nil {
			_ = run.End(ctx, publisher.RunEnd{Summary: "one"})
		}
	}
	all.Wait()
	require.Zero(t, bad.Load())
}

// Hold calls with the same id, one in doubt, over two turns.
func TestLoop_DuplicateIDsAcrossTurns_Distinct(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{
		1: calls(call("a", "mail", `{"at":1}`), call("a", "mail", `{"at":2}`), call("a", "mail", `{"at":1}`)),
		2: calls(call("a", "mail", `{"at":1}`), call("a", "mail", `{"at":2}`)),
	}}
	for die := range 6 {
		id := fmt.Sprint("r", die)
		effects := map[string]int{}
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		mail := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, in place) (string, error) {
			inv := publisher.InvocationOf(ctx)
			effects[inv.IdempotencyKey]++
			if n++; n == die {
				cancel()
				return "", context.Canceled
			}
			return fmt.Sprint("sent ", in.At), nil
		})
		loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}
		f := w.fleet()
		run := start(t, f, id)
		err := loop.Work(ctx, run)
		for range 5 {
			if err == nil {
				break
			}
			run = resume(t, w.fleet(), id)
			err = loop.Work(t.Context(), run)
			if held, ok := errors.AsType[*publisher.HeldError](err); ok {
				_, err = f.Settle(t.Context(), id, schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledDecided, Result: raw(`"by hand"`), By: "ann"})
				require.NoError(t, err)
				require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
				err = loop.Work(t.Context(), run)
			}
		}
		require.NoError(t, err)
		require.Len(t, effects, 5)
		for k, v := range effects {
			require.Equal(t, 1, v, k)
		}
		w.requireSameFold(run)
	}
}

// A start in the future, RunSpec.MaxTurns.
func TestLoop_Task_StartsRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "future", Task: "x"})
	require.NoError(t, err)
	t.Log(publisher.Loop{Model: new(scripted).model, MaxTime: time.Minute}.Work(t.Context(), run), run.Head().Status)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`)), 2: calls(call("a", "look", `{"at":1}`))}}
	run, err = f.Start(t.Context(), publisher.RunSpec{ID: "turns", Task: "x", MaxTurns: 1})
	require.NoError(t, err)
	require.NoError(t, publisher.Loop{Model: m.model, MaxTurns: 5, Tools: []publisher.Tool{look(nil)}}.Work(t.Context(), run))
	require.Len(t, m.asked, 2)
	require.Equal(t, schema.LimitTurns, run.Head().Limit)
}

// A hold tool is denied, or its executor leaves, and another Concurrent hold tool of the same turn times out.
func TestLoop_ConcurrentHoldTools_OneTimesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", `{"at":1}`), call("b", "mail", `{"at":2}`), call("c", "mail", `{"at":3}`))}}
	var sent [4]atomic.Int64
	mail := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, in place) (string, error) {
		if sent[in.At].Add(1); in.At == 2 {
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
		return "sent", nil
	})
	mail.Timeout, mail.Concurrent = 50*time.Millisecond, true
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}
	err := loop.Work(t.Context(), start(t, w.fleet(), "r1"))
	require.ErrorIs(t, err, publisher.ErrHeld)
	f := w.fleet()
	run := resume(t, f, "r1")
	held, ok := errors.AsType[*publisher.HeldError](loop.Work(t.Context(), run))
	require.True(t, ok)
	require.Equal(t, "b", held.Key.ToolCallID)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledDecided, Result: raw(`1`), By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
	require.NoError(t, loop.Work(t.Context(), run))
	for i := 1; i < 4; i++ {
		require.EqualValues(t, 1, sent[i].Load())
	}
}
