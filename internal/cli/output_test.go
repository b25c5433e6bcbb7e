package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

func TestHelpKeepsToItsWidth(t *testing.T) {
	t.Parallel()
	pages := [][]string{{"help"}}
	for _, c := range []string{"plan", "input", "cancel", "release", "tree", "recover", "settle", "handoff accept", "handoff decline", "handoff close", "runs ls"} {
		pages = append(pages, append(strings.Fields(c), "--help"))
	}
	for _, args := range pages {
		var stdout, stderr bytes.Buffer
		require.Zero(t, Run(t.Context(), args, func(string) string { return "" }, nil, &stdout, &stderr), stderr.String())
		for l := range strings.Lines(stdout.String()) {
			require.LessOrEqual(t, len([]rune(l)), output.PipeWidth+1, "%v: %s", args, l)
		}
	}
}

func TestAHeldWaitEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(ctx, []string{"runs", "ls", "--nats", "nats://192.0.2.1:4222"}, func(string) string { return "" }, nil, &stdout, &stderr)
	require.Equal(t, int(failure.Interrupted), code)
	require.Equal(t, "waymark: interrupted\n", stderr.String())
}

func TestPlanTexts_RequestedCallAndNoTurn_AreCounted(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 make, 1 hold", notReusedText(&schema.Plan{Calls: []schema.PlanCall{{Action: schema.CallHold}, {Action: schema.CallMake}}}))
	require.Equal(t, "2 calls", savedText(&schema.Saved{Calls: 2}))
	require.Equal(t, "1 model answer, 7 tokens (3 in, 4 out)", savedText(&schema.Saved{Turns: 1, Tokens: 7, Usage: schema.Usage{InputTokens: 3, OutputTokens: 4}}))
}

func TestGist_AnswerAndOrphan_AreReadable(t *testing.T) {
	t.Parallel()
	event := func(name, data string) *schema.Event {
		return &schema.Event{Type: schema.TypeOf(name), DataContentType: schema.ContentTypeJSON, Data: []byte(data)}
	}
	require.Equal(t, "turn 1, assistant: two, c1 look, c2 mail", gist(event(schema.TurnAnswered,
		`{"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"two"},{"type":"tool_call","id":"c1","name":"look"},{"type":"tool_call","id":"c2","name":"mail"}]},`+
			`"calls":[{"tool_call_id":"c1","name":"look"},{"tool_call_id":"c2","name":"mail"}]}`)))
	require.Regexp(t, `^executor e, last seen \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`, gist(event(schema.RunOrphaned, `{"executor":"e","last_seen":"2026-01-31T08:00:00.123456789Z"}`)))
}

func TestMessages_EmptyText_LeavesNoMark(t *testing.T) {
	t.Parallel()
	empty, text := "", "on my way"
	call := func(name string) schema.Part { return schema.Part{Type: "tool_call", Name: name} }
	require.Equal(t, "assistant: book_berth, book_berth", messagesText([]schema.Message{
		{Role: "assistant", Parts: []schema.Part{{Type: "text", Content: &empty}, call("book_berth"), call("book_berth")}},
	}))
	require.Equal(t, "on my way, book_berth", messagesText([]schema.Message{{Parts: []schema.Part{{Type: "text", Content: &text}, call("book_berth")}}}))
}

func TestDemoProof_NarrowTerminal_KeepsItsSentences(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	var proof demoProof
	require.NoError(t, proof.print(output.NewPage(&b, env("COLUMNS", "80"))))
	require.NotContains(t, b.String(), "…")
	for l := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len([]rune(strings.TrimRight(l, "\n"))), 80, b.String())
	}
}

func TestPrintTable_Terminal_CutsProseAndDropsColumnsAndKeepsIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", schema.MaxName)
	runs := []schema.RunSummary{
		{Run: long, Agent: long, Status: schema.StatusInterrupted, Gapped: true, InDoubt: 12, Epoch: 1 << 31, Turn: 1 << 30, Events: 1 << 60, ToolCalls: 1 << 60},
		{Run: "short", Status: schema.StatusRunning},
		{Run: "wide-界界界界界", Agent: strings.Repeat("界", 60), Status: schema.StatusRunning, UpdatedAt: "2026-01-02T03:04:05Z"},
	}
	for _, width := range []string{"40", "80", "100", "200", ""} {
		var b bytes.Buffer
		require.NoError(t, printRuns(output.NewPage(&b, env("COLUMNS", width)), runs, time.Unix(0, 0)))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		require.Len(t, lines, 4)
		require.Contains(t, lines[1], long+"  ")
		require.Contains(t, lines[1], "gapped, 12 in doubt")
		require.Contains(t, lines[2], "short")
		require.NotContains(t, b.String(), "…")
		require.Equal(t, width == "", strings.Contains(lines[0], "AGENT"), "a pipe gets all columns: %s", lines[0])
		for _, l := range lines {
			require.Equal(t, strings.TrimRight(l, " "), l)
		}
	}
}
