//go:build unix

package nemesis_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// It stops an executor of the demonstration in the middle of a tool that must not run again, for longer than it may be silent; lets another
// take the run over, which finds the call held; and lets the first continue.
func TestExecutor_PausedAndResumed_FencedResultAdopted(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	const run = "courier" // the agent, too
	w := newLone(t, "--silence", "2s")
	outside := t.TempDir()
	executor := func(name string) *process {
		return launch(t, name, func() *exec.Cmd { return w.waymark("demo-child", "demo-executor", "--name", name, "--world", outside) })
	}
	letters := func() int {
		b, err := os.ReadFile(filepath.Join(outside, "outbox.txt"))
		if err != nil {
			return 0
		}
		return bytes.Count(b, []byte("\n"))
	}
	fleet := w.fleet(t, "reader")
	_, err := fleet.Submit(t.Context(), publisher.RunSpec{ID: run, Agent: run})
	require.NoError(t, err)
	stopped := executor("stopped")
	require.Eventually(t, func() bool { return letters() == 2 }, patience, 5*time.Millisecond) // the tool goes on for three seconds
	require.NoError(t, stopped.pause())
	head, err := fleet.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, "stopped", head.Executor)
	require.Len(t, head.OpenCalls, 1, "it was stopped while its tool was under way")
	epoch := head.Epoch

	executor("successor")
	awaitStatus(t, fleet, run, schema.StatusWaiting)
	head, err = fleet.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, epoch+1, head.Epoch)
	require.Equal(t, "successor", head.Executor)
	require.Equal(t, schema.CallHeld, head.OpenCalls[0].State, "the outcome of the call is unknown")

	require.NoError(t, stopped.resume())
	awaitStatus(t, fleet, run, schema.StatusCompleted)
	state, err := fleet.Get(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, []schema.Settlement{schema.SettledAdopted}, state.Calls[1].Settlements, "the late result is adopted")
	require.EqualValues(t, 1, state.Head.Counts.LateResults)
	require.Zero(t, state.Head.Counts.Fenced, "the stopped executor published nothing else")
	require.Equal(t, len(state.Calls), letters(), "each letter was sent once")
	require.Len(t, state.Turns, len(state.Calls)+1, "one answer a turn")
	require.Zero(t, w.deadLetters(t))
}
