package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
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

// A prompt that the bridge of install has no run for is not sent, because the model would go on without the call in doubt.
func TestAgentHook_BridgeRefusesAPrompt_ItIsNotSent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("its hooks need a shell")
	}
	bridge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "call c1 is held", http.StatusServiceUnavailable)
	}))
	t.Cleanup(bridge.Close)
	dir := t.TempDir()
	at := fmt.Sprintf(`{"url":%q,"token":"t"}`, bridge.URL)
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("agent-%d.json", os.Getpid())), []byte(at), 0o600))
	for event, refused := range map[string]bool{"UserPromptSubmit": true, "PreToolUse": true, "PostToolUse": false, "Stop": false} {
		cmd := exec.CommandContext(t.Context(), "waymark", "agent", "hook", "--of", "claude")
		cmd.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+dir)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"hook_event_name":%q,"session_id":"s"}`, event))
		out, err := cmd.CombinedOutput()
		require.Contains(t, string(out), "call c1 is held", event)
		if !refused {
			require.NoError(t, err, event)
			continue
		}
		exit, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, event)
		require.Equal(t, 2, exit.ExitCode(), event)
	}
}
