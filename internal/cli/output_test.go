package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/natsconn"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPrintTable_Terminal_CutsProseAndDropsColumnsAndKeepsIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", schema.MaxName)
	runs := []schema.RunSummary{
		{Run: long, Agent: long, Status: schema.StatusInterrupted, Gapped: true, InDoubt: 12, Epoch: 1 << 31, Turn: 1 << 30, Events: 1 << 60, ToolCalls: 1 << 60},
		{Run: "short", Status: schema.StatusRunning},
		{Run: "wide-界界界界界", Agent: strings.Repeat("界", 60), Status: schema.StatusRunning, UpdatedAt: "2026-01-02T03:04:05Z"},
	}
	for _, width := range []int{40, 80, 100, 200, 0} {
		var b bytes.Buffer
		require.NoError(t, printRuns(page{&b, width, width == 0}, runs, time.Unix(0, 0)))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		require.Len(t, lines, 4)
		require.Contains(t, lines[1], long+"  ")
		require.Contains(t, lines[1], "gapped, 12 in doubt")
		require.Contains(t, lines[2], "short")
		require.NotContains(t, b.String(), "…")
		require.Equal(t, width == 0, strings.Contains(lines[0], "AGENT"), "a pipe gets all columns: %s", lines[0])
		for _, l := range lines {
			require.Equal(t, strings.TrimRight(l, " "), l)
		}
	}
}

func TestPrintTable_Prose_IsCutOrWrappedOnATerminalAndWholeInAPipe(t *testing.T) {
	t.Parallel()
	prose := strings.TrimSpace(strings.Repeat("word ", 40))
	for _, wraps := range []bool{true, false} {
		columns := []column{{title: "id"}, {title: "says", shrinks: true, wraps: wraps}}
		var terminal, pipe bytes.Buffer
		require.NoError(t, printTable(page{&terminal, 80, false}, columns, [][]string{{"id-1", prose}}))
		require.NoError(t, printTable(page{&pipe, 80, true}, columns, [][]string{{"id-1", prose}}))
		for l := range strings.Lines(terminal.String()) {
			require.LessOrEqual(t, len([]rune(l)), 81, l)
		}
		require.Equal(t, !wraps, strings.Contains(terminal.String(), "…"), terminal.String())
		require.Equal(t, wraps, strings.Count(terminal.String(), "word") == 40, terminal.String())
		require.Contains(t, pipe.String(), "id-1  "+prose+"\n")
	}
}

func TestTextFromOutsideCannotSteerATerminal(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"plain":            "plain",
		"日本語 ünïcode":      "日本語 ünïcode",
		"two\nlines\tnow":  "two lines now",
		"red \x1b[31mtext": `red \x1b[31mtext`,
		"bell \a":          `bell \a`,
		"right\u202eleft":  `right\u202eleft`,
		"broken \xff byte": `broken \xff byte`,
		"nul \x00":         `nul \x00`,
		"c1 \u009b31m":     `c1 \u009b31m`,
		"kept \ufffd":      "kept \ufffd",
	}
	for in, want := range tests {
		require.Equal(t, want, printable(in))
	}
}

func TestEveryFailureHasItsCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err  error
		code exitCode
		hint string
	}{
		{io.ErrUnexpectedEOF, exitFailure, ""},
		{fmt.Errorf("x: %w", natsconn.ErrNoServer), exitUnavailable, "waymark serve"},
		{fmt.Errorf("x: %w", natsconn.ErrRefused), exitRefused, "--creds"},
		{fmt.Errorf("x: %w", natsconn.ErrSettings), exitUsage, "waymark help"},
		{schema.CheckName("run id", "a b"), exitUsage, "ids look like"},
		{&schema.ServiceError{Code: schema.CodeNotFound, Message: "no"}, exitNotFound, "waymark runs ls"},
		{&schema.ServiceError{Code: schema.CodeDamaged, Hint: "restore"}, exitDamaged, "restore"},
		{&schema.ServiceError{Code: schema.CodeStorageFull}, exitFull, ""},
		{&schema.ServiceError{Code: schema.CodeOverloaded}, exitUnavailable, ""},
		{&schema.ServiceError{Code: schema.CodeInternal}, exitFailure, ""},
		{&schema.ServiceError{Code: schema.CodeUnknownInterrupt}, exitNotFound, ""},
		{&schema.ServiceError{Code: schema.CodeInvalidAnswer}, exitUsage, ""},
		{&schema.ServiceError{Code: schema.CodeUnknownHandoff}, exitNotFound, ""},
		{&schema.ServiceError{Code: schema.CodeHandoffTaken}, exitConflict, ""},
		{&schema.ServiceError{Code: schema.CodeQuarantined, Hint: "waymark release r"}, exitConflict, "waymark release r"},
		{fmt.Errorf("x: %w", publisher.ErrUnknownInterrupt), exitNotFound, "waymark input"},
		{fmt.Errorf("x: %w", publisher.ErrInvalidAnswer), exitUsage, "waymark input"},
		{fmt.Errorf("x: %w", publisher.ErrUnknownHandoff), exitNotFound, "waymark handoff ls"},
		{fmt.Errorf("x: %w", publisher.ErrHandoffTaken), exitConflict, "waymark handoff ls"},
		{fmt.Errorf("x: %w", publisher.ErrQuarantined), exitConflict, "waymark release"},
		{&publisher.FullError{Fleet: "f", Quota: 10, Used: 10}, exitFull, "--quota"},
		{&publisher.FullError{Fleet: "f", Quota: 10, Used: 10, Relieved: true}, exitFull, "try again later"},
		{fmt.Errorf("x: %w", publisher.ErrFenced), exitConflict, "runs get"},
		{fmt.Errorf("x: %w", publisher.ErrIncomplete), exitDamaged, "runs get"},
		{fmt.Errorf("x: %w", publisher.ErrNoService), exitUnavailable, "waymark serve"},
		{fmt.Errorf("x: %w", transcript.ErrUnknownFormat), exitUsage, "--format"},
		{fmt.Errorf("x: %w", transcript.ErrDiverged), exitConflict, "nothing was written"},
		{fmt.Errorf("x: %w", transcript.ErrInUse), exitConflict, "--take-over"},
		{fmt.Errorf("x: %w", transcript.ErrCancelled), exitConflict, "--take-over"},
		{fmt.Errorf("x: %w", kvstore.ErrStreamMissing), exitDamaged, "backup"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrNotExist}), exitNotFound, "its directory, is not there"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrPermission}), exitFailure, "rights"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrInvalid}), exitFailure, "check the path"},
		{&kvstore.ConfigError{Stream: "S", Command: "nats stream edit S"}, exitConflict, "nats stream edit S"},
	}
	for _, test := range tests {
		f := explain(t.Context(), test.err)
		require.Equal(t, test.code, f.code, "%v", test.err)
		require.Contains(t, f.hint, test.hint, "%v", test.err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt signal received"))
	require.Equal(t, exitInterrupted, explain(ctx, fmt.Errorf("reading: %w", context.Canceled)).code)
	require.Equal(t, exitInterrupted, explain(ctx, fmt.Errorf("reading: %w", context.Cause(ctx))).code)
	require.Equal(t, exitFailure, explain(ctx, io.ErrUnexpectedEOF).code, "a failure stays one")
}

func TestExitCodesAreExplainedOnce(t *testing.T) {
	t.Parallel()
	seen := map[exitCode]bool{}
	for _, e := range exitCodes {
		require.False(t, seen[e.code])
		require.NotEmpty(t, e.meaning)
		seen[e.code] = true
	}
	for _, list := range [][]sentinel{publisherErrors, storageErrors, transcriptErrors} {
		for _, s := range list {
			require.True(t, seen[s.code], "%v", s.err)
		}
	}
}

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
			require.LessOrEqual(t, len([]rune(l)), pipeWidth+1, "%v: %s", args, l)
		}
	}
}

func TestAFailureIsTwoLinesAndAClosedReaderNone(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.Equal(t, 2, report(t.Context(), fail(exitUsage, "do that", "wrong\nthing"), prompt{}, &b))
	require.Equal(t, "waymark: wrong\n  thing\nhint: do that\n", b.String())
	b.Reset()
	require.Zero(t, report(t.Context(), fmt.Errorf("writing: %w", io.ErrClosedPipe), prompt{}, &b))
	require.Zero(t, report(t.Context(), nil, prompt{}, &b))
	require.Empty(t, b.String())
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]byteSize{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "1.5MiB": 3 << 19, "10GiB": 10 << 30, "10g": 10 << 30, "1GB": 1e9, " 2 TB ": 2e12, "7b": 7,
	} {
		got, err := parseByteSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "x", "-1", "1PiB", "NaN", "1e30", "GiB", "10 000"} {
		_, err := parseByteSize(text)
		require.ErrorContains(t, err, "is not a size", text)
	}
}

func TestTheBarIsClearedAndNeverRunsOver(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	bar := newBar(&b, "importing", 100, true)
	bar.add(60)
	bar.add(60)
	bar.add(-500)
	bar.close()
	require.Contains(t, b.String(), "importing")
	new(progress).add(1)
	new(progress).close()
}

func TestAHeldWaitEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(ctx, []string{"runs", "ls", "--nats", "nats://192.0.2.1:4222"}, func(string) string { return "" }, nil, &stdout, &stderr)
	require.Equal(t, int(exitInterrupted), code)
	require.Equal(t, "waymark: interrupted\n", stderr.String())
}

func TestABlockKeepsWhatALineBeginsWithAndAllOfAValue(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word  ", 40)
	text := indented([]byte(`{"a":{"b":"`+long+`"},"n":1}`), pipeWidth)
	var joined strings.Builder
	for l := range strings.Lines(text) {
		require.LessOrEqual(t, len(l), pipeWidth+1)
		joined.WriteString(strings.TrimPrefix(strings.TrimSuffix(l, "\n"), "      "))
	}
	require.Contains(t, text, "\n    \"a\": {\n")
	require.Equal(t, 40, strings.Count(joined.String(), "word"))
	require.Contains(t, wrapped("one\n  two "+long, pipeWidth), "\n    two word")
	require.Equal(t, "  a \\x1b[31m b\n", wrapped("a \x1b[31m b", pipeWidth))
	require.Empty(t, indented(nil, pipeWidth))
}

// Ids and commands are pasted: a line is wrapped between words only, and a command not at all.
func TestHanging_NarrowTerminal_WrapsBetweenWords(t *testing.T) {
	t.Parallel()
	narrow := page{io.Discard, 40, false}
	prose, long := strings.Repeat("some words ", 8)+"end", strings.Repeat("x", 60)
	for l := range strings.Lines(hanging(narrow, "label  ", prose)) {
		require.LessOrEqual(t, len(strings.TrimRight(l, "\n")), 40)
		require.Regexp(t, "^(label|     )  [a-z]", l)
	}
	require.Equal(t, prose, strings.Join(strings.Fields(hanging(narrow, "", prose)), " "), "nothing is lost")
	require.Contains(t, hanging(narrow, "label  ", "one "+long+" two"), long)
	for _, command := range []string{"waymark runs get " + prose, "see it with: waymark runs get " + prose} {
		require.Equal(t, "  "+command, hanging(narrow, "  ", command))
	}
	require.Contains(t, hanging(narrow, "", "ask waymark settle about "+prose), "\n")
	require.Equal(t, "a "+prose, hanging(page{io.Discard, 40, true}, "a ", prose), "a program reads one line")
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
	require.NoError(t, proof.print(page{&b, 80, false}))
	require.NotContains(t, b.String(), "…")
	for l := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len([]rune(strings.TrimRight(l, "\n"))), 80, b.String())
	}
}
