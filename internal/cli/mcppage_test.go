//go:build unix

package cli

import (
	"os"
	"os/exec"
	"testing"

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
	commands := firstCommands(t, "mcp.md", 5)
	w := newPageWorld(t)
	w.copy(t, "mcp", "bank.py", "calls.jsonl")
	w.background(t, "1", commands[0])
	w.said(t, "1", "charging")
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
