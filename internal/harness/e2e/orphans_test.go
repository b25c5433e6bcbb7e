package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// It kills one executor that has very many runs, and measures how fast others claim them, and the effect on another
// executor that publishes during that.
func TestOrphans_ManyAtOnce_ClaimedWithoutStampede(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	runs, calm, flags := 100, 3*time.Second, shortSilence
	if testbin.Full(t) {
		runs, calm, flags = 1000, 15*time.Second, nil
	} else {
		t.Logf("%d orphans; WAYMARK_E2E_FULL=1 makes 1,000", runs)
	}
	const successors = 4
	w := newWorld(t, flags...)
	fleet := w.fleet(t, "bystander")
	var ids []string
	for i := range runs {
		ids = append(ids, fmt.Sprintf("orphan-%04d", i))
	}
	call := workerCall{ID: "tool", Replay: schema.ReplayPure, Before: never}
	holder := w.worker(t, workerSettings{Name: "holder", Start: ids, Turns: 1, Capacity: runs, Calls: []workerCall{call}})
	require.Eventually(t, func() bool { return w.runsWith(t, journal.Begin) == runs }, 3*patience, 200*time.Millisecond,
		"the runs are never under way")
	for i := range successors {
		w.worker(t, workerSettings{
			Name: fmt.Sprintf("successor-%d", i), Turns: 1, Capacity: runs, Calls: []workerCall{{ID: "tool", Replay: schema.ReplayPure}},
		}).ready(t)
	}

	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "bystander", Agent: "bystander"})
	require.NoError(t, err)
	b := &bystander{run: run}
	before := b.publish(t, calm, func() bool { return false })
	killed := time.Now()
	holder.kill9(t)
	during := b.publish(t, 4*patience, func() bool { return w.runsWith(t, journal.Done) == runs })
	took := time.Since(killed)
	require.Equal(t, runs, w.runsWith(t, journal.Done), "not all runs have ended")

	perSecond := make(map[int64]int)
	perExecutor := make(map[string]int)
	var claimed []time.Duration
	for _, id := range ids {
		takeovers := 0
		require.NoError(t, fleet.Events(t.Context(), id, func(rec schema.Record) error {
			e, err := schema.Decode(rec.Header, rec.Body)
			if err != nil || e.Name() != schema.RunResumed {
				return err
			}
			takeovers++
			at, err := time.Parse(time.RFC3339Nano, e.Time)
			if err != nil {
				return err
			}
			claimed = append(claimed, at.Sub(killed))
			perSecond[at.Unix()]++
			return nil
		}))
		require.Equal(t, 1, takeovers, "%s: at most one winner", id)
		state, err := fleet.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, schema.StatusCompleted, state.Head.Status)
		perExecutor[state.Head.Executor]++
	}
	slices.Sort(claimed)
	most := 0
	for _, n := range perSecond {
		most = max(most, n)
	}
	ratio := float64(quantile(during, 50)) / float64(max(time.Microsecond, quantile(before, 50)))
	t.Logf("%d orphans of one executor: all ended %s after the kill; claimed from %s to %s after it, half of them by %s, at most %d in a second, %v",
		runs, took.Round(time.Millisecond), quantile(claimed, 0), quantile(claimed, 100), quantile(claimed, 50), most, perExecutor)
	t.Logf("a bystander's boundary: before p50 %s, p99 %s (%d); during p50 %s, p99 %s (%d); the median is %.2f times",
		quantile(before, 50), quantile(before, 99), len(before), quantile(during, 50), quantile(during, 99), len(during), ratio)
	require.LessOrEqual(t, most, 150, "the claims are spread")
	if testbin.Full(t) {
		require.Less(t, ratio, 4.0, "publishing for others becomes too slow")
	}
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	require.Zero(t, w.deadLetters(t))
}

// runsWith counts the runs that have an entry.
func (w *world) runsWith(t *testing.T, op string) int {
	t.Helper()
	runs := make(map[string]bool)
	for _, e := range w.history(t) {
		if e.Op == op {
			runs[e.Run] = true
		}
	}
	return len(runs)
}

// bystander publishes boundaries at a steady rate.
type bystander struct {
	run *publisher.Run
}

// publish publishes until it is done or the time is over, and returns how long each boundary took, in rising order.
func (b *bystander) publish(t *testing.T, most time.Duration, done func() bool) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	var took []time.Duration
	for {
		select {
		case <-ctx.Done():
			slices.Sort(took)
			return took
		case <-look.C:
			if done() {
				slices.Sort(took)
				return took
			}
		case <-pace.C:
			begun := time.Now()
			require.NoError(t, b.run.AddMessage(t.Context(), text("user", "still here")))
			took = append(took, time.Since(begun))
		}
	}
}
