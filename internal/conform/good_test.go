package conform_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/schema"
)

// good are recordings in which nothing is wrong, and the scenarios that each of them shows.
var good = map[string]struct {
	shows []string
	make  func(r *tape)
}{
	"turns": {[]string{"start", "turns", "tool-pure", "tool-idempotent", "tool-verify", "tool-hold"}, func(r *tape) {
		r.start()
		asked := func(id string, replay schema.Replay) schema.RequestedCall {
			c := schema.RequestedCall{ToolCallID: id, Name: "tool", Replay: replay}
			if replay == schema.ReplayVerify {
				c.VerifySubject = "tools.verify"
			}
			return c
		}
		r.turn(1)
		r.answers(1, asked("c1", schema.ReplayPure), asked("c2", schema.ReplayIdempotent))
		r.result("c2", 1)
		r.result("c1", 1)
		r.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{{Role: schema.RoleTool, Parts: []schema.Part{
			{Type: schema.PartToolCallResponse, ID: "c1", CallTurn: 1},
		}}}}, 2)
		r.answers(2, asked("c1", schema.ReplayVerify), asked("c1", schema.ReplayHold)) // ids come again
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Occurrence: 1, Name: "tool"}, 2)
		r.write(&schema.ToolReturnedData{ToolCallID: "c1", Occurrence: 1, Result: []byte(`"done"`)}, 2)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Occurrence: 2, Name: "tool"}, 2)
		r.write(&schema.ToolFailedData{ToolCallID: "c1", Occurrence: 2, Error: schema.Error{Type: "timeout"}}, 2)
		r.end()
	}},
	"resume-pure": {[]string{"resume-pure", "tool-pure"}, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.takeover("ex-2", "claim")
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}, 1)
		r.result("c1", 1)
		r.endTurn(1)
		r.end()
	}},
	"resume-late": {[]string{"resume-hold-adopted"}, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayHold, 1)
		old := r.make(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`1`)}, 1) // it waits, and the run is taken over
		r.takeover("ex-2", "claim")
		require.Equal(r.t, schema.Evidence, r.put(old).Kind)
		r.write(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAdopted}, 1)
		r.endTurn(1)
		r.end()
	}},
	"resume-hold": {[]string{"resume-hold"}, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayHold, 1)
		r.takeover("ex-2", "claim")
		r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"}, 1)
		r.write(&schema.RunInterruptedData{Reason: "waiting"}, 0)
		r.control(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "ann"}, 1)
		r.takeover("ex-3", "input")
		r.call("c1", schema.ReplayHold, 1)
		r.result("c1", 1)
		r.endTurn(1)
		r.end()
	}},
	"resume-turn": {[]string{"resume-turn"}, func(r *tape) {
		r.start()
		r.turn(1)
		r.takeover("ex-2", "claim")
		r.turn(1)
		r.says(1, schema.Text("Done."))
		r.endTurn(1)
		r.end()
	}},
	"people": {[]string{"input", "approval", "denial"}, func(r *tape) {
		r.start()
		r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput, ExpiresAt: schema.FormatTime(r.clock.Add(time.Hour))}, 0)
		r.control(&schema.RunInputData{InterruptID: "i1", Payload: []byte(`"red"`), By: "ann"}, 0)
		r.turn(1)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold, Requested: true}, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAsk}, 1)
		r.write(&schema.RunWaitingData{InterruptID: "i2", Reason: schema.WaitToolApproval, ToolCallID: "c1"}, 1)
		r.control(&schema.RunInputData{InterruptID: "i2", Payload: []byte(`{"decision":"allow"}`), By: "ann"}, 0)
		r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAllow}, 1)
		r.call("c1", schema.ReplayHold, 1)
		r.result("c1", 1)
		r.call("c2", schema.ReplayHold, 1)
		r.write(&schema.ToolDecidedData{ToolCallID: "c2", Decision: schema.DecisionDeny}, 1)
		r.write(&schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: "denied"}}, 1)
		r.endTurn(1)
		r.end()
	}},
	"plain": {[]string{"start", "tool-hold"}, func(r *tape) {
		// An executor that counts nothing: no sequence.
		r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, plain)
		r.write(&schema.TurnStartedData{Turn: 1}, 1, plain)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "mail", Replay: schema.ReplayHold}, 1, plain)
		again := r.make(&schema.ToolReturnedData{ToolCallID: "c1"}, 1, plain)
		require.Equal(r.t, schema.Applied, r.put(again).Kind)
		require.Equal(r.t, schema.Duplicate, r.put(again).Kind) // a retry is none of its faults
		r.write(&schema.TurnEndedData{Turn: 1}, 1, plain)
		r.write(&schema.RunEndedData{Status: "completed"}, 0, plain)
	}},
	"life": {[]string{"shutdown", "phases", "limit"}, func(r *tape) {
		r.start()
		r.write(&schema.PhaseStartedData{Phase: "build"}, 0)
		r.write(&schema.PhaseCompletedData{Phase: "build"}, 0)
		r.write(&schema.PhaseStartedData{Phase: "test"}, 0)
		r.write(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
		r.takeover("ex-2", "claim")
		r.write(&schema.PhaseStartedData{Phase: "test"}, 0)
		r.write(&schema.PhaseCompletedData{Phase: "test"}, 0)
		r.write(&schema.LimitReachedData{Limit: "turns"}, 0)
		r.write(&schema.TurnStartedData{Turn: 1, Purpose: schema.PurposeRecovery}, 1)
		r.endTurn(1)
		r.write(&schema.RunEndedData{Status: "completed", Summary: "half of it"}, 0)
		r.write(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "task_complete"}, 0)
	}},
	"end": {[]string{"cancel", "hand-off"}, func(r *tape) {
		r.start()
		r.turn(1)
		r.call("c1", schema.ReplayPure, 1)
		r.control(&schema.RunCancelRequestedData{By: "ann"}, 0)
		r.write(&schema.RunEndedData{Status: "cancelled"}, 0)
		r.write(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "error"}, 0)
		r.control(&schema.HandoffAcceptedData{HandoffID: "h1", By: "bob", ChildRun: "r-2"}, 0)
	}},
	"foreign": {[]string{"start"}, func(r *tape) {
		r.start()
		r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0, func(e *schema.Event) {
			e.Type, e.Data, e.DataContentType = "com.example.progress", []byte("half"), "text/plain"
		})
		r.end()
	}},
}

func TestJudge_GoodRecordings_Pass(t *testing.T) {
	t.Parallel()
	for name, g := range good {
		t.Run(name, func(t *testing.T) {
			for _, wire := range []bool{false, true} {
				r := newTape(t)
				r.wire = wire
				g.make(r)
				if !wire {
					golden(t, "good/"+name+".jsonl", r.out.Bytes())
				}
				report := judge(t, r.out.Bytes())
				require.Empty(t, report.Findings)
				require.True(t, report.Passed)
				require.Equal(t, 1, report.Runs)
				for _, rule := range report.NotJudged {
					require.Contains(t, []string{"WM-E-100", "WM-E-101", "WM-E-110", "WM-E-111"}, rule.Rule, "rules of what a recording has are judged")
				}
			}
		})
	}
}

func TestScenario_Played_Seen(t *testing.T) {
	t.Parallel()
	played := map[string]bool{}
	for name, g := range good {
		r := newTape(t)
		g.make(r)
		var all []string
		for _, s := range conform.Scenarios() {
			all = append(all, s.ID)
		}
		for _, o := range judge(t, r.out.Bytes(), all...).Scenarios {
			shown := false
			for _, id := range g.shows {
				shown = shown || id == o.Scenario
			}
			if shown {
				require.True(t, o.Passed, "%s in %s: %s", o.Scenario, name, o.Missing)
				require.Equal(t, "r-1", o.Run)
				played[o.Scenario] = true
			}
			if !o.Passed {
				require.NotEmpty(t, o.Missing, o.Scenario)
			}
		}
	}
	for _, id := range []string{"start", "turns", "resume-hold", "resume-pure", "input", "approval", "cancel", "hand-off", "phases", "limit", "shutdown"} {
		require.True(t, played[id], id)
	}
}

func TestScenario_NotPlayed_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.start()
	r.turn(1)
	r.call("c1", schema.ReplayPure, 1)
	report := judge(t, r.out.Bytes(), "resume-pure", "input")
	require.False(t, report.Passed)
	require.Equal(t, conform.Outcome{Scenario: "resume-pure", Run: "r-1", Missing: "run.resumed while a call with replay pure is open"}, report.Scenarios[0])
	require.Equal(t, "run.waiting with the reason human_input", report.Scenarios[1].Missing)

	_, err := conform.New(conform.Config{Expect: []string{"tango"}})
	require.ErrorIs(t, err, conform.ErrScenario)
}

func TestScenario_RunBreaksRule_NotPassed(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.start()
	r.refused(&schema.ToolReturnedData{ToolCallID: "c1"}, 0)
	r.end()
	report := judge(t, r.out.Bytes(), "start")
	require.Equal(t, conform.Outcome{Scenario: "start", Run: "r-1", Missing: "the run breaks a rule"}, report.Scenarios[0])
}

func TestOpen_NotARecording_NamesLine(t *testing.T) {
	t.Parallel()
	c, err := conform.New(conform.Config{})
	require.NoError(t, err)
	err = c.ReadRecording("notes.txt", strings.NewReader("\n{\"specversion\":\"1.0\"}\nhello\n"))
	require.ErrorIs(t, err, conform.ErrRecording)
	require.ErrorContains(t, err, "notes.txt:3")
	err = c.ReadRecording("twice.jsonl", strings.NewReader(`{"specversion":"1.0","id":"1","id":"2"}`+"\n"))
	require.ErrorIs(t, err, conform.ErrRecording)
	require.ErrorContains(t, err, `twice.jsonl:1: not a recording`)
	require.ErrorContains(t, err, `duplicate object member name "id"`)
}

func TestJudge_RecordedMessage_AsSeen(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	recorder := conform.NewRecorder(&out)
	r := newTape(t)
	e := r.make(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
	header, body := e.Encode()
	logged := conform.Message{Subject: "waymark.events.f.0.r-1", Record: schema.NewRecord(7, header, body), At: r.clock}
	require.NoError(t, recorder.Log(&logged))
	odd := conform.Message{Subject: "waymark.events.f.0.r-1", Record: schema.NewRecord(8, nil, []byte{0xff, 0xfe}), At: r.clock}
	require.NoError(t, recorder.Log(&odd))
	beat := conform.Message{Subject: "waymark.heartbeats.f.ex-1", Record: schema.Record{Body: []byte(`{"executor":"ex-1"}`)}, At: r.clock}
	require.NoError(t, recorder.Published(&beat))
	report := judge(t, []byte(out.String()))
	require.Len(t, report.Findings, 1)
	require.Equal(t, "WM-E-001", report.Findings[0].Rule)
	require.Equal(t, 2, report.Findings[0].Line)
	require.EqualValues(t, 2, report.Events)
}

func TestJudge_ManyRuns_MemoryBounded(t *testing.T) {
	t.Parallel()
	c, err := conform.New(conform.Config{})
	require.NoError(t, err)
	const runs = 10_000
	for i := range runs {
		run := "r-" + strings.Repeat("x", i%7) + time.Duration(i).String()
		run = strings.NewReplacer("µ", "u", ".", "_").Replace(run)
		w := schema.Writer{Fleet: "f", Run: run, Executor: "ex-1", Epoch: 1}
		e, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, time.Unix(0, 0), 0)
		require.NoError(t, err)
		header, body := e.Encode()
		c.Add(schema.NoKeys, conform.Message{Subject: "waymark.events.f.0." + run, Record: schema.NewRecord(schema.StreamSequence(i+1), header, body)}) //nolint:gosec // small
	}
	report := c.Report()
	require.Equal(t, runs, report.Runs)
	require.GreaterOrEqual(t, report.Forgotten, runs-8192)
	require.Less(t, report.Forgotten, runs/2)
	require.Empty(t, report.Findings)
}

func TestJudge_EvictedRun_NotFromMiddle(t *testing.T) {
	t.Parallel()
	c, err := conform.New(conform.Config{})
	require.NoError(t, err)
	stream := schema.StreamSequence(0)
	add := func(e *schema.Event) {
		stream++
		header, body := e.Encode()
		c.Add(schema.NoKeys, conform.Message{Subject: "waymark.events.f.0." + e.Subject, Record: schema.NewRecord(stream, header, body)})
	}
	r := newTape(t)
	start := r.make(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
	r.put(start)
	add(start)
	for i := range 8192 {
		w := schema.Writer{Fleet: "f", Run: fmt.Sprintf("other-%d", i), Executor: "ex-1", Epoch: 1}
		e, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, r.now(), 0)
		require.NoError(t, err)
		add(e)
	}
	require.Positive(t, c.Report().Forgotten)
	require.True(t, c.Knows("r-1"), "a watcher need not read it again")
	add(r.make(&schema.TurnStartedData{Turn: 1}, 1))
	report := c.Report()
	require.Empty(t, report.Findings)
	require.Equal(t, 8193, report.Runs)
	require.EqualValues(t, 8193, report.Events)
}

func TestFinding_ImpossibleRunID_Found(t *testing.T) {
	t.Parallel()
	for _, run := range []string{"my.run", "my run", "-x", strings.Repeat("x", 65)} {
		r := newTape(t)
		r.run, r.writer.Run, r.head = run, run, schema.NewHead("f", run)
		r.start()
		report := judge(t, r.out.Bytes())
		require.Len(t, report.Findings, 1, run)
		require.Equal(t, "WM-E-003", report.Findings[0].Rule)
		require.Contains(t, report.Findings[0].Expected, "1 to 64 of")
		require.False(t, report.Passed)
	}
}

func TestStoredOnce_ArgumentsAndResponse_BothFound(t *testing.T) {
	t.Parallel()
	var fields []string
	for _, f := range judge(t, broken["WM-E-056"](t).out.Bytes()).Findings {
		fields = append(fields, f.Field)
	}
	require.Equal(t, []string{"/message/parts/0/arguments", "/message/parts/0/response"}, fields)
}

// A call that cannot be made never runs, so that no policy says what becomes of it.
func TestPolicy_CallWithAnError_IsNotAskedFor(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.start()
	r.write(&schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("hi")}},
		Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "rm", Error: &schema.Error{Type: "unknown_tool", Message: "there is no rm"}}},
	}, 1)
	require.Empty(t, judge(t, r.out.Bytes()).Findings)
}

func TestFinding_InvalidData_SaysWhatWasFound(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.start()
	r.put(r.make(&schema.StateSetData{Key: "plan", Value: []byte("1")}, 0, func(e *schema.Event) { e.Data = []byte(`{"value":1}`) }))
	findings := judge(t, r.out.Bytes()).Findings
	require.Len(t, findings, 1)
	require.Equal(t, "/key is required", findings[0].Found)
}

func TestFinding_Heartbeat_NamesIt(t *testing.T) {
	t.Parallel()
	report := judge(t, broken["WM-E-100"](t).out.Bytes())
	require.Equal(t, "test.jsonl:2 heartbeat on waymark.heartbeats.f.ex-1 /executor", report.Findings[0].Place())
}

func TestFinding_EventWithoutSubject_One(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.wire = true
	r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0, func(e *schema.Event) { e.Subject = "" })
	report := judge(t, r.out.Bytes())
	require.Len(t, report.Findings, 1, "%+v", report.Findings)
	require.Equal(t, "WM-E-003", report.Findings[0].Rule)
}

func TestEventsPage_Rules_AreListed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "events.md"))
	require.NoError(t, err)
	events := strings.ReplaceAll(string(text), "\r\n", "\n")
	for _, r := range conform.Rules() {
		require.Contains(t, events, "\n"+heading(r.Section)+"\n", "section of %s", r.ID)
	}
	made := rulesPage()
	file := filepath.Join("..", "..", "docs", "rules.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(made), 0o644)) //nolint:gosec // every user may read the documentation
	}
	rules, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, made, strings.ReplaceAll(string(rules), "\r\n", "\n"), "write it with: go test ./internal/conform -update")
	require.Len(t, conform.Scenarios(), 20, "docs/conformance.md has their number")
}

// rulesIntro begins the page of rules, with ~ in place of backquotes.
const rulesIntro = `# Rules for executors

After this page you know what ~waymark conform~ judges an executor by ([conformance.md](conformance.md)). A breach of
level *must* breaks a promise: an event is refused, a call runs twice, or a run is taken for dead. Level *should* keeps
a run readable and recoverable. Findings, and ~waymark conform --rules --json~, say what to do.

Written by a test from ~internal/conform~.
`

// heading is that of a section, by its link.
func heading(link string) string {
	words := strings.ReplaceAll(link, "-", " ")
	words = strings.ToUpper(words[:1]) + words[1:]
	switch link {
	case "hand-off":
		words = "Hand-off"
	case "ids-and-hashes":
		words = "IDs and hashes"
	}
	return "## " + words
}

func rulesPage() string {
	var b strings.Builder
	b.WriteString(strings.ReplaceAll(rulesIntro, "~", "`"))
	for _, level := range []conform.Level{conform.Must, conform.Should} {
		b.WriteString("\n## Level " + string(level) + "\n\n| rule | what it asks |\n|---|---|\n")
		for _, r := range conform.Rules() {
			if r.Level == level {
				b.WriteString("| [" + r.ID + "](events.md#" + r.Section + ") | " + strings.ReplaceAll(r.Text, "|", `\|`) + " |\n")
			}
		}
	}
	return b.String()
}
