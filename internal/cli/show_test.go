package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// storied is a run with a takeover, a wait, a call that failed and one in doubt.
func storied(t *testing.T) *world {
	t.Helper()
	w := &world{waymarktest.Start(t), t}
	clock := func(c *publisher.Config) {
		c.Agent = "coder"
		c.Now = w.Now
		c.Policy = func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
			if call.Name == "deploy" {
				return publisher.Decision{Decision: schema.DecisionAsk, Message: "Deploy to production?"}, nil
			}
			return publisher.Decision{Decision: schema.DecisionAllow}, nil
		}
	}
	after := w.Advance
	f := w.Fleet("ex-1", clock)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "fix-login", Task: "Fix the login.", Model: "gpt", ModelTier: "large", Provider: "openai"})
	require.NoError(t, err)
	answer := func(run *publisher.Run, took time.Duration, calls ...publisher.ToolCall) *publisher.Turn {
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		after(took)
		_, err = turn.Answer(t.Context(), publisher.Answer{
			Message: schema.Message{Role: schema.RoleAssistant}, Calls: calls, Duration: took, Model: "gpt",
			Usage: &schema.Usage{InputTokens: 812, OutputTokens: 40},
		})
		require.NoError(t, err)
		return turn
	}
	does := func(turn *publisher.Turn, call publisher.ToolCall, took time.Duration, failure error) {
		_, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			after(took)
			return publisher.ToolResult{Result: []byte(`"ok"`)}, failure
		})
		if failure == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, publisher.ErrToolFailed)
		}
	}
	read := publisher.ToolCall{ID: "a", Name: "read_file", Replay: publisher.Pure}
	test := publisher.ToolCall{ID: "b", Name: "run_tests", Replay: publisher.Pure}
	mail := publisher.ToolCall{ID: "c", Name: "send_mail", Replay: publisher.Hold}
	deploy := publisher.ToolCall{ID: "d", Name: "deploy", Replay: publisher.Hold}
	after(50 * time.Millisecond)
	turn := answer(run, 1200*time.Millisecond, read, test)
	does(turn, read, 20*time.Millisecond, nil)
	does(turn, test, 2400*time.Millisecond, errors.New("3 tests fail"))
	require.NoError(t, answer(run, 800*time.Millisecond, mail).Begin(t.Context(), schema.CallKey{Turn: 2, ToolCallID: "c", Occurrence: 1}))
	after(12 * time.Second)
	second := w.Fleet("ex-2", clock)
	run, err = second.Resume(t.Context(), "fix-login", publisher.ResumeSpec{})
	require.NoError(t, err)
	_, err = run.OpenTurn().Tool(t.Context(), mail, nil)
	require.ErrorIs(t, err, publisher.ErrHeld)
	after(time.Minute)
	_, err = second.Settle(t.Context(), "fix-login", schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "c", Occurrence: 1}, CallEpoch: 1, How: schema.SettledAbandoned, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	turn = answer(run, 700*time.Millisecond, deploy)
	asked := make(chan error, 1)
	go func() {
		_, err := turn.Tool(t.Context(), deploy, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{Duration: 300 * time.Millisecond}, run.Artifact(t.Context(), schema.ArtifactAddedData{
				ArtifactID: "patch", Name: "login.patch", MediaType: "text/x-diff", Content: []byte(`"+ cookie"`),
			})
		})
		asked <- err
	}()
	w.Await("fix-login", schema.StatusWaiting)
	after(90 * time.Second)
	require.NoError(t, second.Input(t.Context(), "fix-login", publisher.Input{InterruptID: "approval.3.d.1", EventID: questionOf(t, second, "fix-login", "approval.3.d.1"), Payload: []byte(`{"decision":"allow"}`), By: "ann"}))
	require.NoError(t, <-asked)
	after(time.Second)
	require.NoError(t, run.Compact(t.Context(), schema.ContextCompactedData{Summary: "The session cookie was lost.", ThroughTurn: 2, TokensBefore: 48_000, TokensAfter: 900}))
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "pull", Name: "pull request", URI: "https://example.com/pulls/12"}))
	require.NoError(t, run.Limit(t.Context(), "turns", 3, 3))
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Summary: "The login works again."}))
	return w
}

func TestRunsShow_Run_TellsStory(t *testing.T) {
	t.Parallel()
	w := storied(t)
	for _, columns := range []string{"80", "100", "200", ""} {
		code, out, complaints := w.ask(columns, "", "runs", "show", "fix-login")
		require.Zero(t, code, complaints)
		width := map[string]int{"80": 80, "100": 100, "200": 200, "": 1000}[columns]
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), width, line)
		}
		require.NotContains(t, out, "\x1b", "no colour where no terminal is")
		require.Regexp(t, `\+\d+ms +1  model +█+\S* +1\.2s +812 in, 40 out; gpt`, out)
		require.Regexp(t, `read_file +[▏▎▍▌▋▊▉█]+ +\d`, out)
		require.Regexp(t, `run_tests +█+\S* +\d\S* +failed: `, out)
		require.Regexp(t, `taken over +by ex-2 \(request\)`, out)
		require.Regexp(t, `completed +The login works again\.`, out)
		require.Regexp(t, `(?m)^model +gpt, tier large, openai$`, out)
		require.Regexp(t, `(?m)^calls decided +\d+ allowed, 1 asked a person$`, out)
		require.Regexp(t, `(?m)^made +2 artifacts, 1 compaction$`, out)
		require.Regexp(t, `compacted +turns through 2 in a summary, 48000 tokens to 900\n`, out)
		require.Regexp(t, `policy +ask about deploy\n`, out)
		require.Regexp(t, `artifact +login\.patch; text/x-diff; 8 B; in the run\n`, out)
		require.Regexp(t, `artifact +pull request; link: https://`, out)
		require.Regexp(t, `limit +reached turns: 3 of 3\n`, out)
	}
	for _, columns := range []string{"80", "100", "200"} {
		code, out, complaints := w.ask(columns, "", "runs", "get", "fix-login")
		require.Zero(t, code, complaints)
		require.Regexp(t, `(?m)^model tier +large$`, out)
		require.Regexp(t, `(?m)^made +2 artifacts, 1 compaction$`, out)
		require.Regexp(t, `(?m)^limit reached +turns$`, out)
	}
	code, out, _ := w.ask("", "", "runs", "show", "fix-login", "--json")
	require.Zero(t, code)
	var told struct {
		Turns, Takeovers int
		Story            []struct{ Kind, What, Detail string }
		ModelTier        string `json:"model_tier"`
		Artifacts        int
		Decisions        struct{ Asked int }
		Limits           []struct{ Limit string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &told))
	require.Equal(t, 3, told.Turns)
	require.Equal(t, 1, told.Takeovers)
	require.Equal(t, "large", told.ModelTier)
	require.Equal(t, 2, told.Artifacts)
	require.Equal(t, 1, told.Decisions.Asked)
	require.Equal(t, "turns", told.Limits[0].Limit)
	require.NotEmpty(t, told.Story)
	code, out, _ = w.ask("100", "", "runs", "show", "fix-login", "--turns", "1")
	require.Zero(t, code)
	require.Regexp(t, `… \d+ lines before: --turns 0 shows all`, out)
	require.NotContains(t, out, "read_file")
	code, _, complaints := w.ask("100", "", "runs", "show", "unknown")
	require.Equal(t, 4, code)
	require.Contains(t, complaints, "has no run unknown")
}

func TestRunsGet_AtAndFull_ShowAPointAndWholeMessages(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	f := w.Fleet("ex-1", nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	long := strings.Repeat("All of it is shown. ", 40) + "The end."
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(long)}}))
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "a", Name: "search", Replay: publisher.Pure, Arguments: []byte(`{"for":"` + strings.Repeat("x", 300) + `y"}`)}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{{Type: schema.PartToolCall, ID: "a", Name: "search"}}}, Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{Result: []byte(`{"found":"` + strings.Repeat("z", 300<<10) + `w"}`)}, nil // in the blob store
	})
	require.NoError(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	code, out, complaints := w.ask("80", "", "runs", "get", "r1", "--full")
	require.Zero(t, code, complaints)
	var state schema.State
	require.NoError(t, json.Unmarshal([]byte(out), &state), "the width of the terminal breaks no line of it")
	require.Equal(t, long, *state.Messages[0].Parts[0].Content)
	require.JSONEq(t, string(call.Arguments), string(state.Calls[0].Arguments))
	require.Contains(t, string(state.Calls[0].Result), "zzzw", "also what is in the object store")
	code, out, _ = w.ask("80", "", "runs", "get", "r1", "--at", "seq:2")
	require.Zero(t, code)
	require.Contains(t, out, "as it was at")
	code, out, _ = w.ask("80", "", "runs", "get", "r1", "--at", "seq:2", "--full")
	require.Zero(t, code)
	require.NotContains(t, out, "search")
	code, _, complaints = w.ask("80", "", "runs", "get", "r1", "--at", "yesterday")
	require.Equal(t, 2, code)
	require.Contains(t, complaints, "waymark runs history RUN")
	code, _, complaints = w.ask("100", "", "events", "r1", "--all", "--no-follow", "--type", "tool.retuned")
	require.Zero(t, code)
	require.Contains(t, complaints, "--type tool.retuned is not in the vocabulary and shows only executors' own events of this name; known names: tool.called, tool.decided,")
	code, out, complaints = w.ask("100", "", "events", "r1", "--all", "--no-follow", "--type", "tool,run.ended")
	require.Empty(t, complaints)
	require.Zero(t, code)
	require.NotContains(t, out, "turn.started")
	require.Contains(t, out, "tool.returned")
	require.Contains(t, out, "run.ended")
	code, _, complaints = w.ask("100", "", "events", "--type", "Tool")
	require.Equal(t, 2, code)
	require.Contains(t, complaints, "--type Tool is not an event name")
	t.Run("colour", func(t *testing.T) {
		for variable, want := range map[string]bool{"FORCE_COLOR": true, "NO_COLOR": false} {
			var out strings.Builder
			getenv := func(name string) string {
				return map[string]string{"WAYMARK_STATE_DIR": w.StateDir(), "FORCE_COLOR": "1", variable: "1"}[name]
			}
			require.Zero(t, Run(t.Context(), []string{"events", "r1", "--all", "--no-follow"}, getenv, nil, &out, &out))
			require.Equal(t, want, strings.Contains(out.String(), "\x1b["), variable)
		}
	})
}

// A pure call that was open at a takeover has two lines: what became of it there, and what the next executor made of it.
func TestRunsShow_CallIsRunAgain_HasALineForEach(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	f := w.Fleet("ex-1", nil)
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "a", Name: "search", Replay: publisher.Pure}
	for _, last := range []bool{false, true} {
		run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
		require.NoError(t, err)
		turn := run.OpenTurn()
		if turn == nil {
			turn, err = run.StartTurn(t.Context(), publisher.TurnSpec{})
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err = turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
			if !last {
				cancel()
				return publisher.ToolResult{}, ctx.Err()
			}
			return publisher.ToolResult{Result: []byte(`"found"`), Duration: time.Second}, nil
		})
		cancel()
		require.Equal(t, last, err == nil, err)
	}
	code, out, complaints := w.ask("100", "", "runs", "show", "r1")
	require.Zero(t, code, complaints)
	require.Regexp(t, `submitted +by ex-1`, out)
	require.Regexp(t, `(?s)search +no outcome: its executor was gone.*taken over.*search .* 1\.0s`, out)
}

// A call whose executor has left the run does not run any more, also before another executor comes.
func TestRunsShow_ExecutorLeftInACall_DoesNotRun(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	run, err := w.Fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "a", Name: "mail"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, publisher.ErrLost
	})
	require.ErrorIs(t, err, publisher.ErrLost)
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPreempted))
	code, out, complaints := w.ask("100", "", "runs", "show", "r1")
	require.Zero(t, code, complaints)
	require.Regexp(t, `mail +no outcome: its executor was gone`, out)
	require.NotContains(t, out, "running")
}

// Calls that an answer asked for, and that the next executor ran, stand behind the takeover, in their order.
func TestRunsShow_NextExecutorRunsTheCall_LineIsBehindTheTakeover(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	clock := func(c *publisher.Config) { c.Now = w.Now }
	run, err := w.Fleet("ex-1", clock).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	calls := []publisher.ToolCall{{ID: "a", Name: "zip", Replay: publisher.Idempotent}, {ID: "b", Name: "mail", Replay: publisher.Idempotent}}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant}, Calls: calls})
	require.NoError(t, err)
	w.Advance(30 * time.Second)
	run, err = w.Fleet("ex-2", clock).Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	w.Advance(5 * time.Second)
	for i, call := range calls {
		_, err = run.OpenTurn().Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			w.Advance(time.Duration(i+2) * time.Second)
			return publisher.ToolResult{Result: []byte(`"ok"`)}, nil
		})
		require.NoError(t, err)
	}
	code, out, complaints := w.ask("100", "", "runs", "show", "r1")
	require.Zero(t, code, complaints)
	require.Regexp(t, `(?s)\+3\d\.\ds +taken over[^\n]*\n +\+\d\d\.\ds +zip [^\n]* \d\.\ds\n +\+\d\d\.\ds +mail [^\n]* \d\.\ds`, out)
	require.Equal(t, 1, strings.Count(out, "zip"), out)
}

// With the key the commands show the task and the labels of an encrypted run, and without it neither.
func TestRuns_EncryptedTask_OnlyTheKeyShowsIt(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("k1 "+firstKey+"\n"), 0o600))
	f := w.Fleet("ex-1", func(c *publisher.Config) {
		encryption, err := publisher.KeyFile(keys)
		require.NoError(t, err)
		encryption.ReadableLabels = []string{"team"}
		c.Encryption = encryption
	})
	warned := "stored in plain text, although run r1 of agent clerk is encrypted with key k1: to encrypt them, provide the key with --key-file"
	code, _, complaints := w.ask("100", "", "start", "clerk", "--id", "r0", "--task", "Look.")
	require.Zero(t, code, complaints)
	require.NotContains(t, complaints, "plain text")
	_, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "clerk", Task: "Pay the rent.", Labels: map[string]string{"payee/1": "the landlord", "team": "blue"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the list is a moment old
		_, out, _ := w.ask("100", "", "runs", "ls", "--quiet")
		return strings.Contains(out, "r1")
	}, time.Minute, 10*time.Millisecond)
	code, _, complaints = w.ask("400", "", "start", "clerk", "--id", "r2", "--task", "Look.")
	require.Zero(t, code, complaints)
	require.Contains(t, complaints, warned)
	code, _, complaints = w.ask("400", "", "start", "clerk", "--id", "r3")
	require.Zero(t, code, complaints)
	require.NotContains(t, complaints, "plain text", "there is no content")
	code, _, complaints = w.ask("400", "", "start", "clerk", "--id", "r4", "--task", "Look.", "--key-file", keys)
	require.Zero(t, code, complaints)
	require.NotContains(t, complaints, "plain text")
	for _, words := range [][]string{
		{"runs", "show", "r1"},
		{"runs", "get", "r1"},
		{"runs", "get", "r1", "--json"},
		{"runs", "get", "r1", "--at", "record:1"},
		{"runs", "get", "r1", "--view", "state"},
	} {
		code, out, complaints := w.ask("100", "", words...)
		require.Zero(t, code, complaints)
		require.Contains(t, out, "(encrypted", words)
		require.NotContains(t, out, "rent", words)
		code, out, complaints = w.ask("100", "", append(words, "--key-file", keys)...)
		require.Zero(t, code, complaints)
		require.Contains(t, out, "Pay the rent.", words)
		require.NotContains(t, out, "(encrypted", words)
		if words[1] == "get" {
			require.Contains(t, out, "the landlord", words)
			require.Contains(t, out, "blue", words)
		}
	}
}

// What a run that was handed in did: its first executor took nothing over, a denied call took no time, and nothing is open behind the end.
// The loop of such a run is another program's: its turns are no requests to a model.
func TestRunsShow_LoopOfAnotherProgram_HasNoModelRows(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	f := w.Fleet("ex-1", nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	say := func(role string) schema.Message {
		return schema.Message{Role: role, Parts: []schema.Part{schema.Text("x")}}
	}
	for i, calls := range [][]publisher.ToolCall{{{ID: "a", Name: "look", Replay: publisher.Pure}}, nil} {
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{say(schema.RoleUser)}})
		require.NoError(t, err)
		keys, err := turn.Call(t.Context(), calls...)
		require.NoError(t, err)
		for _, key := range keys {
			require.NoError(t, turn.Return(t.Context(), key, publisher.ToolResult{}))
		}
		if i == 1 {
			require.NoError(t, run.AddMessage(t.Context(), say(schema.RoleAssistant)))
		}
	}
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	code, out, complaints := w.ask("100", "", "runs", "show", "r1")
	require.Zero(t, code, complaints)
	require.Contains(t, out, "look")
	require.NotContains(t, out, "no answer was recorded")
	code, out, _ = w.ask("100", "", "verify", "r1", "--strict")
	require.Zero(t, code, out)
}

func TestRunsShow_RunThatEnded_NothingIsOpen(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	f := w.Fleet("ex-1", nil)
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	calls := []publisher.ToolCall{{ID: "a", Name: "pay", Replay: publisher.Hold}, {ID: "b", Name: "look", Replay: publisher.Pure}}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant}, Calls: calls})
	require.NoError(t, err)
	require.NoError(t, turn.Fail(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, schema.Error{Type: schema.DeniedType, Message: "not today"}))
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput, Message: "Which?"}))
	_, out, _ := w.ask("100", "", "runs", "show", "r1")
	require.Regexp(t, `look +…  requested`, out)
	require.Regexp(t, `waits +\S+…  for an answer: Which\?`, out)
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}})
	require.NoError(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "t", Message: "m"}}))
	code, out, complaints := w.ask("100", "", "runs", "show", "r1")
	require.Zero(t, code, complaints)
	require.Regexp(t, `claimed +by ex-1`, out)
	require.NotContains(t, out, "takeover")
	require.Regexp(t, `pay +denied: not today`, out)
	require.Regexp(t, `2 +model +no answer was recorded`, out)
	require.NotContains(t, out, "…")
}
