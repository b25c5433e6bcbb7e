//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The commands of docs/any-language.md, while the program and then the worker are killed.
func TestAnyLanguagePage_Commands_SurviveKills(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: five turns of three seconds")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not here: docs/any-language.md is NOT TESTED")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "any-language.md"))
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.SplitAfter(strings.TrimSpace(block), "\n")
	require.Len(t, commands, 3)
	w := newPageWorldWith(t, "--silence", "2s")
	for _, file := range []string{"waymark.py", "courier.py"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "workers", file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, file), text, 0o600))
	}
	// The page's first command runs in the background. Its process is the child of a shell that writes its id.
	background := func(n string) {
		w.run(t, "-euc", strings.TrimSuffix(strings.TrimSpace(commands[0]), "&")+" >log"+n+" 2>&1 & echo $! >pid"+n)
		t.Cleanup(func() { _ = syscall.Kill(w.pid(t, n), syscall.SIGTERM) }) // it may have ended
	}
	said := func(n, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			log, err := os.ReadFile(filepath.Join(w.dir, "log"+n))
			return err == nil && strings.Contains(string(log), text)
		}, time.Minute, 10*time.Millisecond, text)
	}
	background("1")
	ended := make(chan string, 1)
	go func() { ended <- w.run(t, "-euc", commands[1]) }() //nolint:testifylint // the test waits for it, and fails there
	said("1", "asking the model, turn 2")
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(w.pid(t, "1")) + "/task/*/children") // none but on Linux
	require.NoError(t, err)
	for _, thread := range threads {
		children, err := os.ReadFile(thread)
		require.NoError(t, err)
		for child := range strings.FieldsSeq(string(children)) {
			program, err := strconv.Atoi(child)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(program, syscall.SIGKILL))
			said("1", "program ended")
		}
	}
	said("1", "asking the model, turn 3")
	require.NoError(t, syscall.Kill(w.pid(t, "1"), syscall.SIGKILL))
	background("2")
	require.Contains(t, <-ended, "All letters are sent.")
	sent, err := os.ReadFile(filepath.Join(w.dir, "sent.txt"))
	require.NoError(t, err)
	require.Equal(t, "a letter to Ann\na letter to Bob\na letter to Cleo\na letter to Dan\n", string(sent))
	require.Regexp(t, `(?m)^status +completed$`, w.run(t, "-euc", commands[2]))
}

// pid is the process id in a file.
func (w pageWorld) pid(t *testing.T, n string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "pid"+n))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return pid
}
