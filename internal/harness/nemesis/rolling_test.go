//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// TestRollingRestart_Cluster_FailsNoBoundary restarts each of three servers and each of three daemons under load: gracefully, and once by
// kill -9.
func TestRollingRestart_Cluster_FailsNoBoundary(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := scaleOf(3)
	s.steal = 0                  // a run that is taken over sees a failed boundary, which is not the restart's fault
	s.timeout = 30 * time.Second // the SDK's own are 10 seconds and 30; the machine of the test may be slow
	if testbin.Full(t) {
		s.executors, s.slots = 4, 8
	}
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	times := 1
	if testbin.Full(t) {
		times = 5
	}
	restart := func(name string, p *process, end func(context.Context, *process) error) {
		r.suffer(fault{name: name, strike: func(ctx context.Context, _ *storm) error { return end(ctx, p) }})
	}
	for range times {
		for _, p := range slices.Concat(r.nodes, r.daemons) {
			restart("restart of "+p.name, p, terminate)
		}
		if !testbin.Full(t) {
			// The full test also does the rolling restart by kill -9.
			i, err := r.storm.leader(t.Context())
			require.NoError(t, err)
			restart("kill -9 of the leader", r.nodes[i], kill)
			restart("kill -9 of "+r.daemons[0].name, r.daemons[0], kill)
			continue
		}
		for _, p := range slices.Concat(r.nodes, r.daemons) {
			restart("kill -9 of "+p.name, p, kill)
		}
	}
	r.judge()
	h, err := r.read()
	require.NoError(t, err)
	var took []time.Duration
	stopped := r.struck[len(r.struck)-1].end // executors are told to end after all faults
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Kind != checker.Publish && op.Kind != checker.Call || op.Actor == "prober" {
			continue
		}
		// A takeover by the daemon is valid: an executor that counted as dead is fenced. So is a call, or the put of
		// a large field, that its own executor's end interrupted.
		brokenOff := op.End > stopped && (strings.Contains(op.Error, "signal received") || strings.Contains(op.Error, context.Canceled.Error()))
		if op.Outcome != checker.OK && !op.Fenced && !brokenOff {
			t.Errorf("a boundary failed beyond retries: %s", op)
		}
		if op.Kind == checker.Publish {
			took = append(took, time.Duration(op.End-op.Start))
		}
	}
	slices.Sort(took)
	t.Logf("%d boundaries; p50 %s, p99 %s, worst %s", len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	for _, kind := range []string{"restart of server", "restart of daemon", "kill -9"} {
		r.outages(t, kind)
	}
}

// outages logs how long recoveries did not work, over all faults whose names begin with a prefix.
func (r *round) outages(t *testing.T, prefix string) {
	t.Helper()
	var boundaries, recoveries []int64
	for _, s := range r.struck {
		if len(s.Fault) >= len(prefix) && s.Fault[:len(prefix)] == prefix {
			boundaries, recoveries = append(boundaries, s.Boundaries), append(recoveries, s.Recoveries)
		}
	}
	require.NotEmpty(t, recoveries)
	slices.Sort(boundaries)
	slices.Sort(recoveries)
	t.Logf("%s, %d times: without a boundary of any executor median %d ms, worst %d ms; without a recovery median %d ms, worst %d ms", prefix, len(recoveries),
		boundaries[len(boundaries)/2], boundaries[len(boundaries)-1], recoveries[len(recoveries)/2], recoveries[len(recoveries)-1])
}

// TestDaemon_StartedBeforeCluster_Waits starts a daemon with one of three servers, which has no leader yet.
func TestDaemon_StartedBeforeCluster_Waits(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	w := emptyWorld(t, scaleOf(3), 1)
	w.late = true
	w.startServers()
	d := w.daemon(0)
	w.daemons = append(w.daemons, d)
	require.NoError(t, w.serving(0))
	require.NoError(t, d.start())
	w.eventually("the daemon never looks the fleet up", func() error {
		text, err := os.ReadFile(filepath.Join(w.logs(), d.name+".log"))
		if err == nil && !strings.Contains(string(text), "waiting for nats") {
			err = errors.New("it has not said so")
		}
		return err
	})
	for _, p := range w.nodes[1:] {
		require.NoError(t, p.start())
	}
	require.NoError(t, d.ready(nil), "it is the same process that becomes ready")
}
