package liveness

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// of is a run of a tenant that waits for an executor, or has one.
func of(tenant, run string, age int, atWork bool) schema.Live {
	l := fleettest.Orphan(run, "x", age)
	l.Labels, l.Status = map[string]string{schema.TenantLabel: tenant}, schema.StatusInterrupted
	if atWork {
		l.Status, l.Driven = schema.StatusRunning, true
	}
	return l
}

func (r *LiveRuns) given() []string {
	got, _ := r.Claimable(fleettest.Noon, Want{Executor: "me"})
	return runsOf(got)
}

// Ten runs of a small tenant begin with the next claims, although ten thousand of a large one wait for places.
func TestLimits_LargeTenantAtItsLimit_SmallOneBegins(t *testing.T) {
	t.Parallel()
	var entries []schema.Live
	for i := range 10_005 {
		entries = append(entries, of("big", fmt.Sprintf("big-%05d", i), 20_000-i, i < 5))
	}
	var small []string
	for i := range 10 {
		small = append(small, fmt.Sprintf("small-%d", i))
		entries = append(entries, of("small", small[i], 10-i, false))
	}
	r := tableOf(t, entries...)
	r.SetLimits([]schema.Limit{{Each: schema.TenantLabel, AtWork: 5}})
	got, total := r.Claimable(fleettest.Noon, Want{Executor: "me"})
	require.Equal(t, small, runsOf(got))
	require.Equal(t, 10, total)
	require.Equal(t, Counts{Live: 10_015, Claimable: 10, Waiting: 10_000}, r.Counts())
	require.Equal(t, map[string]int{"agent-1": 10}, r.ClaimableByAgent())
	r.SetLimits([]schema.Limit{{Each: schema.TenantLabel, DayTokens: 5}})
	require.Equal(t, 10_010, r.Counts().Claimable)
}

func TestLimits_ShareFoundFull_UntilARunLeavesOrASecondPasses(t *testing.T) {
	t.Parallel()
	c := fleettest.NewHandClock(fleettest.Noon)
	working := of("a", "working", 100, true)
	r := tableOf(t, working, of("a", "first", 50, false), of("a", "placed", 10, false), of("b", "other", 5, false))
	r.now = c.Now
	r.SetLimits([]schema.Limit{{Scope: schema.Scope{Labels: map[string]string{schema.TenantLabel: "a"}}, AtWork: 2}})
	all := []string{"other", "first", "placed"}
	require.Equal(t, all, r.given())
	key := r.SharesOf(&working)[0].Key
	runs, left := r.AtWork(key)
	require.Equal(t, []string{"working"}, runs)
	found := func() { r.Full(key, left, map[string]bool{"working": true, "placed": true}) }
	found()
	require.Equal(t, []string{"other", "placed"}, r.given())
	c.Forward(time.Second)
	got, _ := r.Claimable(c.Now(), Want{Executor: "me"})
	require.Equal(t, all, runsOf(got), "after a second")

	found()
	for len(r.Became()) > 0 {
		<-r.Became()
	}
	r.apply(0, &kvstore.LiveEntry{Run: "working", Revision: 90}) // it has ended
	require.ElementsMatch(t, all, r.given())
	require.Equal(t, "first", (<-r.Became()).Run)
	found() // by what was known before it left
	require.ElementsMatch(t, all, r.given())
}

// A run that changes while it is at work leaves nothing, and an orphan that may come back needs no further place.
func TestLimits_RunStaysAtWork_ShareStaysFull(t *testing.T) {
	t.Parallel()
	working := of("a", "working", 100, true)
	r := tableOf(t, working, of("a", "waiting", 50, false))
	r.SetLimits([]schema.Limit{{AtWork: 1}})
	require.Empty(t, r.given())
	for len(r.Became()) > 0 {
		<-r.Became()
	}
	working.Attention = "x"
	r.apply(0, &kvstore.LiveEntry{Run: "working", Live: &working, Revision: 90})
	require.Empty(t, r.given())
	require.Empty(t, r.Became())
	orphan := working
	orphan.Status = schema.StatusOrphaned
	r.apply(0, &kvstore.LiveEntry{Run: "working", Live: &orphan, Revision: 91})
	require.Equal(t, []string{"working"}, r.given())
	require.Equal(t, Counts{Live: 2, Claimable: 1, Waiting: 1}, r.Counts())
	orphan.Stalled = 3
	r.apply(0, &kvstore.LiveEntry{Run: "working", Live: &orphan, Revision: 92})
	require.Equal(t, []string{"waiting"}, r.given(), "a quarantined run is not at work")
}

// Each step of priority is worth a minute, so a run of priority 0 waits nine minutes longer at most.
func TestClaimable_Priorities_AgeWithTheirWait(t *testing.T) {
	t.Parallel()
	var entries []schema.Live
	add := func(run string, age, priority int) {
		l := of("a", run, age, false)
		l.Priority = priority
		entries = append(entries, l)
	}
	add("old", 9*60+1, 0)
	add("urgent", 0, 9)
	add("middle", 60, 3)
	add("plain", 239, 0)
	for i := range 1000 {
		add(fmt.Sprintf("urgent-%04d", i), 0, 9)
	}
	r := tableOf(t, entries...)
	require.Equal(t, []string{"old", "urgent"}, r.given()[:2])
	r = tableOf(t, entries[:4]...)
	require.Equal(t, []string{"old", "urgent", "middle", "plain"}, r.given())
	for _, run := range []string{"old", "urgent", "middle", "plain"} {
		r.apply(0, &kvstore.LiveEntry{Run: run, Revision: 90})
	}
	require.Empty(t, r.given(), "each is found again where it was put")
}
