//go:build unix

package examples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// quickstartLimit bounds all steps of the page, two builds included.
const quickstartLimit = 8 * time.Minute

// TestQuickstart_PastedIntoAnEmptyModule_AgentGoesOnAfterKill pastes the commands of the README in the page's order. Only
// the clone is a link to this repository, and the daemon of the other terminal runs in the background.
func TestQuickstart_PastedIntoAnEmptyModule_AgentGoesOnAfterKill(t *testing.T) {
	if testing.Short() {
		t.Skip("short: builds the program and an agent, and lets the agent work for twenty seconds")
	}
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	blocks := regexp.MustCompile("(?s)(<!-- not run: [^\n]+ -->\n)?```sh\n(.*?)```\n").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 5)
	var steps strings.Builder
	for _, b := range blocks {
		if b[1] == "" {
			steps.WriteString(b[2])
		}
	}
	text := steps.String()
	swap := func(old, now string) {
		require.Equal(t, 1, strings.Count(text, old), old)
		text = strings.Replace(text, old, now, 1)
	}
	swap("git clone https://github.com/waymarkio/waymark\n", "ln -s '"+root+"' waymark\n")
	serve := "./waymark serve --silence 2s --log-level warn"
	swap(serve+"\n", serve+" > serve.log 2>&1 & echo $! >> pids; until grep -q 'waymark is ready' serve.log; do kill -0 $!; sleep 0.1; done\n")
	agent := "./courier 2>> courier.log &\n"
	require.Equal(t, 2, strings.Count(text, agent))
	text = strings.ReplaceAll(text, agent, "./courier 2>> courier.log & echo $! >> pids\n")

	t.Cleanup(func() {
		pids, err := os.ReadFile(filepath.Join(dir, "courier", "pids"))
		require.NoError(t, err)
		for pid := range strings.FieldsSeq(string(pids)) {
			n, err := strconv.Atoi(pid)
			require.NoError(t, err)
			_ = syscall.Kill(n, syscall.SIGKILL) // one was killed before
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), quickstartLimit)
	defer cancel()
	out, err := os.Create(filepath.Join(dir, "output"))
	require.NoError(t, err)
	shell := exec.CommandContext(ctx, "sh", "-euc", text)
	// Not into a pipe: what the shell leaves behind would keep it open.
	shell.Dir, shell.Stdout, shell.Stderr = dir, out, out
	shell.Env = os.Environ()
	for _, name := range []string{"NATS_URL", "NATS_CONTEXT", "WAYMARK_NATS_URL", "WAYMARK_NATS_CONTEXT", "WAYMARK_FLEET"} {
		shell.Env = append(shell.Env, name+"=")
	}
	shell.Env = append(shell.Env, "WAYMARK_STATE_DIR="+filepath.Join(dir, "state"), "WAYMARK_HTTP=off", "COLUMNS=100")
	failed := shell.Run()
	require.NoError(t, out.Close())
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(b)
	}
	said := read("output")
	require.NoError(t, failed, "%s", said)

	require.Equal(t, "a letter to Ann\na letter to Bob\na letter to Cleo\na letter to Dan\n", read("courier/sent.txt"), "each once")
	require.Equal(t, []string{"1", "2", "3", "3", "4", "5"}, submatches(`(?m)^asking the model, turn (\d)$`, read("courier/courier.log")))
	require.Contains(t, said, "All letters are sent.")
	require.Regexp(t, `(?m)^ +\+\S+ +taken over +by courier-1 \(claim\)$`, said)
	require.Regexp(t, `(?m)^status +completed$`, said)
}

func submatches(pattern, text string) (found []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}
