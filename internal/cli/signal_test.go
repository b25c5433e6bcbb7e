package cli

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
)

// startProcess runs the program in a process of its own and returns once it has printed a line, or at once if
// there is nothing to wait for.
func startProcess(t *testing.T, dir, until string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "waymark", args...)
	cmd.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+dir, "WAYMARK_HTTP=127.0.0.1:0", "WAYMARK_QUOTA=64MiB", "GORACE=atexit_sleep_ms=0")
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	for until != "" {
		require.True(t, lines.Scan(), "it ended before it printed %q: %s", until, stderr)
		if strings.Contains(lines.Text(), until) {
			break
		}
	}
	return cmd, stderr
}

func TestServe_CtrlC_EndsDaemonAndFollowers(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signal that one process can send to one other: press Ctrl-C by hand")
	}
	dir := filepath.Join(t.TempDir(), "state")
	serve, serveLog := startProcess(t, dir, "waymark is ready", "serve", "--json=false")
	cmd := exec.CommandContext(t.Context(), "waymark", "runs", "get", "missing")
	cmd.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+dir)
	require.Error(t, cmd.Run())
	require.Equal(t, int(failure.NotFound), cmd.ProcessState.ExitCode())

	add := exec.CommandContext(t.Context(), "waymark", "start", "talker", "--id", "talk")
	add.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+dir)
	require.NoError(t, add.Run())

	for _, args := range [][]string{{"events", "--all"}, {"events", "talk", "--all"}} {
		follower, log := startProcess(t, dir, "talk", args...)
		require.NoError(t, follower.Process.Signal(os.Interrupt))
		require.NoError(t, follower.Wait(), "%v: %s", args, log)
		require.Empty(t, log.String(), "%v", args)
	}

	require.NoError(t, serve.Process.Signal(os.Interrupt))
	require.NoError(t, serve.Wait(), "%s", serveLog)
	require.NoFileExists(t, filepath.Join(dir, "endpoint.json"))
	require.NoFileExists(t, filepath.Join(dir, "running.json"))
}
