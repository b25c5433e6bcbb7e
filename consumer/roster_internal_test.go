package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

var noLog = zerolog.Nop()

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// tableOf is a roster of one shard with these entries, which nothing feeds.
func tableOf(tb testing.TB, entries ...schema.Live) *Roster {
	tb.Helper()
	r := NewRoster(make([]*kvstore.Shard, 1), 3, func() time.Time { return noon }, zerolog.Nop())
	r.begin(0)
	for i := range entries {
		r.apply(0, &kvstore.LiveEntry{Run: entries[i].Run, Live: &entries[i], Revision: schema.Revision(i + 1)})
	}
	r.sync(0)
	return r
}

// orphan is a run that became claimable so many seconds before noon.
func orphan(run, executor string, ago int) schema.Live {
	return schema.Live{
		Format: schema.LiveFormat, Run: run, Agent: "agent-1", Executor: executor, Status: schema.StatusOrphaned, Epoch: 1,
		Labels: map[string]string{"team": "a"}, Since: schema.FormatTime(noon.Add(-time.Duration(ago) * time.Second)),
	}
}

func runsOf(entries []schema.Live) []string {
	var runs []string
	for i := range entries {
		runs = append(runs, entries[i].Run)
	}
	return runs
}

func TestClaimableRunsAreOnesOwnAndThenTheOldest(t *testing.T) {
	t.Parallel()
	running := orphan("running", "me", 900)
	running.Status = schema.StatusRunning
	stuck := orphan("stuck", "me", 800)
	stuck.Stalled = 3
	other := orphan("other-agent", "x", 700)
	other.Agent = "agent-2"
	unlabelled := orphan("unlabelled", "x", 600)
	unlabelled.Labels = nil
	r := tableOf(t, orphan("young", "x", 10), orphan("old", "x", 100), orphan("mine-young", "me", 5), orphan("mine-old", "me", 50),
		running, stuck, other, unlabelled)
	require.True(t, r.Synced())

	got, total := r.Claimable(noon, ClaimWant{Executor: "me", Agents: []string{"agent-1"}, Labels: map[string]string{"team": "a"}})
	require.Equal(t, []string{"mine-old", "mine-young", "old", "young"}, runsOf(got))
	require.Equal(t, 4, total)
	got, total = r.Claimable(noon, ClaimWant{Executor: "nobody"})
	require.Equal(t, []string{"other-agent", "unlabelled", "old", "mine-old", "young", "mine-young"}, runsOf(got))
	require.Equal(t, 6, total)
	_, total = r.Claimable(noon, ClaimWant{Executor: "me", MaxClaims: -1})
	require.Equal(t, 7, total, "without a limit nothing is quarantined")
	require.Equal(t, RosterCounts{Live: 8, Claimable: 6, Quarantined: 1}, r.Counts())
}

func TestARunLeavesTheClaimableOnesWithItsEntry(t *testing.T) {
	t.Parallel()
	r := tableOf(t, orphan("run-1", "x", 10), orphan("run-2", "x", 20))
	taken := orphan("run-2", "y", 0)
	taken.Status = schema.StatusRunning
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &taken, Revision: 7})
	got, _ := r.Claimable(noon, ClaimWant{})
	require.Equal(t, []string{"run-1"}, runsOf(got))
	l, ok := r.Get("run-2")
	require.True(t, ok)
	require.Equal(t, schema.StatusRunning, l.Status)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Revision: 8})
	_, total := r.Claimable(noon, ClaimWant{})
	require.Zero(t, total)
	_, ok = r.Get("run-1")
	require.False(t, ok)
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Revision: 9, Err: kvstore.ErrCorrupt})
	require.Equal(t, RosterCounts{Unreadable: 1}, r.Counts())
}

func TestAHiddenRunComesBackInTimeOrWithItsNextEntry(t *testing.T) {
	t.Parallel()
	r := tableOf(t, orphan("run-1", "x", 10), orphan("run-2", "x", 5))
	r.Hide("run-1", noon.Add(time.Second))
	r.Hide("run-2", noon.Add(time.Hour))
	r.Hide("unknown", noon)
	_, total := r.Claimable(noon, ClaimWant{})
	require.Zero(t, total)
	got, _ := r.Claimable(noon.Add(time.Second), ClaimWant{})
	require.Equal(t, []string{"run-1"}, runsOf(got))
	again := orphan("run-2", "x", 0)
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &again, Revision: 9})
	got, _ = r.Claimable(noon.Add(time.Second), ClaimWant{})
	require.Equal(t, []string{"run-1", "run-2"}, runsOf(got))
}

func TestANewWatchLeavesNothingStaleBehind(t *testing.T) {
	t.Parallel()
	r := tableOf(t, orphan("run-1", "x", 10), orphan("run-2", "x", 20), orphan("run-3", "x", 30))
	r.unsync(0)
	require.False(t, r.Synced())
	_, total := r.Claimable(noon, ClaimWant{})
	require.Equal(t, 3, total, "what is known stays while the watch is down")
	r.begin(0)
	same, again := orphan("run-1", "x", 10), orphan("run-2", "x", 20)
	again.Epoch = 2
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &same, Revision: 1})
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Live: &again, Revision: 2}) // a bucket made anew counts from 1
	r.sync(0)
	require.True(t, r.Synced())
	got, total := r.Claimable(noon, ClaimWant{})
	require.Equal(t, []string{"run-2", "run-1"}, runsOf(got))
	require.Equal(t, schema.Epoch(2), got[0].Epoch)
	require.Equal(t, 2, total)
}

func TestCandidatesAreBoundedAndTheirCountIsNot(t *testing.T) {
	t.Parallel()
	var entries []schema.Live
	for i := range 100 {
		entries = append(entries, orphan(fmt.Sprintf("run-%03d", i), "x", 100-i))
	}
	for i := range 40 {
		entries = append(entries, orphan(fmt.Sprintf("mine-%03d", i), "me", 40-i))
	}
	got, total := tableOf(t, entries...).Claimable(noon, ClaimWant{Executor: "me"})
	require.Len(t, got, MaxCandidates)
	require.Equal(t, 140, total)
	require.Equal(t, "mine-000", got[0].Run)
	require.Equal(t, "mine-031", got[31].Run)
}
