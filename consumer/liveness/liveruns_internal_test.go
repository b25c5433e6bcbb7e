package liveness

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

var noLog = zerolog.Nop()

// tableOf has one shard with these entries, without a watch.
func tableOf(tb testing.TB, entries ...schema.Live) *LiveRuns {
	tb.Helper()
	r := NewLiveRuns(make([]*kvstore.Shard, 1), 3, func() time.Time { return fleettest.Noon }, zerolog.Nop())
	r.begin(0)
	for i := range entries {
		r.apply(0, &kvstore.LiveEntry{Run: entries[i].Run, Live: &entries[i], Revision: schema.Revision(i + 1)})
	}
	r.sync(0)
	return r
}

func runsOf(entries []schema.Live) []string {
	var runs []string
	for i := range entries {
		runs = append(runs, entries[i].Run)
	}
	return runs
}

func TestLiveRuns_Claim_OwnRunsThenOldest(t *testing.T) {
	t.Parallel()
	running := fleettest.Orphan("running", "me", 900)
	running.Status = schema.StatusRunning
	stuck := fleettest.Orphan("stuck", "me", 800)
	stuck.Stalled = 3
	other := fleettest.Orphan("other-agent", "x", 700)
	other.Agent = "agent-2"
	unlabelled := fleettest.Orphan("unlabelled", "x", 600)
	unlabelled.Labels = nil
	r := tableOf(t, fleettest.Orphan("young", "x", 10), fleettest.Orphan("old", "x", 100), fleettest.Orphan("mine-young", "me", 5), fleettest.Orphan("mine-old", "me", 50),
		running, stuck, other, unlabelled)
	require.True(t, r.Synced())

	got, total := r.Claimable(fleettest.Noon, Want{Executor: "me", Agents: []string{"agent-1"}, Labels: map[string]string{"team": "a"}})
	require.Equal(t, []string{"mine-old", "mine-young", "old", "young"}, runsOf(got))
	require.Equal(t, 4, total)
	got, total = r.Claimable(fleettest.Noon, Want{Executor: "unknown"})
	require.Equal(t, []string{"other-agent", "unlabelled", "old", "mine-old", "young", "mine-young"}, runsOf(got))
	require.Equal(t, 6, total)
	_, total = r.Claimable(fleettest.Noon, Want{Executor: "me", MaxClaims: -1})
	require.Equal(t, 7, total, "without a limit nothing is quarantined")
	require.Equal(t, Counts{Live: 8, Claimable: 6, Quarantined: 1}, r.Counts())
}

func TestLiveRuns_ManyRunsOfATenant_OthersTakeTurns(t *testing.T) {
	t.Parallel()
	of := func(tenant, run string, age int) schema.Live {
		l := fleettest.Orphan(run, "x", age)
		l.Labels = map[string]string{schema.TenantLabel: tenant}
		return l
	}
	working := of("small", "at-work", 1)
	working.Status = schema.StatusRunning
	entries := []schema.Live{working, fleettest.Orphan("none", "x", 1)}
	for i := range 10_000 {
		entries = append(entries, of("big", fmt.Sprintf("big-%04d", i), 20_000-i))
	}
	for i := range 3 {
		entries = append(entries, of("small", fmt.Sprintf("small-%d", i), 10-i))
	}
	r := tableOf(t, entries...)
	got, total := r.Claimable(fleettest.Noon, Want{Executor: "me"})
	require.Equal(t, []string{"big-0000", "none", "big-0001", "small-0", "big-0002", "small-1", "big-0003", "small-2", "big-0004", "big-0005"}, runsOf(got)[:10])
	require.Len(t, got, MaxCandidates)
	require.Equal(t, 10_004, total)

	// A run that was just given counts, and one whose executor left does not.
	r.Take("big-0000", 2, Holder{"me", "i"}, "request", fleettest.Noon.Add(time.Minute))
	working.Status = schema.StatusOrphaned
	r.apply(0, &kvstore.LiveEntry{Run: "at-work", Live: &working, Revision: 20_000})
	got, _ = r.Claimable(fleettest.Noon, Want{Executor: "me"})
	require.Equal(t, []string{"small-0", "none", "big-0001", "small-1"}, runsOf(got)[:4])
}

func TestLiveRuns_EntryRemoved_NotClaimable(t *testing.T) {
	t.Parallel()
	r := tableOf(t, fleettest.Orphan("run-1", "x", 10), fleettest.Orphan("run-2", "x", 20))
	taken := fleettest.Orphan("run-2", "y", 0)
	taken.Status = schema.StatusRunning
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &taken, Revision: 7})
	got, _ := r.Claimable(fleettest.Noon, Want{})
	require.Equal(t, []string{"run-1"}, runsOf(got))
	l, ok := r.Get("run-2")
	require.True(t, ok)
	require.Equal(t, schema.StatusRunning, l.Status)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Revision: 8})
	_, total := r.Claimable(fleettest.Noon, Want{})
	require.Zero(t, total)
	_, ok = r.Get("run-1")
	require.False(t, ok)
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Revision: 9, Err: kvstore.ErrCorrupt})
	require.Equal(t, Counts{Unreadable: 1}, r.Counts())
}

func TestLiveRuns_HiddenRun_ReturnsInTimeOrWithEntry(t *testing.T) {
	t.Parallel()
	r := tableOf(t, fleettest.Orphan("run-1", "x", 10), fleettest.Orphan("run-2", "x", 5))
	r.Hide("run-1", fleettest.Noon.Add(time.Second))
	r.Hide("run-2", fleettest.Noon.Add(time.Hour))
	r.Hide("unknown", fleettest.Noon)
	_, total := r.Claimable(fleettest.Noon, Want{})
	require.Zero(t, total)
	got, _ := r.Claimable(fleettest.Noon.Add(time.Second), Want{})
	require.Equal(t, []string{"run-1"}, runsOf(got))
	again := fleettest.Orphan("run-2", "x", 0)
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &again, Revision: 9})
	got, _ = r.Claimable(fleettest.Noon.Add(time.Second), Want{})
	require.Equal(t, []string{"run-1", "run-2"}, runsOf(got))
}

func TestLiveRuns_NewWatch_DropsStaleEntries(t *testing.T) {
	t.Parallel()
	r := tableOf(t, fleettest.Orphan("run-1", "x", 10), fleettest.Orphan("run-2", "x", 20), fleettest.Orphan("run-3", "x", 30))
	r.unsync(0)
	require.False(t, r.Synced())
	_, total := r.Claimable(fleettest.Noon, Want{})
	require.Equal(t, 3, total, "the known entries stay while the watch is down")
	r.begin(0)
	same, again := fleettest.Orphan("run-1", "x", 10), fleettest.Orphan("run-2", "x", 20)
	again.Epoch = 2
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &same, Revision: 1})
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &again, Revision: 2}) // a bucket created again counts from 1
	r.sync(0)
	require.True(t, r.Synced())
	got, total := r.Claimable(fleettest.Noon, Want{})
	require.Equal(t, []string{"run-2", "run-1"}, runsOf(got))
	require.Equal(t, schema.Epoch(2), got[0].Epoch)
	require.Equal(t, 2, total)
}

func TestLiveRuns_ManyClaimable_CandidatesBoundedCountExact(t *testing.T) {
	t.Parallel()
	var entries []schema.Live
	for i := range 100 {
		entries = append(entries, fleettest.Orphan(fmt.Sprintf("run-%03d", i), "x", 100-i))
	}
	for i := range 40 {
		entries = append(entries, fleettest.Orphan(fmt.Sprintf("mine-%03d", i), "me", 40-i))
	}
	got, total := tableOf(t, entries...).Claimable(fleettest.Noon, Want{Executor: "me"})
	require.Len(t, got, MaxCandidates)
	require.Equal(t, 140, total)
	require.Equal(t, "mine-000", got[0].Run)
	require.Equal(t, "mine-031", got[31].Run)
}

func TestLiveRuns_RepeatedRequest_FindsItsTakeover(t *testing.T) {
	t.Parallel()
	taken := func(run, request string, epoch schema.Epoch) schema.Live {
		l := fleettest.Orphan(run, "me", 10)
		l.Status, l.RequestID, l.Epoch = schema.StatusRunning, request, epoch
		return l
	}
	r := tableOf(t, taken("run-1", "req-1", 2), taken("run-2", "req-2", 2), taken("run-3", "req-3", 2))
	found := func(request string) string {
		run, _, _ := r.TakenBy("me", request)
		return run
	}
	require.Equal(t, "run-1", found("req-1"))
	_, _, ok := r.TakenBy("you", "req-1")
	require.False(t, ok)
	next := taken("run-1", "req-9", 3)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &next, Revision: 9})
	require.Empty(t, found("req-1"), "another took it over since")
	require.Equal(t, "run-1", found("req-9"))
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Revision: 10})
	require.Empty(t, found("req-2"), "it has ended")
	r.begin(0)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &next, Revision: 9})
	r.sync(0)
	require.Empty(t, found("req-3"), "the new watch did not bring it")
	require.Equal(t, "run-1", found("req-9"))
}
