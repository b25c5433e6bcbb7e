package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// listed is the output of runs ls, page by page if pages are requested.
func (w *world) listed(tb testing.TB, args ...string) []schema.RunSummary {
	tb.Helper()
	var all []schema.RunSummary
	for after := ""; ; {
		more := args
		if after != "" {
			more = append(slices.Clone(args), "--after", after)
		}
		var page schema.ListReply
		require.NoError(tb, json.Unmarshal(w.cli(tb, append([]string{"runs", "ls", "--json"}, more...)...), &page))
		require.False(tb, page.Incomplete)
		all = append(all, page.Runs...)
		if after = page.Next; after == "" {
			return all
		}
	}
}

func names(runs []schema.RunSummary) []string {
	list := make([]string, len(runs))
	for i := range runs {
		list[i] = runs[i].Run
	}
	return list
}

// fill publishes generated runs, waits until they are folded, and compares some of them with their plan.
func (w *world) fill(tb testing.TB, runs, live, compared int) {
	tb.Helper()
	cfg := loadgen.Config{Fleet: "default", Runs: runs, Live: live, Began: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	p := loadgen.Progress{Found: func(int) {}, Published: func(int) {}, Folded: func(uint64) {}}
	nc, closed, err := dial(tb.Context(), w.state())
	require.NoError(tb, err)
	defer func() { nc.Close(); <-closed }()
	fleet, err := publisher.Connect(tb.Context(), publisher.Config{Conn: nc, Executor: "reader"})
	require.NoError(tb, err)
	defer func() { require.NoError(tb, fleet.Close(context.Background())) }()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	require.NoError(tb, loadgen.Fill(tb.Context(), js, cfg, p))
	require.NoError(tb, loadgen.AwaitFolded(tb.Context(), js, cfg.Fleet, p))
	require.NoError(tb, loadgen.Check(tb.Context(), cfg, compared, func(ctx context.Context, run string) (*schema.Head, error) {
		head, err := fleet.Head(ctx, run)
		return &head, err
	}))
}

// TestFleet_ThousandsOfRuns_ListedAndContinued fills a fleet, and lists, filters, pages, recovers and claims, before and
// after the machine died.
func TestFleet_ThousandsOfRuns_ListedAndContinued(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	const runs, live = 2000, 200
	w := newWorld(t, "--silence", "3s")
	w.fill(t, runs, live, 50)
	// The running ones have no executor: they are orphaned, and then nothing changes any more.
	require.Eventually(t, func() bool { return len(w.listed(t, "--status", "running")) == 0 }, patience, 100*time.Millisecond, "not orphaned")

	all := w.listed(t, "--all")
	require.Len(t, all, runs)
	sorted := slices.Sorted(slices.Values(names(all)))
	for n, run := range sorted {
		require.Equal(t, fmt.Sprintf("gen-%08d", n), run)
	}
	for i := range all {
		require.Equal(t, i >= live, all[i].Status.Terminal(), "those that live come first")
		if i > 0 && i < live {
			require.GreaterOrEqual(t, all[i-1].StartedAt, all[i].StartedAt)
		}
	}
	require.Equal(t, names(all), names(w.listed(t, "--limit", "170")), "pages are parts of the list")

	for _, c := range []struct {
		args []string
		has  func(r *schema.RunSummary) bool
	}{
		{[]string{"--status", "failed"}, func(r *schema.RunSummary) bool { return r.Status == schema.StatusFailed }},
		{[]string{"--status", "orphaned,cancelled"}, func(r *schema.RunSummary) bool {
			return r.Status == schema.StatusOrphaned || r.Status == schema.StatusCancelled
		}},
		{[]string{"--agent", "agent-3"}, func(r *schema.RunSummary) bool { return r.Agent == "agent-3" }},
		{[]string{"--agent", "agent-4", "--status", "completed"}, func(r *schema.RunSummary) bool {
			return r.Agent == "agent-4" && r.Status == schema.StatusCompleted
		}},
		{[]string{"--label", "team=team-7"}, func(r *schema.RunSummary) bool { return r.Labels["team"] == "team-7" }},
		{[]string{"--parent", "gen-00000028"}, func(r *schema.RunSummary) bool { return r.Parent == "gen-00000028" }},
		{[]string{"--since", "1h"}, func(r *schema.RunSummary) bool { return r.Status.Terminal() }}, // the others began long ago
	} {
		var want []string
		for i := range all {
			if c.has(&all[i]) {
				want = append(want, all[i].Run)
			}
		}
		require.NotEmpty(t, want, c.args)
		require.Equal(t, want, names(w.listed(t, append(c.args, "--all")...)), "%v", c.args)
		require.Equal(t, want, names(w.listed(t, append(c.args, "--limit", "7")...)), "%v, by pages", c.args)
	}

	w.server.kill9(t)
	w.serve(t, "--silence", "1h") // an executor that continues is not counted as dead on a slow machine
	require.Equal(t, names(all), names(w.listed(t, "--all")), "after the machine died")

	// A run that ended is reopened: it is listed once, among the live ones.
	ended := all[live+live].Run
	w.cli(t, "recover", ended, "--executor", "second", "--reason", "reopen")
	require.Eventually(t, func() bool { return slices.Equal([]string{ended}, names(w.listed(t, "--status", "running"))) }, patience, 50*time.Millisecond)
	again := w.listed(t, "--all")
	require.Equal(t, sorted, slices.Sorted(slices.Values(names(again))))
	require.Less(t, slices.Index(names(again), ended), live+1)

	fleet := w.fleet(t, "claimer")
	run := claim(t, fleet, publisher.ClaimSpec{Agents: []string{"agent-19"}})
	require.Contains(t, sorted, run.ID())
	require.EqualValues(t, 2, run.Epoch())
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: "completed"}))
	require.Eventually(t, func() bool {
		page := w.listed(t, "--status", "completed", "--agent", "agent-19", "--all")
		return len(page) > 0 && page[0].Run == run.ID()
	}, patience, 50*time.Millisecond, "it ended last, and is at the top")
}
