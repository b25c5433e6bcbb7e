package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Redaction: security.md says that the tool still gets its arguments.
func TestLoop_Redaction_TheToolGetsItsArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "login", `{"password":"xyz"}`))}}
	var given string
	login := publisher.NewTool("login", "", publisher.Hold, func(_ context.Context, in struct {
		Password string `json:"password"`
	},
	) (string, error) {
		given = in.Password
		return "in", nil
	})
	run := start(t, w.fleet(redacting), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{login}}.Work(t.Context(), run))
	require.Equal(t, "xyz", given)
}

// A model that sorts the tools it was given.
func TestLoop_ModelSortsItsTools_TheRightToolRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ran []string
	tool := func(name string, p schema.Replay) publisher.Tool {
		return publisher.NewTool(name, "", p, func(context.Context, struct{}) (string, error) { ran = append(ran, name); return name, nil })
	}
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "ask", `{}`))}}
	model := func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		slices.SortFunc(r.Tools, func(a, b publisher.Tool) int { return strings.Compare(a.Name, b.Name) })
		return m.model(ctx, r)
	}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: model, Tools: []publisher.Tool{tool("delete", publisher.Hold), tool("ask", publisher.Pure)}}.Work(t.Context(), run))
	require.Equal(t, []string{"ask"}, ran)
}

// Wrong arguments, whatever they are, go back to the model.
func TestLoop_WrongArguments_GoBackToTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	for name, args := range map[string]string{
		"large string": `{"at":"` + strings.Repeat("x", 3<<20) + `"}`,
		"many members": `{"at":1,` + func() string {
			var b strings.Builder
			for i := range 20000 {
				fmt.Fprintf(&b, `"m%d":1,`, i)
			}
			return strings.TrimSuffix(b.String(), ",")
		}() + `}`,
		"deep":         `{"at":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		"number":       `{"at":1e999}`,
		"surrogate":    `{"at":"\ud800"}`,
		"twice":        `{"at":1,"at":2}`,
		"utf8":         "{\"at\":\"\xff\"}",
		"bell":         "{\"\\u0007\\u001b\":1}",
		"null":         `null`,
		"array":        `[1]`,
		"text":         `"no json"`,
		"nested text":  `"\"{}\""`,
		"large member": `{"at":1,"` + strings.Repeat("y", 300<<10) + `":1}`,
	} {
		m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", args))}}
		run := start(t, f, "r"+strings.ReplaceAll(name, " ", ""))
		err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}}.Work(t.Context(), run)
		if err != nil {
			t.Errorf("%s: %.300v", name, err)
			continue
		}
		if s := run.State(); s.Calls[0].Error == nil {
			t.Errorf("%s: no error: %+v", name, s.Calls[0])
		}
	}
}

// A run that reached a limit is reopened, to go on with more.
func TestLoop_ReopenedAfterALimit_GoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}, MaxTurns: 1}
	require.NoError(t, loop.Work(t.Context(), start(t, f, "r1")))
	require.Equal(t, schema.StatusFailed, w.fold("r1").Head.Status)
	run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "reopen"})
	require.NoError(t, err)
	loop.MaxTurns = 100
	asked := len(m.asked)
	require.NoError(t, loop.Work(t.Context(), run))
	h := w.fold("r1").Head
	t.Logf("%s %q limit %q", h.Status, h.Summary, h.Limit)
	require.Greater(t, len(m.asked), asked, "the model is asked")
}

// A message behind the last answer is shown to the model.
func TestLoop_AMessageBehindTheLastAnswer_IsShownToTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	m := new(scripted)
	loop := publisher.Loop{Model: m.model}
	run := start(t, f, "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "reopen"})
	require.NoError(t, err)
	require.NoError(t, run.AddMessage(t.Context(), user("And now in blue.")))
	require.NoError(t, loop.Work(t.Context(), run))
	require.Len(t, m.asked, 2, "the run ended again, and the model has not read what was asked")
}

// A tool that ends its goroutine: the executor has a word for that.
func TestLoop_AToolEndsItsGoroutine_TheLoopDoesNotGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", `{}`)), 2: calls(call("a", "mail", `{}`))}}
	sent := 0
	mail := publisher.NewTool("mail", "", publisher.Hold, func(context.Context, struct{}) (string, error) {
		if sent++; sent == 1 {
			runtime.Goexit()
		}
		return "sent", nil
	})
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{mail}}}
	})
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	t.Log(got.outcome, got.err, len(m.asked), w.fold("r1").Head.OpenCalls)
	require.NotEqual(t, publisher.OutcomeCompleted, got.outcome)
	require.Len(t, m.asked, 1)
}

// Types: Validate accepts the tool, and no arguments can be read.
func tryType[In any](t *testing.T, w *world, name string, args ...string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		ran := 0
		tool := publisher.NewTool("look", "", publisher.Pure, func(context.Context, In) (string, error) { ran++; return "ok", nil })
		loop := publisher.Loop{Tools: []publisher.Tool{tool}, Model: new(scripted).model}
		if err := loop.Validate(); err != nil {
			t.Log("refused:", err)
			return
		}
		var list []publisher.ToolCall
		for i, a := range args {
			list = append(list, call(fmt.Sprint("c", i), "look", a))
		}
		m := &scripted{answers: map[int32]publisher.Answer{1: calls(list...)}}
		loop.Model = m.model
		run := start(t, w.fleet(), "r"+name)
		require.NoError(t, loop.Work(t.Context(), run))
		if ran == 0 {
			said := m.sent()[1]
			t.Errorf("%s\n%s", tool.Parameters, strings.Join(said[len(said)-len(args):], "\n"))
		}
	})
}

// Runs that share one Loop value, models that write into what they were given.
func TestLoop_RunsShareALoop_NoRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	model := func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		for i := range r.Tools {
			if err := (*jsontext.Value)(&r.Tools[i].Parameters).Indent(); err != nil { // in place, for a provider
				return publisher.Answer{}, err
			}
		}
		if r.Turn > 3 {
			return publisher.Answer{Message: assistant(schema.Text("done"))}, nil
		}
		return calls(call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`)), nil
	}
	loop := publisher.Loop{Model: model, Tools: []publisher.Tool{look(nil), submit()}}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			run, err := f.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", i), Task: "x"})
			if err == nil {
				err = loop.Work(t.Context(), run)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Compaction again and again; garbage.
func TestLoop_Compaction_Replaces(t *testing.T) {
	if testing.Short() {
		t.Skip("short: summaries of 6 MiB")
	}
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for name, summary := range map[string]string{"utf8": "\xff", "large": strings.Repeat("words ", 1<<18), "control": "\x00", "blank": " ", "empty": ""} {
		n := 0
		model := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
			a := calls(call("a", "look", `{"at":1}`))
			if r.Turn >= 4 {
				a = publisher.Answer{Message: assistant(schema.Text("done"))}
			}
			a.Usage = &schema.Usage{InputTokens: 940}
			return a, nil
		}
		run := start(t, w.fleet(), "r"+name)
		err := publisher.Loop{Model: model, Tools: []publisher.Tool{look(nil)}, Window: 1000, Compact: func(context.Context, *publisher.Run, []schema.Message) (string, error) { n++; return summary, nil }}.Work(t.Context(), run)
		require.NoError(t, err, name)
		require.Equal(t, 3, n, name)
		require.Equal(t, schema.StatusCompleted, run.Head().Status, name)
	}
}

// A13b. A call in doubt of an earlier turn than the latest.
func TestLoop_EarlierTurnCallInDoubt_Settled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	for _, complete := range []string{"", "submit"} {
		for _, limit := range []time.Duration{0, 1} {
			for _, how := range []schema.Settlement{"", schema.SettledRerun} {
				id := fmt.Sprint("r", complete, int(limit), how)
				old := start(t, f, id)
				turn := openTurn(t, old)
				ctx, die := context.WithCancel(t.Context())
				_, err := turn.Tool(ctx, publisher.ToolCall{ID: "a", Name: "mail"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
					die()
					return publisher.ToolResult{}, context.Canceled
				})
				require.Error(t, err)
				require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
				run := resume(t, f, id)
				if how != "" {
					_, err = f.Settle(t.Context(), id, schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, CallEpoch: attempt(t, f, id, schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}), How: how, By: "ann"})
					require.NoError(t, err)
				}
				m := &scripted{answers: map[int32]publisher.Answer{}}
				if complete != "" {
					m.answers[2] = calls(call("x", "submit", `{"result":"x"}`))
				}
				ran := 0
				mail := publisher.NewTool("mail", "", publisher.Hold, func(context.Context, struct{}) (string, error) { ran++; return "sent", nil })
				err = publisher.Loop{Model: m.model, Tools: []publisher.Tool{submit(), mail}, Complete: complete, MaxTime: limit}.Work(t.Context(), run)
				h := w.fold(id).Head
				t.Logf("%s: %.80v: %s, asked %d, mailed %d, open %+v", id, err, h.Status, len(m.asked), ran, h.OpenCalls)
				if h.Status == schema.StatusCompleted && len(h.OpenCalls) > 0 || how == schema.SettledRerun && ran == 0 {
					t.Errorf("%s: the run is %s over a call that is open, run %d times", id, h.Status, ran)
				}
			}
		}
	}
}

// A hold call whose tool fails after its time with an outcome of its own, and one that returns late.
func TestLoop_HoldToolLateOutcome_Adopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for name, f := range map[string]func(ctx context.Context) (string, error){
		"late":    func(ctx context.Context) (string, error) { <-ctx.Done(); return "sent", nil },
		"panic":   func(ctx context.Context) (string, error) { <-ctx.Done(); panic("late") },
		"own":     func(ctx context.Context) (string, error) { <-ctx.Done(); return "", errors.New("no") },
		"retry":   func(ctx context.Context) (string, error) { return "", publisher.Retryable(errors.New("no")) },
		"timeout": func(ctx context.Context) (string, error) { return "", context.DeadlineExceeded },
	} {
		m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", `{}`), call("a", "mail", `{}`))}}
		sent := 0
		mail := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) { sent++; return f(ctx) })
		mail.Timeout = 30 * time.Millisecond
		run := start(t, w.fleet(), "r"+name)
		err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}.Work(t.Context(), run)
		var said []string
		if len(m.sent()) > 1 {
			said = m.sent()[1]
		}
		t.Logf("%s: %.90v, sent %d, %v", name, err, sent, said)
	}
}

// A tool's own time is over inside the time of the loop: an HTTP client. The effect is not known.
func TestLoop_AHoldToolsOwnTimeout_IsNotAFailureToRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", `{}`))}}
	mail := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		<-ctx.Done() // the request was sent, the answer is late
		return "", ctx.Err()
	})
	mail.Timeout = time.Minute
	err := publisher.Loop{Model: m.model, Tools: []publisher.Tool{mail}}.Work(t.Context(), start(t, w.fleet(), "r1"))
	if err == nil {
		said := m.sent()[1]
		require.NotContains(t, said[len(said)-1], `"retryable":true`, "the model is told to send the letter again")
	}
}

// Submit of a run that is cancelled, quarantined or removed; a submitted run that the same process claims.
func TestSubmit_RemovedRun_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	spec := publisher.RunSpec{ID: "r1", Task: "write it"}
	require.NoError(t, submitOnly(t.Context(), f, spec))
	w.control("r1", 1, &schema.RunCancelRequestedData{Reason: "stop"})
	require.NoError(t, submitOnly(t.Context(), f, spec))
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 0
		spec.Loops = map[string]publisher.Loop{"coder": {Model: new(scripted).model}}
	})
	require.NoError(t, submitOnly(t.Context(), f, publisher.RunSpec{ID: "r2", Task: "x"}))
	for range 2 {
		select {
		case got := <-s.outcomes:
			t.Log(got.run, got.outcome, got.err)
		case <-time.After(20 * time.Second):
			t.Fatal("no executor claims it")
		}
	}
	result, err := f.Result(t.Context(), "r1")
	t.Logf("%+v %v", result, err)
}

// The reminders of a run whose turns were answered by other code count.
func TestLoop_TurnsOfOtherCode_NotReminders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	old := start(t, f, "r1")
	for range 5 { // a chat without calls
		turn := openTurn(t, old)
		_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("Yes."))})
		require.NoError(t, err)
	}
	m := &scripted{answers: map[int32]publisher.Answer{6: calls(call("a", "submit", `{"result":"x"}`))}}
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{submit()}, Complete: "submit"}.Work(t.Context(), resume(t, f, "r1")))
}

func submitOnly(ctx context.Context, f *publisher.Fleet, spec publisher.RunSpec) error {
	_, err := f.Submit(ctx, spec)
	return err
}
