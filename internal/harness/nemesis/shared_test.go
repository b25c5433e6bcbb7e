//go:build unix

package nemesis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// TestReplicas_KillsAndPauses_ShareShards kills, ends and stops replicas of the daemon while runs publish.
func TestReplicas_KillsAndPauses_ShareShards(t *testing.T) {
	t.Parallel() // it mostly waits
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

	require.NoError(t, s.replicas["b"].kill())
	s.awaitShared("one is killed", "a", "c")
	s.serve("b")
	s.awaitShared("it comes back", "a", "b", "c")

	require.NoError(t, s.replicas["c"].terminate(t.Context()), "it stops cleanly")
	s.awaitShared("one stops", "a", "b")

	// Stopped for a moment, shorter than the lease: nothing moves, or on a machine that is slow all comes back.
	require.NoError(t, s.replicas["a"].pause())
	moment := time.NewTimer(2 * time.Second)
	<-moment.C
	require.NoError(t, s.replicas["a"].resume())
	moment.Reset(4 * time.Second)
	<-moment.C
	s.awaitShared("one is stopped for a moment", "a", "b")

	// Stopped for longer: the other takes all shards, and later returns those assigned to the first.
	require.NoError(t, s.replicas["a"].pause())
	s.awaitShared("one is stopped for long", "b")
	require.NoError(t, s.replicas["a"].resume())
	s.awaitShared("it goes on", "a", "b")
	s.prove(fleet, runs)
}
