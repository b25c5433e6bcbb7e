package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// world runs commands against a fleet of a test.
type world struct {
	*waymarktest.World
	t *testing.T
}

// ask runs a command line at a width; "" is a pipe.
func (w *world) ask(columns, stdin string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	getenv := func(name string) string {
		return map[string]string{"COLUMNS": columns, "WAYMARK_STATE_DIR": w.StateDir()}[name]
	}
	var out, complaints bytes.Buffer
	code = Run(w.t.Context(), args, getenv, strings.NewReader(stdin), &out, &complaints)
	return code, out.String(), complaints.String()
}

// hanging makes a run of each way in which a run can stand still, named by it.
func hanging(t *testing.T) *world {
	t.Helper()
	w := &world{waymarktest.StartWith(t, waymarktest.Config{Silence: 2 * time.Second}), t}

	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	ignores := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		<-never
		return publisher.ToolResult{}, nil
	}
	hangs := func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		<-ctx.Done()
		return publisher.ToolResult{}, ctx.Err()
	}
	call := func(ctx context.Context, run *publisher.Run, tool string, replay schema.Replay, limit time.Duration, f publisher.ToolFunc) error {
		turn := run.OpenTurn()
		if turn == nil {
			var err error
			if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
				return err
			}
		}
		_, err := turn.Tool(ctx, publisher.ToolCall{ID: "c1", Name: tool, Replay: replay, Timeout: limit}, f)
		return err
	}
	f := w.Fleet("works", func(c *publisher.Config) {
		c.Agent = "coder"
		c.Policy = func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
			if call.Name == "deploy" {
				return publisher.Decision{Decision: schema.DecisionAsk, Message: "Deploy to production?"}, nil
			}
			return publisher.Decision{Decision: schema.DecisionAllow}, nil
		}
	})
	begin := func(run string) *publisher.Run {
		r, err := f.Start(t.Context(), publisher.RunSpec{ID: run, Task: "Fix the login."})
		require.NoError(t, err)
		return r
	}
	works := begin("works")
	require.NoError(t, works.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Fix it.")}}))
	asks := begin("asks")
	require.NoError(t, asks.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: "Which of the two hundred and twelve branches of the repository shall be merged first?"}))
	approval := begin("approval")
	go func() { _ = call(t.Context(), approval, "deploy", publisher.Hold, 0, hangs) }() // ends with the fleet
	overdue := begin("overdue")
	go func() { _ = call(t.Context(), overdue, "compile", publisher.Pure, 10*time.Millisecond, ignores) }()

	held := func(ctx context.Context, run *publisher.Run) error {
		return call(ctx, run, "send_mail", publisher.Hold, 0, hangs)
	}
	dies := w.Serve("dies", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"mailer": func(context.Context, *publisher.Run) (publisher.Work, error) { return held, nil },
		"coder":  func(context.Context, *publisher.Run) (publisher.Work, error) { return held, nil },
	}}, nil)
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "held", Agent: "mailer"})
	require.NoError(t, err)
	w.until(func() bool { return len(w.State("held").Calls) == 1 })
	_, err = dies.Fleet().Start(t.Context(), publisher.RunSpec{ID: "orphaned", Agent: "unheard-of"})
	require.NoError(t, err)
	dies.Kill()
	_, err = f.Submit(t.Context(), publisher.RunSpec{ID: "submitted", Agent: "unheard-of"})
	require.NoError(t, err)
	w.Advance(3 * time.Second)
	w.Serve("another", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"mailer": func(context.Context, *publisher.Run) (publisher.Work, error) { return held, nil },
	}}, nil)
	w.Await("held", schema.StatusWaiting)
	w.Serve("broken", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"broken": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, errors.New("no model") },
	}}, nil)
	_, err = f.Submit(t.Context(), publisher.RunSpec{ID: "quarantined", Agent: "broken"})
	require.NoError(t, err)
	return w
}

func (w *world) until(ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ok, time.Minute, 5*time.Millisecond)
}

// stuckRow is a line of runs ls --stuck --json.
type stuckRow struct{ Run, Kind, Why, Since string }

func (w *world) stuck() map[string]stuckRow {
	w.t.Helper()
	code, out, complaints := w.ask("", "", "runs", "ls", "--stuck", "--json")
	require.Zero(w.t, code, complaints)
	var list struct{ Stuck []stuckRow }
	require.NoError(w.t, json.Unmarshal([]byte(out), &list))
	rows := make(map[string]stuckRow, len(list.Stuck))
	for _, r := range list.Stuck {
		require.NotContains(w.t, rows, r.Run, "one reason each")
		_, err := time.Parse(time.RFC3339Nano, r.Since)
		require.NoError(w.t, err)
		rows[r.Run] = r
	}
	return rows
}

func TestRunsLsStuck_EachWayToStandStill_IsFoundWithItsReason(t *testing.T) {
	t.Parallel()
	w := hanging(t)
	want := map[string]stuckRow{
		"asks":        {Kind: "waiting", Why: "waits for an answer: Which of the two hundred and twelve branches of the repository shall be merged first?"},
		"approval":    {Kind: "waiting", Why: "waits for approval of deploy: Deploy to production?"},
		"held":        {Kind: "held", Why: "held: send_mail may have run (turn 1, call c1): it is in doubt and its replay policy requires a person to settle it"},
		"overdue":     {Kind: "overdue", Why: "overdue: tool compile has not returned within 10ms"},
		"orphaned":    {Kind: "orphaned", Why: "orphaned: its executor is gone"},
		"submitted":   {Kind: "interrupted", Why: "submitted: no executor has claimed it"},
		"quarantined": {Kind: "quarantined", Why: "quarantined: 3 claims in a row made no progress; the last error: work of agent broken for run quarantined: no model"},
	}
	var rows map[string]stuckRow
	w.until(func() bool {
		rows = w.stuck()
		for run, r := range want {
			if rows[run].Kind != r.Kind {
				return false
			}
		}
		return true
	})
	require.Len(t, rows, len(want), "the run that works is none of them: %v", rows)
	for run, r := range want {
		if r.Why != "" {
			require.Equal(t, r.Why, rows[run].Why)
		}
	}

	// The overdue call is named wherever an operator looks for it.
	code, out, complaints := w.ask("200", "", "runs", "get", "overdue")
	require.Zero(t, code)
	require.Regexp(t, `tool compile +1 +\S+ +.* 10ms`, out)
	require.Contains(t, complaints, "stop its process")
	_, out, _ = w.ask("200", "", "runs", "ls")
	require.Regexp(t, `(?m)^overdue .*running, overdue`, out)
	_, out, _ = w.ask("200", "", "fleet")
	require.Contains(t, out, "1 overdue")
	_, out, _ = w.ask("200", "", "doctor")
	require.Regexp(t, `overdue +1 run with`, out)

	for _, columns := range []string{"80", "100", "200"} {
		code, out, complaints := w.ask(columns, "", "runs", "ls", "--stuck")
		require.Zero(t, code)
		width := map[string]int{"80": 80, "100": 100, "200": 200}[columns]
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), width, line)
		}
		for run := range want {
			require.Regexp(t, `(?m)^`+run+` `, out)
		}
		require.Contains(t, complaints, "waymark inbox")
		require.Contains(t, out, "AGENT")
	}
	code, out, _ = w.ask("200", "", "runs", "ls", "--stuck", "--agent", "broken", "--quiet")
	require.Zero(t, code)
	require.Equal(t, 2, strings.Count(out, "\n"), out)
	_, _, complaints = w.ask("100", "", "runs", "ls", "--stuck", "--limit", "3")
	require.Contains(t, complaints, "there are 4 more: list them with --all, or with a --limit above 3")
	code, _, complaints = w.ask("100", "", "runs", "ls", "--stuck", "--status", "waiting")
	require.Equal(t, 2, code)
	require.Contains(t, complaints, "--stuck does not go with --status")
	_, _, complaints = w.ask("100", "", "runs", "ls", "--stuck", "--agent", "missing")
	require.Contains(t, complaints, "no run is stuck")
}

func TestInbox_WhatNeedsAPerson_IsListedWithItsCommandsAndAnswered(t *testing.T) {
	t.Parallel()
	w := hanging(t)
	w.until(func() bool {
		rows := w.stuck()
		return rows["quarantined"].Kind == "quarantined" && rows["held"].Kind == "held" && rows["approval"].Kind == "waiting"
	})
	for _, columns := range []string{"80", "100", "200"} {
		code, out, complaints := w.ask(columns, "", "inbox")
		require.Zero(t, code, complaints)
		for _, s := range []string{
			`input asks q1 --event asks\.\S+ --text TEXT`, `input approval approval\.1\.c1\.1 --event approval\.\S+ --allow`,
			`input approval approval\.1\.c1\.1 --event approval\.\S+ --deny`, `settle held 1 c1 --epoch \d+ --how decided --result JSON`,
			`settle held 1 c1 --epoch \d+ --how rerun`, `release quarantined`,
		} {
			require.Regexp(t, `(?m)^    waymark `+s+`$`, out)
		}
		require.NotContains(t, out, "orphaned", "no person is asked")
	}
	code, out, _ := w.ask("", "", "inbox", "--json", "--agent", "broken")
	require.Zero(t, code)
	require.Contains(t, out, `"kind": "quarantined"`)
	require.Contains(t, out, `"waymark release quarantined"`)

	for _, command := range [][]string{
		{"input", "asks", "q1", "--text", "The first one.", "--by", "ann"},
		{"input", "approval", "approval.1.c1.1", "--deny", "--reason", "not on a Friday"},
		{"settle", "held", "1", "c1", "--how", "decided", "--result", `"sent"`},
		{"release", "quarantined"},
	} {
		code, out, complaints := w.ask("80", "", command...)
		require.Zero(t, code, "%v: %s%s", command, out, complaints)
	}
	require.JSONEq(t, `"The first one."`, string(w.State("asks").Waits[0].Input.Payload))
	require.Equal(t, "ann", w.State("asks").Waits[0].Input.By)
	require.JSONEq(t, `{"decision":"deny","reason":"not on a Friday"}`, string(w.State("approval").Waits[0].Input.Payload))
	require.JSONEq(t, `"sent"`, string(w.State("held").Calls[0].Result))

	code, _, complaints := w.ask("80", "", "inbox", "--agent", "missing")
	require.Zero(t, code)
	require.Contains(t, complaints, "no run needs a person")
	code, _, complaints = w.ask("80", "", "inbox", "--limit", "0")
	require.Equal(t, 2, code)
	require.Contains(t, complaints, "--limit 0 is below 1")
}
