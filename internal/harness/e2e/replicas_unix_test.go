//go:build unix

package e2e_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// TestReplicas_KillsAndPauses_ShareShards kills, ends and stops replicas of the daemon while runs publish.
func TestReplicas_KillsAndPauses_ShareShards(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	s := newSharded(t, 4, "a", "b", "c")
	s.awaitShared("three replicas started", "a", "b", "c")
	runs := 24
	if testbin.Full(t) {
		runs = 200
	}
	fleet := s.connect("executor-1")
	s.drive(fleet, "run", runs)

	s.replicas["b"].kill9(t)
	s.awaitShared("one is killed", "a", "c")
	s.serve("b")
	s.awaitShared("it comes back", "a", "b", "c")

	require.NoError(t, s.replicas["c"].cmd.Process.Signal(syscall.SIGTERM))
	<-s.replicas["c"].gone
	require.NoError(t, s.replicas["c"].err, "it stops cleanly")
	s.awaitShared("one stops", "a", "b")

	// Stopped for a moment, shorter than the lease: nothing moves, or on a machine that is slow all comes back.
	require.NoError(t, s.replicas["a"].cmd.Process.Signal(syscall.SIGSTOP))
	moment := time.NewTimer(2 * time.Second)
	<-moment.C
	require.NoError(t, s.replicas["a"].cmd.Process.Signal(syscall.SIGCONT))
	moment.Reset(4 * time.Second)
	<-moment.C
	s.awaitShared("one is stopped for a moment", "a", "b")

	// Stopped for longer: the other takes all shards, and later returns those assigned to the first.
	require.NoError(t, s.replicas["a"].cmd.Process.Signal(syscall.SIGSTOP))
	s.awaitShared("one is stopped for long", "b")
	require.NoError(t, s.replicas["a"].cmd.Process.Signal(syscall.SIGCONT))
	s.awaitShared("it goes on", "a", "b")
	s.prove(fleet, runs)
}
