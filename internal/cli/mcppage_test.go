//go:build unix

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The commands of docs/mcp.md: the first one is killed in the middle of its call.
func TestMCPPage_Commands_ChargeOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: five seconds in a tool")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not here: docs/mcp.md is NOT TESTED")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "mcp.md"))
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.SplitAfter(strings.TrimSpace(block), "\n")
	require.Len(t, commands, 5)
	w := newPageWorld(t)
	for _, file := range []string{"bank.py", "calls.jsonl"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "mcp", file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, file), text, 0o600))
	}
	w.run(t, "-euc", strings.TrimSuffix(strings.TrimSpace(commands[0]), "&")+" >log1 2>&1 & echo $! >pid1")
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(filepath.Join(w.dir, "log1"))
		return err == nil && strings.Contains(string(log), "charging")
	}, time.Minute, 10*time.Millisecond)
	proxy, err := os.FindProcess(w.pid(t, "1"))
	require.NoError(t, err)
	require.NoError(t, proxy.Kill())
	require.Contains(t, w.run(t, "-euc", commands[1]), "waymark settle")
	w.run(t, "-euc", commands[2])
	said := w.run(t, "-euc", commands[3])
	require.Contains(t, said, `"text":"charged"`)
	require.Contains(t, said, `"io.waymark/recorded":true`)
	require.Equal(t, "charged Ann\n", w.run(t, "-euc", commands[4]))
}
