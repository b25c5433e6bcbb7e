package waymarktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

// Before the wait's event, after it, after its expiry, after the claim: each step of a wait is a crash point, in work of
// one's own and in a tool of a loop.
func TestSleep_CrashAtEachStep_WaitsOnce(t *testing.T) {
	t.Parallel()
	waits := func(t *testing.T, state *schema.State) {
		t.Helper()
		require.Len(t, state.Waits, 1)
	}
	t.Run("work", func(t *testing.T) {
		t.Parallel()
		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
			return func(ctx context.Context, run *publisher.Run) error {
				if err := run.Sleep(ctx, "an-hour", time.Now().Add(time.Hour)); err != nil {
					return err
				}
				waits(t, run.State())
				_, err := run.Phase(ctx, "after", func(ctx context.Context) (any, error) {
					return nil, out.Once(ctx, run.ID(), "after the hour")
				})
				return err
			}
		})
	})
	t.Run("tool", func(t *testing.T) {
		t.Parallel()
		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
			return mailer(publisher.NewTool("send_mail", "Sends a mail in an hour.", publisher.Idempotent, func(ctx context.Context, in mail) (string, error) {
				inv := publisher.InvocationOf(ctx)
				if err := inv.Run().Sleep(ctx, "", time.Now().Add(time.Hour)); err != nil {
					return "", err
				}
				waits(t, inv.Run().State())
				return "sent", out.Once(ctx, inv.IdempotencyKey, "mail to "+in.To)
			}), out).Work
		})
	})
}

// Runs that sleep until the same time need no executor until then, and do not all wake at once.
func TestSleep_ManyRuns_WakeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const runs = 60
	w := waymarktest.Start(t)
	until := w.Now().Add(time.Hour)
	e := w.Serve("ex-1", publisher.ExecutorSpec{
		Capacity: 1, // a sleeping run takes no place
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"agent": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(ctx context.Context, run *publisher.Run) error { return run.Sleep(ctx, "night", until) }, nil
			},
		},
	}, nil)
	for n := range runs {
		_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", n), Agent: "agent"})
		require.NoError(t, err)
	}
	ended := func() (n int) {
		for n := range runs {
			w.Await(fmt.Sprint("r", n), schema.StatusWaiting, schema.StatusCompleted)
		}
		for i := range runs {
			if w.Status(fmt.Sprint("r", i)) == schema.StatusCompleted {
				n++
			}
		}
		return n
	}
	require.Zero(t, ended())
	e.Kill()
	w.Advance(time.Until(until) - time.Second)
	require.Zero(t, ended(), "it is not time yet")
	w.Advance(15 * time.Second) // of a minute of jitter
	e.Start()
	require.Eventually(t, func() bool { n := ended(); return n > 0 && n < runs }, time.Minute, 10*time.Millisecond)
	w.Advance(time.Minute)
	require.Eventually(t, func() bool { return ended() == runs }, time.Minute, 10*time.Millisecond)
	for n := range runs {
		require.Len(t, w.State(fmt.Sprint("r", n)).Takeovers, 2, "one claim for its first work, one after the wait")
	}
}

// provider is a scripted API behind HTTP, whose clock the test moves.
type provider struct {
	mu     sync.Mutex
	asked  int
	script func(n int, w http.ResponseWriter) (answers bool)
}

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.script(p.asked, w) {
		_, _ = fmt.Fprint(w, `{"id":"m","type":"message","role":"assistant","model":"m","stop_reason":"end_turn","content":[{"type":"text","text":"Done."}]}`)
	}
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// loop is an agent that asks the provider with a plain HTTP client.
func (p *provider) loop(t *testing.T) publisher.Loop {
	t.Helper()
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return publisher.Loop{Model: wire.Model(wire.Anthropic, nil, func(ctx context.Context, path string, body, response any, _ ...struct{}) error {
		sent, _ := body.([]byte)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/"+path, bytes.NewReader(sent))
		if err != nil {
			return err
		}
		got, err := server.Client().Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = got.Body.Close() }()
		text, err := io.ReadAll(got.Body)
		if err == nil && got.StatusCode != http.StatusOK {
			return wire.Error(got.StatusCode, got.Header, text)
		}
		if into, ok := response.(*[]byte); ok {
			*into = text
		}
		return err
	})}
}

// status is a script of a provider that answers with a status until a request, and then answers.
func status(code, until int, after string) func(int, http.ResponseWriter) bool {
	return func(n int, w http.ResponseWriter) bool {
		if n >= until {
			return true
		}
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		http.Error(w, "slow down", code)
		return false
	}
}

func (p *provider) serve(t *testing.T, w *waymarktest.World, name string, change func(*publisher.Loop), config func(*publisher.Config)) *waymarktest.Executor {
	t.Helper()
	loop := p.loop(t)
	if change != nil {
		change(&loop)
	}
	return w.Serve(name, publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"agent": loop}}, config)
}

// The executor is killed while the run waits, and the next one asks no earlier than the provider has said.
func TestLoop_ProviderSaysWhen_IsAskedOnceBeforeAndOnceAfter(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	p := &provider{script: status(429, 2, "600")}
	e := p.serve(t, w, "ex-1", nil, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	w.Await("r1", schema.StatusWaiting)
	require.Equal(t, 1, p.count())
	wait := w.State("r1").Head.Interrupts[0]
	require.True(t, wait.Retries())
	require.Equal(t, "429 Too Many Requests: slow down", wait.Message)
	e.Kill()
	// A message wakes another executor, which may not ask either.
	other := p.serve(t, w, "ex-2", nil, nil)
	require.NoError(t, other.Fleet().Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hurry"}))
	require.Eventually(t, func() bool { return len(w.State("r1").Takeovers) > 0 }, time.Minute, 10*time.Millisecond)
	w.Await("r1", schema.StatusWaiting)
	w.Advance(9 * time.Minute)
	require.Equal(t, schema.StatusWaiting, w.Status("r1"))
	require.Equal(t, 1, p.count())
	w.Advance(2*time.Minute + time.Second)
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
	require.Equal(t, 2, p.count())
	state := w.State("r1")
	require.Len(t, state.Errors, 1, "the failed try is in the record")
	require.Equal(t, "turn", state.Errors[0].Scope)
	require.Equal(t, schema.InputExpired, state.Waits[0].Input.Status)
}

// A few seconds are in the record, too, so an executor that takes the run over keeps to them.
func TestLoop_ProviderSaysInSeconds_RunWaits(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	p := &provider{script: status(429, 2, "5")}
	e := p.serve(t, w, "ex-1", nil, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	w.Await("r1", schema.StatusWaiting)
	require.True(t, w.State("r1").Head.Interrupts[0].Retries())
	e.Kill()
	other := p.serve(t, w, "ex-2", nil, nil)
	require.NoError(t, other.Fleet().Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hurry"}))
	require.Eventually(t, func() bool { return len(w.State("r1").Takeovers) > 1 }, time.Minute, 10*time.Millisecond)
	w.Await("r1", schema.StatusWaiting)
	require.Equal(t, 1, p.count())
	w.Advance(time.Minute)
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
	require.Equal(t, 2, p.count())
}

// Before the wait, after it, after its end and after the claim: the agent may be killed anywhere.
func TestLoop_ProviderFailsAndExecutorsCrashAnywhere_RunCompletes(t *testing.T) {
	t.Parallel()
	waymarktest.CrashEverywhereWith(t, waymarktest.Crash{Run: publisher.RunSpec{Task: "Send a mail."}}, func(out *waymarktest.Outside) publisher.Work {
		loop := mailer(sender(out, publisher.Hold), out)
		model := loop.Model
		loop.Model = func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
			if request.Turn == 2 && !retried(ctx, t, request) {
				return publisher.Answer{}, publisher.RetryAt(errors.New("busy"), time.Now().Add(time.Hour))
			}
			return model(ctx, request)
		}
		return func(ctx context.Context, run *publisher.Run) error { return loop.Work(withRun(ctx, run), run) }
	})
}

type runKey struct{}

func withRun(ctx context.Context, run *publisher.Run) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// retried reports whether the run has waited for this turn, and checks that it does not wait any more.
func retried(ctx context.Context, t *testing.T, request publisher.ModelRequest) bool {
	t.Helper()
	run, _ := ctx.Value(runKey{}).(*publisher.Run)
	state := run.State()
	for i := range state.Waits {
		if state.Waits[i].Input == nil {
			t.Errorf("run %s is asked for turn %d while it waits", request.Run, request.Turn)
		}
	}
	return len(state.Waits) > 0
}

// An idempotent tool names a time: the executor releases the run, and the same call runs again after it.
func TestLoop_ToolSaysWhen_RunsAgainAfterIt(t *testing.T) {
	t.Parallel()
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Idempotent, func(ctx context.Context, in mail) (string, error) {
			inv := publisher.InvocationOf(ctx)
			if len(inv.Run().State().Waits) == 0 {
				return "", publisher.RetryAt(errors.New("full"), time.Now().Add(time.Hour))
			}
			return "sent", out.Once(ctx, inv.IdempotencyKey, "mail to "+in.To)
		}), out).Work
	})
}

// Patience counts from the first try, over all takeovers, and again after a person reopened the run. The executors' clock moves by five minutes with each try;
// the daemon's is ahead, so each wait is over at once.
func TestLoop_ProviderStaysAway_FailsAfterItsPatience(t *testing.T) {
	t.Parallel()
	const step = 5 * time.Minute
	w := waymarktest.Start(t)
	w.Advance(24 * time.Hour)
	clock := &stoppedClock{at: w.Now()}
	p := &provider{script: func(_ int, rw http.ResponseWriter) bool {
		clock.move(step)
		http.Error(rw, "slow down", http.StatusServiceUnavailable)
		return false
	}}
	change := func(l *publisher.Loop) { l.ModelTries, l.Patience = 1, time.Hour }
	e := p.serve(t, w, "ex-1", change, func(c *publisher.Config) { c.Now = clock.now })
	p.serve(t, w, "ex-2", change, func(c *publisher.Config) { c.Now = clock.now })
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	require.Equal(t, schema.StatusFailed, w.Ended("r1").Status)
	state := w.State("r1")
	require.Equal(t, "no try was successful in 1h0m0s: 503 Service Unavailable: slow down", state.Ended.Error.Message)
	require.Equal(t, 12, p.count(), "the first try, and those until an hour later")
	require.Len(t, state.Errors, 12)
	require.Len(t, state.Waits, 11)
	since := schema.ParseTime(state.Waits[0].FailedSince)
	least := 15 * time.Second
	for n, wait := range state.Waits {
		require.Equal(t, state.Waits[0].FailedSince, wait.FailedSince)
		tried := time.Duration(n+1) * step
		lasts := schema.ParseTime(wait.ExpiresAt).Sub(since) - tried
		require.GreaterOrEqual(t, lasts, min(least, time.Hour-tried))
		require.LessOrEqual(t, lasts, least*5/4)
		least = min(2*least, 15*time.Minute)
	}

	run, err := w.Fleet("ann", nil).Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPreempted))
	require.Eventually(t, func() bool { return p.count() == 24 && w.Status("r1") == schema.StatusFailed }, time.Minute, 10*time.Millisecond)
}

// A usage limit is over at the time that the provider names, however long the run had to wait before.
func TestLoop_ProviderSaysWhenAfterFailures_WaitsNoLonger(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	w.Advance(24 * time.Hour)
	clock := &stoppedClock{at: w.Now()}
	var asked atomic.Int32
	loop := publisher.Loop{ModelTries: 1, Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		switch n := asked.Add(1); {
		case n <= 5:
			return publisher.Answer{}, errors.New("busy")
		case n == 6:
			return publisher.Answer{}, publisher.RetryAt(errors.New("used up"), clock.now().Add(time.Minute))
		}
		return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Done.")}}}, nil
	}}
	e := w.Serve("ex-1", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"agent": loop}}, func(c *publisher.Config) { c.Now = clock.now })
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
	waits := w.State("r1").Waits
	require.Len(t, waits, 6)
	lasts := schema.ParseTime(waits[5].ExpiresAt).Sub(clock.now())
	require.GreaterOrEqual(t, lasts, time.Minute)
	require.LessOrEqual(t, lasts, 75*time.Second, "the wait before it lasted four minutes or more")
}

// No executor has the run for ten hours after its wait, as in a pause: that is no time in which the provider failed.
func TestLoop_NoExecutorForLong_PatienceIsLeft(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	p := &provider{script: status(503, 3, "")}
	change := func(l *publisher.Loop) { l.ModelTries, l.Patience = 1, time.Hour }
	e := p.serve(t, w, "ex-1", change, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	w.Await("r1", schema.StatusWaiting)
	e.Stop()
	w.Advance(10 * time.Hour)
	p.serve(t, w, "ex-2", change, func(c *publisher.Config) { c.Now = w.Now })
	require.Eventually(t, func() bool { return len(w.State("r1").Waits) == 2 }, time.Minute, 10*time.Millisecond)
	w.Advance(time.Hour)
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
	waits := w.State("r1").Waits
	require.WithinDuration(t, schema.ParseTime(waits[0].FailedSince).Add(10*time.Hour), schema.ParseTime(waits[1].FailedSince), 5*time.Minute)
}

// stoppedClock is a clock that stands still until it is moved.
type stoppedClock struct {
	mu sync.Mutex
	at time.Time
}

func (s *stoppedClock) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *stoppedClock) move(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = s.at.Add(d)
}

// A time after the end of the patience is not waited for.
func TestLoop_ProviderNamesATimeTooLate_FailsAtOnce(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	p := &provider{script: status(429, 2, "90000")} // more than a day
	e := p.serve(t, w, "ex-1", nil, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent", Task: "Go."})
	require.NoError(t, err)
	require.Contains(t, w.Ended("r1").Error.Message, "after the patience of 24h0m0s: 429 Too Many Requests")
	require.Equal(t, 1, p.count())
}

// An executor with a wrong key does not fail one run of the queue after the other; another one does them.
func TestExecutor_KeyIsRefused_LeavesTheQueueToOthers(t *testing.T) {
	t.Parallel()
	const runs = 60
	w := waymarktest.Start(t)
	refused := &provider{script: status(401, 1000, "")}
	bad := refused.serve(t, w, "ex-bad", nil, nil)
	submit := func(from, to int) {
		for n := from; n < to; n++ {
			_, err := bad.Fleet().Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", n), Agent: "agent", Task: "Go."})
			require.NoError(t, err)
		}
	}
	submit(0, 1)
	require.Equal(t, schema.StatusFailed, w.Ended("r0").Status)
	submit(1, runs)
	answers := &provider{script: status(0, 0, "")}
	answers.serve(t, w, "ex-good", nil, nil)
	for n := 1; n < runs; n++ {
		w.Ended(fmt.Sprint("r", n))
	}
	require.Less(t, refused.count(), 10)
	require.Greater(t, answers.count(), runs-10)
}
