package codingagent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/codingagent"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

const token = "secret"

// hooked is an agent's side of a bridge.
type hooked struct {
	t       *testing.T
	bridge  *codingagent.Bridge
	session string
	stopped chan error
}

// bridge starts a bridge of an executor, which opens runs as waymark agent run does.
func bridge(t *testing.T, fleet *publisher.Fleet, d *codingagent.Dialect, tools codingagent.Tools) *hooked {
	t.Helper()
	h := &hooked{t: t, session: "s1", stopped: make(chan error, 10)}
	h.bridge = codingagent.New(t.Context(), codingagent.Config{
		Dialect: d, Tools: tools, Token: token, Stop: func(cause error) { h.stopped <- cause },
		Open: func(ctx context.Context, id string) (*publisher.Run, *schema.State, error) {
			run, err := fleet.Start(ctx, publisher.RunSpec{ID: id, Agent: d.Name})
			return run, nil, err
		},
		Left: func(ctx context.Context, run *publisher.Run, last string) error {
			return run.End(ctx, publisher.RunEnd{Summary: last})
		},
	}, "", nil, nil)
	t.Cleanup(func() { h.bridge.Close() })
	return h
}

// resumed is the same for a run that is taken over.
func resumed(t *testing.T, fleet *publisher.Fleet, id string) (*hooked, error) {
	t.Helper()
	run, err := fleet.Resume(t.Context(), id, publisher.ResumeSpec{})
	require.NoError(t, err)
	if err := codingagent.Settle(t.Context(), run); err != nil {
		return nil, err
	}
	h := &hooked{t: t, session: id, stopped: make(chan error, 10)}
	h.bridge = codingagent.New(t.Context(), codingagent.Config{Dialect: codingagent.Claude, Token: token, Stop: func(cause error) { h.stopped <- cause }}, id, run, run.State())
	t.Cleanup(func() { h.bridge.Close() })
	return h, nil
}

// post sends a hook, and returns the status and the answer.
func (h *hooked) post(body []byte) (int, string) { return h.postFor(h.t.Context(), body) }

// postFor sends a hook that the agent interrupts when ctx ends.
func (h *hooked) postFor(ctx context.Context, body []byte) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	h.bridge.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// hook sends an event with members, and returns the answer, which must not be an error.
func (h *hooked) hook(name string, members map[string]any) string {
	h.t.Helper()
	status, said := h.try(name, members)
	require.Equal(h.t, http.StatusOK, status, said)
	return said
}

func (h *hooked) try(name string, members map[string]any) (int, string) {
	h.t.Helper()
	event := map[string]any{"hook_event_name": name, "session_id": h.session}
	maps.Copy(event, members)
	body, err := json.Marshal(event)
	require.NoError(h.t, err)
	return h.post(body)
}

func bash(id string) map[string]any {
	return map[string]any{"tool_name": "Bash", "tool_input": map[string]string{"command": "make"}, "tool_use_id": id, "tool_response": "made"}
}

// record is the run's record: each event with its call, and how it closed.
func record(t *testing.T, fleet *publisher.Fleet, id string) (lines []string) {
	t.Helper()
	require.NoError(t, fleet.Walk(t.Context(), id, schema.Point{}, func(step *schema.Step) error {
		require.NotNil(t, step.Event)
		data, err := schema.ParseData(step.Event)
		require.NoError(t, err)
		line := step.Event.Name()
		switch data := data.(type) {
		case *schema.TurnStartedData:
			line += " " + *data.Messages[0].Parts[0].Content
		case *schema.MessageAddedData:
			line += " " + *data.Message.Parts[0].Content
		case *schema.ToolCalledData:
			line += " " + data.ToolCallID + " " + data.Name + " " + string(data.Replay) + string(data.Source)
		case *schema.ToolReturnedData:
			line += " " + data.ToolCallID
		case *schema.ToolFailedData:
			line += " " + data.ToolCallID + " " + data.Error.Type
		case *schema.StateSetData:
			line += " " + data.Key + " " + string(data.Value)
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

func TestBridge_GoldenHooks_AreRecorded(t *testing.T) {
	t.Parallel()
	for _, d := range []*codingagent.Dialect{codingagent.Claude, codingagent.Codex} {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			fleet := waymarktest.Start(t).Fleet("one", nil)
			h := bridge(t, fleet, d, nil)
			text, err := os.ReadFile(filepath.Join("testdata", d.Name+".jsonl"))
			require.NoError(t, err)
			for line := range bytes.Lines(text) {
				status, said := h.post(line)
				require.Equal(t, http.StatusOK, status, said)
				require.JSONEq(t, `{}`, said, "%s", line)
			}
			require.Nil(t, h.bridge.Close(), "the session has ended")
			var first struct {
				Session string `json:"session_id"`
			}
			require.NoError(t, json.Unmarshal(text[:bytes.IndexByte(text, '\n')], &first))
			want, err := os.ReadFile(filepath.Join("testdata", d.Name+".txt"))
			require.NoError(t, err)
			require.Equal(t, string(want), strings.Join(record(t, fleet, first.Session), "\n")+"\n")
		})
	}
}

func TestBridge_ParallelCalls_EachClosedOnce(t *testing.T) {
	t.Parallel()
	fleet := waymarktest.Start(t).Fleet("one", nil)
	h := bridge(t, fleet, codingagent.Claude, nil)
	h.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			call := bash("c" + strconv.Itoa(i))
			h.hook("PreToolUse", call)
			for range 2 { // an agent that repeats itself
				h.hook("PostToolUse", call)
			}
		})
	}
	all.Wait()
	head := h.bridge.Close().Head()
	require.Empty(t, head.OpenCalls)
	require.EqualValues(t, 16, head.Counts.ToolCalls)
	require.EqualValues(t, 16, head.Counts.ToolResults)
}

func TestBridge_CallAgain_IsDeniedWithItsResult(t *testing.T) {
	t.Parallel()
	h := bridge(t, waymarktest.Start(t).Fleet("one", nil), codingagent.Claude, nil)
	require.JSONEq(t, `{}`, h.hook("PreToolUse", bash("a")))
	h.hook("PostToolUse", bash("a"))
	require.Contains(t, h.hook("PreToolUse", bash("a")), `"permissionDecision":"deny","permissionDecisionReason":"waymark: this call has run already, and does not run again. Its recorded result: made"`)
}

func TestBridge_NotRecorded_IsRefused(t *testing.T) {
	t.Parallel()
	fleet := waymarktest.Start(t).Fleet("one", nil)
	h := bridge(t, fleet, codingagent.Codex, nil)
	h.hook("SessionStart", nil)
	require.NoError(t, fleet.Close(t.Context()))
	said := h.hook("PreToolUse", bash("a"))
	require.Contains(t, said, `"permissionDecision":"deny"`)
	require.NotContains(t, said, "continue", "Codex ignores an answer with members that it does not know")
	status, _ := h.try("UserPromptSubmit", map[string]any{"prompt": "Do it."})
	require.Equal(t, http.StatusServiceUnavailable, status)

	status, _ = h.post([]byte(`[]`))
	require.Equal(t, http.StatusBadRequest, status)
	w := httptest.NewRecorder()
	h.bridge.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(`{}`)))
	require.Equal(t, http.StatusUnauthorized, w.Code)
}

func TestBridge_SecondResume_FencesAndAdoptsTheLateResult(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	first := bridge(t, w.Fleet("one", nil), codingagent.Claude, nil)
	first.hook("PreToolUse", bash("a"))
	first.hook("PreToolUse", bash("b"))
	fleet := w.Fleet("two", nil)
	_, err := resumed(t, fleet, "s1")
	require.ErrorIs(t, err, publisher.ErrHeld)

	require.Contains(t, first.hook("PreToolUse", bash("c")), "deny")
	first.hook("PostToolUse", bash("a"))
	require.Empty(t, first.stopped, "a call runs")
	first.hook("PostToolUse", bash("b"))
	require.ErrorIs(t, <-first.stopped, publisher.ErrFenced)
	require.Contains(t, first.hook("PreToolUse", bash("c")), `"continue":false`)

	second, err := resumed(t, w.Fleet("three", nil), "s1")
	require.NoError(t, err)
	require.Contains(t, second.hook("UserPromptSubmit", map[string]any{"prompt": "Go on."}), "(call b): It did finish: made")
	require.JSONEq(t, `{}`, second.hook("UserPromptSubmit", map[string]any{"prompt": "And on."}), "told once")
}

func TestSettle_EachPolicy_ModelIsTold(t *testing.T) {
	t.Parallel()
	for replay, how := range map[schema.Replay]schema.Settlement{
		schema.ReplayPure: "", schema.ReplayIdempotent: "", schema.ReplayHold: schema.SettledDecided, "hold, again": schema.SettledRerun, "hold, left": schema.SettledAbandoned,
	} {
		t.Run(string(replay), func(t *testing.T) {
			t.Parallel()
			w := waymarktest.Start(t)
			tools := codingagent.Tools{"Ba*": {Replay: replay}}
			if how != "" {
				tools = nil
			}
			first := bridge(t, w.Fleet("one", nil), codingagent.Claude, tools)
			first.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
			first.hook("PreToolUse", bash("a"))
			first.bridge.Close()
			fleet := w.Fleet("two", nil)
			if how != "" {
				_, err := resumed(t, fleet, "s1")
				require.ErrorIs(t, err, publisher.ErrHeld)
				request := schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, CallEpoch: 1, How: how, By: "ann"}
				if how == schema.SettledDecided {
					request.Result = []byte(`"made by hand"`)
				}
				_, err = fleet.Settle(t.Context(), "s1", request)
				require.NoError(t, err)
			}
			second, err := resumed(t, w.Fleet("three", nil), "s1")
			require.NoError(t, err)
			said := second.hook("SessionStart", nil)
			switch how {
			case schema.SettledDecided:
				require.Contains(t, said, "A person says what its outcome was: made by hand")
			case schema.SettledAbandoned:
				require.Contains(t, said, "A person decided to go on without its result.")
			default:
				require.Contains(t, said, "repeat")
			}
			require.Empty(t, second.bridge.Close().Head().OpenCalls)
		})
	}
}

func TestBridge_AnotherSession_BeginsAnotherRun(t *testing.T) {
	t.Parallel()
	fleet := waymarktest.Start(t).Fleet("one", nil)
	h := bridge(t, fleet, codingagent.Claude, nil)
	h.hook("SessionStart", nil)
	part := func(delta string, final bool) {
		h.hook("MessageDisplay", map[string]any{"message_id": "m", "delta": delta, "final": final})
	}
	part("First.", true)
	part("Hel", false)
	h.session = "s2"
	h.hook("SessionStart", map[string]any{"source": "clear"})
	require.Empty(t, h.bridge.Last())
	part("lo", true)
	first, err := fleet.Get(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, schema.StatusCompleted, first.Head.Status)
	require.Equal(t, "First.", first.Head.Summary)
	require.Equal(t, "lo", h.bridge.Last())
	require.Equal(t, "s2", h.bridge.Close().ID())
	require.Equal(t, []string{"run.started", "message.added lo"}, record(t, fleet, "s2"))
}

func TestBridge_AgentInterruptedWhileAPersonIsAsked_CallIsClosed(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	tools := codingagent.Tools{"Bash": {Replay: schema.ReplayHold, Ask: true}}
	fleet := w.Fleet("one", func(c *publisher.Config) { c.Policy = tools.Policy() })
	h := bridge(t, fleet, codingagent.Claude, tools)
	h.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
	ctx, interrupt := context.WithCancel(t.Context())
	answered := make(chan string, 1)
	go func() {
		_, said := h.postFor(ctx, []byte(`{"hook_event_name":"PreToolUse","session_id":"s1","tool_name":"Bash","tool_input":{},"tool_use_id":"a"}`))
		answered <- said
	}()
	asked := func() bool {
		head, err := fleet.Head(t.Context(), "s1")
		return err == nil && len(head.Interrupts) == 1
	}
	require.Eventually(t, asked, time.Minute, 10*time.Millisecond)
	interrupt()
	require.Contains(t, <-answered, `"permissionDecision":"deny"`, "an agent that reads on does not run the tool")
	require.False(t, asked(), "there is nothing to allow")
	require.Empty(t, h.bridge.Close().Head().OpenCalls)
	lines := record(t, fleet, "s1")
	require.Equal(t, "tool.failed a not_run", lines[len(lines)-1])
}

func TestReadTools_Lines_ReplaceTheBuiltIn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tools")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("# sandbox\nBash = pure # it is thrown away\n\nRead = hold ask\nmcp__* = idempotent\nmcp__mail__* = hold\n")
	tools, err := codingagent.ReadTools(file)
	require.NoError(t, err)
	for name, want := range map[string]codingagent.Tool{
		"Bash": {Replay: schema.ReplayPure}, "Read": {Replay: schema.ReplayHold, Ask: true}, "Grep": {Replay: schema.ReplayPure}, "Write": {Replay: schema.ReplayIdempotent},
		"Edit": {Replay: schema.ReplayHold}, "mcp__notes__add": {Replay: schema.ReplayIdempotent}, "mcp__mail__send": {Replay: schema.ReplayHold},
	} {
		require.Equal(t, want, tools.Of(name), name)
	}
	require.NotNil(t, tools.Policy())
	for _, bad := range []string{"Bash", "Bash = sure", "= pure", "Bash = pure always", "Bash = verify"} {
		write(bad)
		_, err := codingagent.ReadTools(file)
		require.ErrorContains(t, err, "line 1", bad)
	}
}

func TestCheck_Version_IsReadAndJudged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dialect       *codingagent.Dialect
		said, problem string
	}{
		{codingagent.Claude, "2.1.332 (Claude Code)\n", ""},
		{codingagent.Claude, "2.1.240 (Claude Code)\n", ""},
		{codingagent.Claude, "2.1.197 (Claude Code)\n", "claude 2.1.197 is too old: waymark needs 2.1.240 or later"},
		{codingagent.Codex, "codex-cli 0.171.0\n", ""},
		{codingagent.Codex, "codex-cli 0.90.1\n", "too old"},
		{codingagent.Codex, "none", "printed no version"},
	} {
		err := c.dialect.Check(c.said)
		if c.problem == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.problem)
		}
	}
	require.Equal(t, codingagent.Claude, codingagent.Of("/opt/bin/claude"))
	require.Equal(t, codingagent.Codex, codingagent.Of("codex.exe"))
	require.Nil(t, codingagent.Of("gemini"))
}

// FuzzHooks: what a hook sends is recorded or refused, and the bridge goes on.
func FuzzHooks(f *testing.F) {
	for _, name := range []string{"claude", "codex"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
		require.NoError(f, err)
		for line := range bytes.Lines(text) {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h := &hooked{t: t, session: "s1"}
		h.bridge = codingagent.New(t.Context(), codingagent.Config{
			Dialect: codingagent.Claude, Token: token, Stop: func(error) {},
			Open: func(ctx context.Context, id string) (*publisher.Run, *schema.State, error) {
				run, err := publisher.Unrecorded(ctx, publisher.Config{Executor: "one"}, publisher.RunSpec{ID: id, Agent: "claude"})
				return run, nil, err
			},
			Left: func(context.Context, *publisher.Run, string) error { return nil },
		}, "", nil, nil)
		defer h.bridge.Close()
		h.post(body)
	})
}

func TestBridge_ResumedTranscriptLacksAResult_ModelIsTold(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	first := bridge(t, w.Fleet("one", nil), codingagent.Claude, nil)
	first.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
	for _, id := range []string{"a", "b"} {
		first.hook("PreToolUse", bash(id))
		first.hook("PostToolUse", bash(id))
	}
	first.bridge.Close()
	file := filepath.Join(t.TempDir(), "s1.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"content":[{"tool_use_id":"a","type":"tool_result"}]}`), 0o600))
	second, err := resumed(t, w.Fleet("two", nil), "s1")
	require.NoError(t, err)
	said := second.hook("SessionStart", map[string]any{"source": "resume", "transcript_path": file})
	require.Contains(t, said, "(call b): made")
	require.NotContains(t, said, "(call a)")
}

func TestBridge_KilledBeforeItsTranscript_ModelIsToldAgain(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	first := bridge(t, w.Fleet("one", nil), codingagent.Claude, codingagent.Tools{"Bash": {Replay: schema.ReplayPure}})
	first.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
	long := bash("a")
	long["tool_input"] = map[string]string{"command": strings.Repeat("m", 5000)}
	first.hook("PreToolUse", long)
	first.hook("PostToolUse", long)
	first.hook("PreToolUse", bash("b"))
	first.bridge.Close()
	file := filepath.Join(t.TempDir(), "s1.jsonl")
	start := map[string]any{"source": "resume", "transcript_path": file}
	for _, name := range []string{"two", "three"} { // the first of them is killed before it writes a line
		h, err := resumed(t, w.Fleet(name, nil), "s1")
		require.NoError(t, err)
		said := h.hook("SessionStart", start)
		require.Contains(t, said, "(call a): made", name)
		require.Contains(t, said, "(call b): its process died", name)
		h.hook("UserPromptSubmit", map[string]any{"prompt": "Go on."})
		h.bridge.Close()
		if name == "three" {
			require.NoError(t, os.WriteFile(file, []byte(said), 0o600))
		}
	}
	h, err := resumed(t, w.Fleet("four", nil), "s1")
	require.NoError(t, err)
	require.JSONEq(t, `{}`, h.hook("SessionStart", start), "the transcript has the news")
}

func TestBridge_ToolThatAsks_RunsOnceAPersonHasAllowedIt(t *testing.T) {
	t.Parallel()
	for decision, want := range map[string]string{schema.DecisionAllow: `"permissionDecision":"allow"`, schema.DecisionDeny: `"permissionDecision":"deny"`} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			w := waymarktest.Start(t)
			tools := codingagent.Tools{"Bash": {Replay: schema.ReplayHold, Ask: true}}
			h := bridge(t, w.Fleet("one", func(c *publisher.Config) { c.Policy = tools.Policy() }), codingagent.Claude, tools)
			read := map[string]any{"tool_name": "Read", "tool_input": map[string]string{}, "tool_use_id": "r"}
			require.JSONEq(t, `{}`, h.hook("PreToolUse", read), "it needs no permission")
			said := make(chan string, 1)
			go func() {
				_, answer := h.try("PreToolUse", bash("a"))
				said <- answer
			}()
			person := w.Fleet("person", nil)
			var asked schema.OpenInterrupt
			require.Eventually(t, func() bool {
				head, err := person.Head(t.Context(), "s1")
				if err != nil || len(head.Interrupts) == 0 {
					return false
				}
				asked = head.Interrupts[0]
				return true
			}, time.Minute, 10*time.Millisecond)
			require.Empty(t, said)
			answer := publisher.Input{InterruptID: asked.InterruptID, EventID: asked.Position.ID, Payload: []byte(`{"decision":"` + decision + `"}`), By: "ann"}
			require.NoError(t, person.Input(t.Context(), "s1", answer))
			require.Contains(t, <-said, want)
			h.hook("PostToolUse", read)
			h.hook("PostToolUse", bash("a")) // the agent reports nothing of a denied call, and nothing would come of it
			require.Empty(t, h.bridge.Close().Head().OpenCalls)
		})
	}
}
