package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// The commands under "Limit runs at work", unchanged.
func TestLimit_CommandsOfThePage_BoundTheFleet(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "people.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Limit runs at work")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.Split(strings.TrimSpace(block), "\n")
	require.Len(t, commands, 5)
	w := newPageWorld(t)
	events, err := parseScriptEvents(`run.started {"agent":"coder","executor":"coder-1","labels":{"tenant":"acme"}}`)
	require.NoError(t, err)
	end, err := natsconn.Discover(t.Context(), filepath.Join(w.dir, "state"))
	require.NoError(t, err)
	require.NoError(t, publishEvents(t.Context(), end, "working", events))
	w.run(t, "-euc", "waymark start coder --id other --label tenant=other && waymark start coder --id queued --label tenant=acme")

	hasAll(t, w.run(t, "-euc", commands[0]), "set", "--each tenant", "1")
	const waits = "waits for a place: limit --label tenant=acme, 1 at work"
	eventually := func(command, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Contains(strings.Join(strings.Fields(w.run(t, "-euc", command)), " "), want)
		}, time.Minute, 100*time.Millisecond, want)
	}
	eventually(commands[2], "waits for a place:")
	require.Regexp(t, `(?m)^--each tenant +acme +1 +1 +1 `, w.run(t, "-euc", commands[1]))
	hasAll(t, strings.Join(strings.Fields(w.run(t, "-euc", "waymark runs get queued")), " "), waits+"; see: waymark limit ls")
	hasAll(t, strings.Join(strings.Fields(w.run(t, "-euc", "waymark plan queued")), " "), "nothing: the run "+waits)
	hasAll(t, w.run(t, "-euc", "waymark fleet"), "1 claimable", "1 waiting for a place")
	hasAll(t, w.run(t, "-euc", "curl -s http://127.0.0.1:9477/metrics"), `waymark_runs_waiting_for_place{fleet="default"} 1`)
	hasAll(t, w.run(t, "-euc", commands[3]), "urgent")
	hasAll(t, w.run(t, "-euc", "waymark runs get urgent"), "priority", "9")
	hasAll(t, w.run(t, "-uc", commands[3]+" --priority 8; true"), "priority")
	hasAll(t, w.run(t, "-euc", commands[4]), "ended", "--each tenant")
	eventually("waymark fleet", "3 claimable")
}
