//go:build unix

package nemesis_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/retention"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func decoded[T any](tb testing.TB, out []byte) T {
	tb.Helper()
	var v T
	require.NoError(tb, json.Unmarshal(out, &v), "%s", out)
	return v
}

// ended counts the entries of ended runs, which a removal deletes.
func ended(tb testing.TB, js jetstream.JetStream) int {
	tb.Helper()
	settings, _, err := kvstore.NewFleets(js).Get(tb.Context(), "default")
	require.NoError(tb, err)
	entries := 0
	for shard := range settings.Shards {
		bucket := schema.NamesOf("default", shard).CheckpointBucket()
		stream, err := js.Stream(tb.Context(), "KV_"+bucket)
		require.NoError(tb, err)
		info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter("$KV."+bucket+"."+schema.EndedKeyPrefix+">"))
		require.NoError(tb, err)
		entries += len(info.State.Subjects)
	}
	return entries
}

// A cleanup of runs of all statuses is killed half-way with the daemon and its server, and continued: the removed
// runs are exactly those of the plan.
func TestCleanup_KilledHalfway_Continues(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	runs := 200
	if testbin.Full(t) {
		runs = 10_000
	}
	w := newLone(t, "--silence", "1h")
	w.fill(t, runs)
	completed := w.listed(t, "--status", "completed", "--all")
	require.Greater(t, len(completed), runs/10)
	pinned, base := completed[0].Run, completed[1].Run
	w.cli(t, "checkpoint", pinned, "--name", "here")
	w.cli(t, "fork", base, "--as", "a-fork", "--hold")
	var all []string
	require.Eventually(t, func() bool {
		all = names(w.listed(t, "--all"))
		return slices.Contains(all, "a-fork") // a list has the folded runs
	}, patience, 20*time.Millisecond)
	cleanup := []string{"cleanup", "--json", "--status", "completed", "--max-age", "1s", "--grace", "1s"}

	// Once everything is old enough the plan does not change. Younger runs are not even considered.
	gone := make(map[string]bool)
	require.Eventually(t, func() bool {
		plan := decoded[retention.Report](t, w.cli(t, append(cleanup, "--dry-run")...))
		clear(gone)
		for i := range plan.Runs {
			if plan.Runs[i].Remove {
				gone[plan.Runs[i].Run] = true
			}
		}
		return plan.Scanned == int64(len(completed)) && plan.ByWhy[schema.WhyActive] == 0 && plan.ByWhy[schema.WhyUnknown] == 0
	}, patience, 200*time.Millisecond)
	require.Len(t, gone, len(completed)-2, "all that completed, save the pinned one and the base of a fork")
	require.False(t, gone[pinned] || gone[base])

	js := w.jetStream(t)
	cleaning := launch(t, "cleanup", func() *exec.Cmd { return w.waymark(cleanup...) })
	began, before := time.Now(), ended(t, js)
	require.Eventually(t, func() bool { return before-ended(t, js) > len(gone)/3 }, 10*patience, 5*time.Millisecond, "nothing is removed")
	half := before - ended(t, js)
	require.NoError(t, cleaning.kill())
	w.kill(t)
	took := time.Since(began)
	w.serve(t, "--silence", "1h")
	t.Logf("killed %s after its start, with about %d of %d runs removed", took, half, len(gone))

	began = time.Now()
	report := decoded[retention.Report](t, w.cli(t, append(cleanup, "--timeout", "5m")...))
	t.Logf("gone on with: %d scanned, %d removed in %s", report.Scanned, report.Removed, time.Since(began))
	require.Zero(t, report.Failed)
	w.cli(t, "verify", "--all")

	want := slices.DeleteFunc(slices.Clone(all), func(run string) bool { return gone[run] })
	slices.Sort(want)
	require.Eventually(t, func() bool { // the daemon deletes what the cleanup has ordered
		return slices.Equal(want, slices.Sorted(slices.Values(names(w.listed(t, "--all")))))
	}, patience, 20*time.Millisecond)
	fleet := w.fleet(t, "after")
	for run := range gone {
		_, err := fleet.Head(t.Context(), run)
		require.ErrorIs(t, err, publisher.ErrRunErased, run)
		_, err = fleet.Start(t.Context(), publisher.RunSpec{ID: run, Agent: "coder"})
		require.ErrorIs(t, err, publisher.ErrRunExists, run)
	}
	for _, run := range []string{"a-fork", base, pinned} {
		_, err := fleet.Get(t.Context(), run)
		require.NoError(t, err, "kept runs can be recovered: %s", run)
	}
}
