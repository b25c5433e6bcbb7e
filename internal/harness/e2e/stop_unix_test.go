//go:build unix

package e2e_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/schema"
)

// It stops an executor in the middle of a tool, for longer than it may be silent; lets another take the run over,
// which finds the call held; and lets the first continue.
func TestExecutor_PausedAndResumed_FencedResultAdopted(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	const run = "contested"
	w := newWorld(t, shortSilence...)
	fleet := w.fleet(t, "reader")
	// It claims nothing itself.
	stopped := w.worker(t, workerSettings{
		Name: "stopped", Start: []string{run}, Turns: 2, Capacity: -1,
		Calls: []workerCall{{ID: "tool", Replay: schema.ReplayHold, After: 1000}},
	})
	w.awaitEntry(t, run, journal.Effect)
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
	require.Zero(t, w.count(t, run, journal.End), "it was stopped while its tool was under way")

	w.worker(t, workerSettings{
		Name: "successor", Turns: 2, Capacity: 1, Calls: []workerCall{{ID: "tool", Replay: schema.ReplayHold}},
	})
	awaitStatus(t, fleet, run, schema.StatusWaiting)
	head, err := fleet.Head(t.Context(), run)
	require.NoError(t, err)
	require.EqualValues(t, 2, head.Epoch)
	require.Equal(t, "successor", head.Executor)
	require.True(t, head.OpenCalls[0].Held, "the outcome of the call is unknown")

	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	awaitStatus(t, fleet, run, schema.StatusCompleted)
	state, err := fleet.Get(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, "successor", state.Head.Executor)
	require.Len(t, state.Calls, 2)
	require.Equal(t, []schema.Settlement{schema.SettledAdopted}, state.Calls[0].Settlements, "the late result is adopted")
	require.Empty(t, state.Calls[1].Settlements)
	require.EqualValues(t, 1, state.Head.Counts.LateResults)
	require.Zero(t, state.Head.Counts.Fenced, "it published nothing else")
	require.Len(t, state.Messages, 2, "one answer a turn")
	require.Equal(t, 2, w.count(t, run, journal.Effect), "one effect a turn")

	// The stopped executor knows that it is fenced, and wrote nothing after the takeover.
	pid := stopped.cmd.Process.Pid
	require.Eventually(t, func() bool {
		for _, e := range w.history(t) {
			if e.PID == pid && e.Op == journal.Failed {
				return true
			}
		}
		return false
	}, patience, 20*time.Millisecond, "the stopped executor never learns that it is fenced")
	taken := false
	for _, e := range w.history(t) {
		taken = taken || e.Op == journal.Resumed
		if taken && e.PID == pid {
			require.NotEqual(t, journal.Ack, e.Op)
			require.NotEqual(t, journal.Begin, e.Op)
		}
	}
	require.Zero(t, w.deadLetters(t))
}
