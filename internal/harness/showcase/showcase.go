package showcase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// Stage is a fleet that is filled.
type Stage struct {
	// World is nil for a stage of [On].
	*waymarktest.World
	tb testing.TB
	nc *nats.Conn
	// ahead is how far the executors' clock is before the world's.
	ahead atomic.Int64
}

// New fills the fleet of a world.
func New(tb testing.TB, w *waymarktest.World) *Stage {
	tb.Helper()
	return &Stage{World: w, tb: tb, nc: w.Conn()}
}

// On fills the fleet behind a connection with an executor's rights. The daemon's clock is that of the machine: [Stage.Fill] needs a world.
func On(tb testing.TB, nc *nats.Conn) *Stage {
	tb.Helper()
	return &Stage{tb: tb, nc: nc}
}

func (s *Stage) now() time.Time {
	now := time.Now()
	if s.World != nil {
		now = s.Now()
	}
	return now.Add(time.Duration(s.ahead.Load()))
}

// After lets time pass for the executors.
func (s *Stage) After(d time.Duration) { s.ahead.Add(int64(d)) }

// meet sets the daemon's clock to that of the executors.
func (s *Stage) meet() { s.Advance(time.Duration(s.ahead.Swap(0))) }

// Executor connects an executor of the agent coder, whose heartbeats end with the test.
func (s *Stage) Executor(name string) *publisher.Fleet {
	s.tb.Helper()
	return s.connect(name, "coder", policy)
}

// policy leaves deployments to a person.
func policy(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
	if call.Name == "deploy" {
		return publisher.Decision{Decision: schema.DecisionAsk, Message: "Deploy build 412 to production?"}, nil
	}
	return publisher.Decision{Decision: schema.DecisionAllow}, nil
}

func (s *Stage) connect(name, agent string, policy publisher.Policy) *publisher.Fleet {
	s.tb.Helper()
	f, err := publisher.Connect(s.tb.Context(), publisher.Config{Conn: s.nc, Fleet: schema.DefaultFleet, Executor: name, Agent: agent, Now: s.now, Policy: policy})
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = f.Close(ctx) // its runs may be another's by now
	})
	return f
}

// Say answers a turn of a run.
func (s *Stage) Say(run *publisher.Run, took time.Duration, ask, said string, calls ...publisher.ToolCall) *publisher.Turn {
	s.tb.Helper()
	spec := publisher.TurnSpec{}
	if ask != "" {
		spec.Messages = []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(ask)}}}
	}
	turn, err := run.StartTurn(s.tb.Context(), spec)
	require.NoError(s.tb, err)
	s.After(took)
	message := schema.Message{Role: schema.RoleAssistant}
	if said != "" {
		message.Parts = append(message.Parts, schema.Text(said))
	}
	for _, c := range calls {
		message.Parts = append(message.Parts, schema.CallPart(c.ID, c.Name))
	}
	_, err = turn.Answer(s.tb.Context(), publisher.Answer{
		Message: message, Calls: calls, Duration: took, Model: "claude-sonnet",
		Usage: &schema.Usage{InputTokens: 4812, OutputTokens: 340},
	})
	require.NoError(s.tb, err)
	return turn
}

// Do runs a call of a turn.
func (s *Stage) Do(turn *publisher.Turn, call publisher.ToolCall, took time.Duration, result any, failure error) {
	s.tb.Helper()
	_, err := turn.Tool(s.tb.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		s.After(took)
		b, err := json.Marshal(result)
		require.NoError(s.tb, err)
		return publisher.ToolResult{Result: b, Duration: took}, failure
	})
	if failure == nil {
		require.NoError(s.tb, err)
	} else {
		require.ErrorIs(s.tb, err, publisher.ErrToolFailed)
	}
}

func call(id, name string, replay schema.Replay, arguments string) publisher.ToolCall {
	return publisher.ToolCall{ID: id, Name: name, Replay: replay, Arguments: json.RawMessage(arguments)}
}

const change = `diff --git a/login.go b/login.go
--- a/login.go
+++ b/login.go
@@ -14,7 +14,7 @@ func login(w http.ResponseWriter, r *http.Request) {
 	session := store.New(user)
-	http.SetCookie(w, &http.Cookie{Name: "s", Value: session})
+	http.SetCookie(w, &http.Cookie{Name: "s", Value: session, HttpOnly: true, SameSite: http.SameSiteStrictMode})
 	http.Redirect(w, r, "/", http.StatusFound)
`

// Fill makes the runs of a working day: some that work, some that need a person, some that have ended.
func (s *Stage) Fill() {
	s.tb.Helper()
	ctx := s.tb.Context()
	box := s.Executor("box-1")
	start := func(id, agent, task string, labels map[string]string) *publisher.Run {
		run, err := box.Start(ctx, publisher.RunSpec{ID: id, Agent: agent, Task: task, Model: "claude-sonnet", ModelTier: "large", Provider: "anthropic", Labels: labels})
		require.NoError(s.tb, err)
		return run
	}
	for i, end := range []publisher.RunEnd{
		{Summary: "Twelve pages translated."},
		{Status: schema.StatusFailed, Error: &schema.Error{Type: "budget", Message: "the budget of 2 euros is used up"}},
		{Status: schema.StatusCancelled, Summary: "asked for by ann"},
		{Summary: "The report is written."},
	} {
		spec := publisher.RunSpec{ID: fmt.Sprintf("report-%d", i+1), Agent: "writer", Task: "Write the weekly report.", Model: "claude-sonnet", ModelTier: "large", Provider: "anthropic"}
		switch i { // a family
		case 1:
			spec.Parent = &schema.Parent{Run: "report-1", Turn: 1, ToolCallID: "a"}
		case 2, 3:
			spec.ResumedFrom = "report-2"
		}
		run, err := box.Start(ctx, spec)
		require.NoError(s.tb, err)
		read := call("a", "read_page", publisher.Pure, `{"page":`+fmt.Sprint(i+1)+`}`)
		s.Do(s.Say(run, 1400*time.Millisecond, "Begin with the numbers.", "I read the page.", read), read, 90*time.Millisecond, "42 rows", nil)
		require.NoError(s.tb, run.End(ctx, end))
	}
	s.login(box, start)
	s.question(start)
	s.inDoubt(start)
	s.working(start)
	s.After(11 * time.Second)
	s.meet()
}

// login is a run with failures, a takeover and an approval that is waited for.
func (s *Stage) login(box *publisher.Fleet, start func(id, agent, task string, labels map[string]string) *publisher.Run) {
	s.tb.Helper()
	ctx := s.tb.Context()
	run := start("fix-login", "coder", "Users are signed out when they follow a link from a mail. Find out why, fix it and deploy.", map[string]string{"team": "blue"})
	read, test := call("a", "read_file", publisher.Pure, `{"path":"login.go"}`), call("b", "run_tests", publisher.Pure, `{"pattern":"Login","count":1e2,"seed":12345678901234567890}`)
	turn := s.Say(run, 3100*time.Millisecond, "Users are signed out when they follow a link from a mail.", "I look at the handler and run its tests.", read, test)
	s.Do(turn, read, 40*time.Millisecond, "func login(w http.ResponseWriter, r *http.Request) {\n\tsession := store.New(user)\n}", nil)
	s.Do(turn, test, 41*time.Second, nil, errors.New("3 of 214 tests fail: TestLogin_Mail, TestLogin_Link, TestLogin_Cookie"))
	edit := call("c", "edit_file", publisher.Idempotent, `{"path":"login.go"}`)
	turn = s.Say(run, 5200*time.Millisecond, "", "The cookie lacks SameSite. I change that.", edit)
	s.Do(turn, edit, 120*time.Millisecond, change, nil)
	require.NoError(s.tb, turn.Run().Mark(ctx, "before-deploy"))
	again := call("d", "run_tests", publisher.Pure, `{"pattern":"Login"}`)
	turn = s.Say(run, 2100*time.Millisecond, "", "", again)
	require.NoError(s.tb, turn.Begin(ctx, schema.CallKey{Turn: 3, ToolCallID: "d", Occurrence: 1}))
	s.After(2 * time.Minute)
	s.meet()
	other := s.Executor("box-2")
	run, err := other.Resume(ctx, "fix-login", publisher.ResumeSpec{})
	require.NoError(s.tb, err)
	s.Do(run.OpenTurn(), again, 38*time.Second, "214 tests pass", nil)
	deploy := call("e", "deploy", publisher.Hold, `{"build":412,"target":"production"}`)
	deploy.SideEffect = "production"
	turn = s.Say(run, 1800*time.Millisecond, "", "All tests pass. I deploy build 412.", deploy)
	s.background(func(ctx context.Context) {
		_, _ = turn.Tool(ctx, deploy, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result("deployed")
		})
	})
	s.await("fix-login", schema.StatusWaiting)
	_ = box
}

// question is a run that asks for a choice.
func (s *Stage) question(start func(id, agent, task string, labels map[string]string) *publisher.Run) {
	s.tb.Helper()
	run := start("invoice-91", "billing", "Send the invoice for order 91.", nil)
	require.NoError(s.tb, run.Wait(s.tb.Context(), schema.RunWaitingData{
		InterruptID: "discount", Reason: schema.WaitHumanInput, Message: "The order is of a new customer.\nWhich discount do they get, and from when on?",
		ResponseSchema: []byte(`{"type":"object","properties":{"percent":{"type":"integer","title":"Discount in percent","minimum":0,"maximum":30},"reason":{"type":"string","title":"Why","enum":["new customer","volume","none"]},"notify":{"type":"boolean","title":"Tell the customer"}},"required":["percent","reason"]}`),
	}))
}

// inDoubt is a run with a call whose outcome only a person can decide.
func (s *Stage) inDoubt(start func(id, agent, task string, labels map[string]string) *publisher.Run) {
	s.tb.Helper()
	run := start("payout-7", "billing", "Pay supplier 7.", nil)
	charge := call("p", "charge", publisher.Hold, `{"account":"DE02 1203 0000 0000 2020 51","cents":129900}`)
	charge.SideEffect = "payment"
	turn := s.Say(run, 1500*time.Millisecond, "", "I pay the invoice.", charge)
	require.NoError(s.tb, turn.Begin(s.tb.Context(), schema.CallKey{Turn: 1, ToolCallID: "p", Occurrence: 1}))
	s.meet()
	other := s.connect("box-3", "billing", policy)
	run, err := other.Resume(s.tb.Context(), "payout-7", publisher.ResumeSpec{})
	require.NoError(s.tb, err)
	_, err = run.OpenTurn().Tool(s.tb.Context(), charge, nil)
	require.ErrorIs(s.tb, err, publisher.ErrHeld)
}

// working are runs that are at work.
func (s *Stage) working(start func(id, agent, task string, labels map[string]string) *publisher.Run) {
	s.tb.Helper()
	run := start("triage-3", "support", "Sort the mail of today.", map[string]string{"team": "green"})
	search := call("a", "search", publisher.Pure, `{"query":"refund"}`)
	turn := s.Say(run, 900*time.Millisecond, "", "", search)
	require.NoError(s.tb, turn.Begin(s.tb.Context(), schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}))
	run = start("triage-4", "support", "Sort the mail of yesterday.", map[string]string{"team": "green"})
	_, err := run.StartTurn(s.tb.Context(), publisher.TurnSpec{})
	require.NoError(s.tb, err)
}

// Silent starts a run of an executor that dies at once, and has been silent for so long.
func (s *Stage) Silent(executor string, silent time.Duration) {
	s.tb.Helper()
	nc := s.Conn()
	f, err := publisher.Connect(s.tb.Context(), publisher.Config{Conn: nc, Fleet: schema.DefaultFleet, Executor: executor, Agent: "coder", Now: s.now})
	require.NoError(s.tb, err)
	run, err := f.Start(s.tb.Context(), publisher.RunSpec{ID: "docs-8", Agent: "coder", Task: "Describe the new flags."})
	require.NoError(s.tb, err)
	_, err = run.StartTurn(s.tb.Context(), publisher.TurnSpec{})
	require.NoError(s.tb, err)
	nc.Close()
	s.After(silent)
	s.meet()
}

// background runs work until the test ends.
func (s *Stage) background(work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	s.tb.Cleanup(func() {
		cancel()
		<-done
	})
}

func (s *Stage) await(run string, status schema.Status) {
	s.tb.Helper()
	reader, err := publisher.NewReader(s.tb.Context(), publisher.Config{Conn: s.nc, Fleet: schema.DefaultFleet})
	require.NoError(s.tb, err)
	require.Eventually(s.tb, func() bool {
		h, err := reader.Head(s.tb.Context(), run)
		return err == nil && h.Status == status
	}, 30*time.Second, 5*time.Millisecond, "run %s is not %s", run, status)
}

// Long makes a run of so many turns, each with a call: of five events.
func (s *Stage) Long(id string, turns int) {
	s.tb.Helper()
	ctx := s.tb.Context()
	run, err := s.connect("box-9", "coder", nil).Start(ctx, publisher.RunSpec{ID: id, Agent: "coder", Task: "Work for a long time."})
	require.NoError(s.tb, err)
	for n := 1; n <= turns; n++ {
		require.NoError(s.tb, run.SetState(ctx, "step", n))
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(fmt.Sprintf("do step %d", n))}}}})
		require.NoError(s.tb, err)
		c := call("c", "step", publisher.Pure, fmt.Sprintf(`{"n":%d}`, n))
		s.After(900 * time.Millisecond)
		keys, err := turn.Answer(ctx, publisher.Answer{
			Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(fmt.Sprintf("step %d", n)), schema.CallPart("c", "step")}},
			Calls:   []publisher.ToolCall{c}, Duration: 900 * time.Millisecond, Usage: &schema.Usage{InputTokens: 100, OutputTokens: 10},
		})
		require.NoError(s.tb, err)
		require.NoError(s.tb, turn.Begin(ctx, keys[0]))
		took := time.Duration(n%7+1) * 100 * time.Millisecond
		s.After(took)
		if n%50 == 0 {
			require.NoError(s.tb, turn.Fail(ctx, keys[0], schema.Error{Type: "timeout", Message: "no answer"}))
			continue
		}
		require.NoError(s.tb, turn.Return(ctx, keys[0], publisher.ToolResult{Result: []byte(`{"ok":true}`), Duration: took}))
	}
}
