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
	commands := firstCommands(t, "any-language.md", 3)
	w := newPageWorldWith(t, "--silence", "2s")
	w.copy(t, "workers", "waymark.py", "courier.py")
	background := func(n string) {
		w.background(t, n, commands[0])
		t.Cleanup(func() { _ = syscall.Kill(w.pid(t, n), syscall.SIGTERM) }) // it may have ended
	}
	background("1")
	ended := make(chan string, 1)
	go func() { ended <- w.run(t, "-euc", commands[1]) }() //nolint:testifylint // the test waits for it, and fails there
	w.said(t, "1", "asking the model, turn 2")
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(w.pid(t, "1")) + "/task/*/children") // none but on Linux
	require.NoError(t, err)
	for _, thread := range threads {
		children, err := os.ReadFile(thread)
		require.NoError(t, err)
		for child := range strings.FieldsSeq(string(children)) {
			program, err := strconv.Atoi(child)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(program, syscall.SIGKILL))
		}
	}
	w.said(t, "1", "program ended")
	w.said(t, "1", "asking the model, turn 3")
	require.NoError(t, syscall.Kill(w.pid(t, "1"), syscall.SIGKILL))
	background("2")
	require.Contains(t, <-ended, "All letters are sent.")
	sent, err := os.ReadFile(filepath.Join(w.dir, "sent.txt"))
	require.NoError(t, err)
	require.Equal(t, "a letter to Ann\na letter to Bob\na letter to Cleo\na letter to Dan\n", string(sent))
	require.Regexp(t, `(?m)^status +completed$`, w.run(t, "-euc", commands[2]))
}

// firstCommands are the lines of the first block of commands on a page.
func firstCommands(t *testing.T, page string, lines int) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(text), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.SplitAfter(strings.TrimSpace(block), "\n")
	require.Len(t, commands, lines)
	return commands
}

// copy copies files of docs/examples.
func (w pageWorld) copy(t *testing.T, folder string, files ...string) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", folder, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, file), text, 0o600))
	}
}

// background runs a command of a page that ends with &. Its process is the child of a shell that writes its id.
func (w pageWorld) background(t *testing.T, n, command string) {
	t.Helper()
	w.run(t, "-euc", strings.TrimSuffix(strings.TrimSpace(command), "&")+" >log"+n+" 2>&1 & echo $! >pid"+n)
}

// said waits until a command in the background has printed a text.
func (w pageWorld) said(t *testing.T, n, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(filepath.Join(w.dir, "log"+n))
		return err == nil && strings.Contains(string(log), text)
	}, time.Minute, 10*time.Millisecond, text)
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
