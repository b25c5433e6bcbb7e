package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests of docs/reliability.md pass in an empty module outside of the repository, and fail there as the page says when a mistake is planted.
func TestTestsOnPage_EmptyModule_Pass(t *testing.T) {
	if testing.Short() {
		t.Skip("short: builds a test binary with a NATS server in it, three times")
	}
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	agent := copyTo(t, dir, "agent.go", "agent_test.go", "doc.go", "testdata/answer-bob.jsonl")
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) {
		out, err := run(args...)
		require.NoError(t, err, "go %s: %s", strings.Join(args, " "), out)
	}
	must("mod", "init", "example.com/clerk")
	must("mod", "edit", "-replace=github.com/waymarkio/waymark="+root)
	must("mod", "tidy")
	must("test", "-count=1", "./...")
	copyTo(t, dir, "testdata/planted.go.txt")
	require.NoError(t, os.Rename(filepath.Join(dir, "testdata", "planted.go.txt"), filepath.Join(dir, "planted_test.go")))
	for name, says := range map[string]string{
		"EffectOutsideOfATool":         "it was made outside of a tool",
		"HoldToolDeclaredPure":         `effect "mail to bob: Thank you." happened 2 times, and once without a crash: tool send_mail is pure`,
		"AnswerUsedBeforeItIsRecorded": `effect "post draft 2" happened once, and never without a crash`,
		"OutcomeMadeOfTheClock":        "two runs without a crash differ",
		"KeyIsNotHandedOver":           `effect "payment of 5 cents" happened 2 times, and once without a crash: tool pay is idempotent`,
		"ModelAlwaysFails":             "it ends as failed, not as completed: error: no route to the model; if this is correct, set Crash.Status",
		"EffectIsNotTold":              "no effect is reported to Outside: call Outside.Effect",
		"AnotherModelIsPlayed":         "the agent asked another model: pass Recorded.Model to it",
	} {
		out, err := run("test", "-count=1", "-run", "TestPlanted_"+name+"$", "./...")
		require.Error(t, err, name)
		require.Contains(t, out, says, name)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "planted_test.go")))
	page, err := os.ReadFile("../reliability.md")
	require.NoError(t, err)
	samples := regexp.MustCompile("(?s)```text\n(waymarktest: .*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, samples, 2)
	for i, planted := range []struct{ was, is, says string }{
		{"publisher.Hold", "publisher.Pure", `effect "mail to bob: Thank you." happened 2 times, and once without a crash: tool send_mail is pure`},
		{"You answer mail.", "You answer mail politely.", "in turn 1 message 1 to the model differs"},
	} {
		require.Contains(t, agent, planted.was)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "agent.go"), []byte(strings.Replace(agent, planted.was, planted.is, 1)), 0o600))
		out, err := run("test", "-count=1", "./...")
		require.Error(t, err, planted.is)
		require.Contains(t, out, planted.says)
		// The page breaks lines to its width.
		require.Contains(t, strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(samples[i][1]), " "))
	}
}

// copyTo copies files of the page's package, and returns the first.
func copyTo(t *testing.T, dir string, files ...string) (first string) {
	t.Helper()
	for i, file := range files {
		b, err := os.ReadFile(filepath.Join("tested", file))
		require.NoError(t, err)
		if i == 0 {
			first = string(b)
		}
		to := filepath.Join(dir, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, os.WriteFile(to, b, 0o600))
	}
	return first
}
