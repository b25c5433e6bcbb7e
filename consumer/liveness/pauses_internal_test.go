package liveness

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

func TestPauses_RunsInScope_AreNeitherGivenNorCounted(t *testing.T) {
	t.Parallel()
	other := fleettest.Orphan("other-agent", "x", 700)
	other.Agent = "agent-2"
	driven := fleettest.Orphan("driven", "x", 5)
	driven.Status, driven.Driven = schema.StatusRunning, true
	stuck := fleettest.Orphan("stuck", "me", 800)
	stuck.Stalled = 3
	r := tableOf(t, fleettest.Orphan("old", "x", 100), fleettest.Orphan("young", "x", 10), other, driven, stuck)
	require.Empty(t, r.Unstopped(0))

	pause := func(scopes ...schema.Scope) {
		var list []schema.Pause
		for _, s := range scopes {
			list = append(list, schema.Pause{Scope: s})
		}
		r.SetPauses(list)
	}
	given := func() []string {
		got, total := r.Claimable(fleettest.Noon, Want{Executor: "me"})
		require.Len(t, got, total)
		return runsOf(got)
	}
	pause(schema.Scope{Agent: "agent-1"}, schema.Scope{Run: "young"})
	require.Equal(t, []string{"other-agent"}, given())
	require.Equal(t, Counts{Live: 5, Claimable: 1, Paused: 4}, r.Counts())
	require.Equal(t, map[string]int{"agent-2": 1}, r.ClaimableByAgent())
	require.Equal(t, []string{"driven"}, r.Unstopped(0))

	pause(schema.Scope{Run: "young"})
	require.Equal(t, []string{"other-agent", "old"}, given(), "at their old places")
	require.Empty(t, r.Unstopped(0))
	pause()
	require.Equal(t, []string{"other-agent", "old", "young"}, given())
	require.False(t, slices.Contains(given(), "stuck"))
}
