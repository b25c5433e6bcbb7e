package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAgentRun_NoServer_StartsOneThatStays(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the agent is a script of a shell")
	}
	dir := t.TempDir()
	agent := filepath.Join(dir, "codex")
	require.NoError(t, os.WriteFile(agent, []byte("#!/bin/sh\necho codex-cli 0.171.0\n"), 0o700)) //nolint:gosec // a program
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "waymark", args...)
		cmd.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+filepath.Join(dir, "state"), "WAYMARK_QUOTA=64MiB")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("agent", "run", "--", agent)
	require.Error(t, err)
	require.Contains(t, out, "no hook was called")
	found := regexp.MustCompile(`started waymark serve, which stays \(process (\d+)`).FindStringSubmatch(out)
	require.NotNil(t, found, out)
	pid, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	server, err := os.FindProcess(pid)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Kill()) })
	out, err = run("runs", "ls")
	require.NoError(t, err, out)
}
