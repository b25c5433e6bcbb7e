//go:build unix

package nemesis_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// agentServiceVariable names what npm installs as the host SDK, such as a directory or an archive of the package;
// empty means the package of the registry.
const agentServiceVariable = "WAYMARK_AGENT_SERVICE"

// agentService is the host SDK of the Synadia Agent Protocol.
const agentService = "@synadia-ai/agent-service"

// TestSynadiaAgent_Killed_SeenAliveAndDead runs an agent that has nothing of ours in it but plain
// CloudEvents, published over its own NATS connection: once on a host that speaks the protocol by itself, and once on
// the protocol's own SDK.
func TestSynadiaAgent_Killed_SeenAliveAndDead(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	folder := agentFolder(t)
	t.Run("on a host of its own", func(t *testing.T) {
		t.Parallel()
		seenAliveAndDead(t, folder, "./host.mjs")
	})
	t.Run("on "+agentService, func(t *testing.T) {
		t.Parallel()
		folder := agentFolder(t)
		specs := []string{agentService + "@^0.5"}
		if own := os.Getenv(agentServiceVariable); own != "" {
			specs = strings.Fields(own)
		}
		if out, err := npm(t, folder, append([]string{"install", "--no-save"}, specs...)...); err != nil {
			t.Skipf("npm cannot install %s, so this run does not prove the SDK itself; set %s to an archive of it: %v\n%s",
				specs, agentServiceVariable, err, out)
		}
		seenAliveAndDead(t, folder, agentService)
	})
}

// agentFolder installs the agent into a directory of the test.
func agentFolder(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s on this machine, so no agent of the Synadia Agent Protocol: install Node.js 20 or later", program)
		}
	}
	folder := filepath.Join(t.TempDir(), "agent")
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join("testdata", "agent-service"))))
	if out, err := npm(t, folder, "ci"); err != nil {
		t.Skipf("npm cannot install the NATS client, so no agent of the Synadia Agent Protocol: %v\n%s", err, out)
	}
	return folder
}

func npm(t *testing.T, folder string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", append(args, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

func seenAliveAndDead(t *testing.T, folder, host string) {
	t.Helper()
	const interval = "1" // second
	w := newLone(t, "--silence", "4s")
	end, err := statedir.Discover(t.Context(), w.state())
	require.NoError(t, err)
	agent := launch(t, "agent", func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), "node", "agent.mjs", host, end.Context, "watering", interval)
		cmd.Dir = folder
		return cmd
	})
	var said struct {
		Executor string `json:"executor"`
		Prompt   string `json:"prompt"`
	}
	require.NoError(t, agent.ready(&said))
	nc := w.conn(t)
	answer, err := nc.Request(said.Prompt, []byte("are you there?"), patience)
	require.NoError(t, err, "it is an agent of the protocol")
	require.JSONEq(t, `{"type":"status","data":"ack"}`, string(answer.Data))

	// Another run, begun later, whose executor sends no heartbeats: once it is orphaned, the silence is over for both.
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	for i := range 4 {
		_, err := js.PublishMsg(t.Context(), plainMessage("binary", "silent", i))
		require.NoError(t, err)
	}
	fleet := w.fleet(t, "successor")
	awaitStatus(t, fleet, "silent", schema.StatusOrphaned)
	head, err := fleet.Head(t.Context(), "watering")
	require.NoError(t, err)
	require.Equal(t, schema.StatusRunning, head.Status, "its heartbeats count, though it publishes nothing")
	require.Equal(t, said.Executor, head.Executor)

	require.NoError(t, agent.kill())
	awaitStatus(t, fleet, "watering", schema.StatusOrphaned)
	for _, id := range []string{"silent", "watering"} { // the one that waits for longest comes first
		run := claim(t, fleet, publisher.ClaimSpec{Agents: []string{"gardener"}})
		require.Equal(t, id, run.ID())
		require.EqualValues(t, 2, run.Epoch())
		require.Len(t, run.State().Head.InDoubt(), 1, "the call that was under way")
		require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	}
	_, err = fleet.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"gardener"}})
	require.ErrorIs(t, err, publisher.ErrNothing)
	require.Zero(t, w.deadLetters(t))
}
