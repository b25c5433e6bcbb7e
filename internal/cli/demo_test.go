package cli

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/demo"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// startDemo runs the demonstration as a process of its own, with its temporary directory below the test's.
func startDemo(t *testing.T, temp string) (*exec.Cmd, *bufio.Reader, *bytes.Buffer) {
	t.Helper()
	// TestMain puts the program into the path.
	cmd := exec.CommandContext(context.Background(), "waymark", "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "TMP="+temp, "TEMP="+temp, "GORACE=atexit_sleep_ms=0", "NATS_URL=nats://missing.invalid")
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // gone, unless the test failed
	return cmd, bufio.NewReader(stdout), stderr
}

func TestDemo_Kills_NothingLostOrRunTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the whole demonstration")
	}
	t.Parallel()
	temp := t.TempDir()
	cmd, stdout, stderr := startDemo(t, temp)
	out, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), "%s\n%s", out, stderr)
	for _, want := range []string{
		`(?m)^events LOST +0$`,
		`(?m)^runs taken over +3 `,
		`(?m)^calls of look \(pure\) +5  6 executions`,
		`(?m)^calls of book \(idempotent\) +5  6 executions, 5 effects`,
		`(?m)^calls of send \(hold\) +5  5 executions, 5 effects`,
		`(?m)^The proof holds`,
	} {
		require.Regexp(t, want, string(out))
	}
	requireGone(t, string(out), temp)
}

func TestDemo_Ended_LeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the demonstration, four times")
	}
	if runtime.GOOS == "windows" {
		t.Skip("windows cannot send an interrupt to one process: run this test on another system")
	}
	// A process begun by nohup ignores a hangup, and so do its children, unless it is caught.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for _, test := range []struct {
		name   string
		signal os.Signal
		code   int
	}{
		{"interrupted", os.Interrupt, int(failure.Interrupted)},
		{"terminated", syscall.SIGTERM, int(failure.Interrupted)},
		{"hung up", syscall.SIGHUP, int(failure.Interrupted)},
		{"killed", os.Kill, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			temp := t.TempDir()
			cmd, stdout, stderr := startDemo(t, temp)
			var seen strings.Builder
			for !strings.Contains(seen.String(), "KILLED") { // executors and a server are at work
				line, err := stdout.ReadString('\n')
				require.NoError(t, err, stderr)
				seen.WriteString(line)
			}
			require.NoError(t, cmd.Process.Signal(test.signal))
			rest, err := io.ReadAll(stdout)
			require.NoError(t, err)
			seen.Write(rest)
			_ = cmd.Wait()
			require.Equal(t, test.code, cmd.ProcessState.ExitCode(), stderr)
			if test.signal == os.Kill {
				temp = "" // no process was left to remove it
			}
			requireGone(t, seen.String(), temp)
		})
	}
}

func TestDemo_NoPlaceForItsFiles_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	cmd, stdout, stderr := startDemo(t, filepath.Join(t.TempDir(), "missing"))
	out, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Empty(t, out)
	require.Equal(t, int(failure.General), cmd.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "hint: set TMPDIR")
}

// requireGone waits until every process that the output names is gone, and checks that temp is empty.
func requireGone(t *testing.T, output, temp string) {
	t.Helper()
	if temp != "" {
		entries, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, entries, "the temporary directory is still there")
	}
	if runtime.GOOS == "windows" {
		return // there is no signal 0
	}
	processes := regexp.MustCompile(`process (\d+)`).FindAllStringSubmatch(output, -1)
	require.NotEmpty(t, processes)
	for _, match := range processes {
		pid, err := strconv.Atoi(match[1])
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			p, err := os.FindProcess(pid)
			return err != nil || p.Signal(syscall.Signal(0)) != nil
		}, demo.StopLimit+5*time.Second, 20*time.Millisecond, "process %d is still there", pid)
	}
}
