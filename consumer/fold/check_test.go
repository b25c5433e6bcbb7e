package fold_test

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
)

func TestWorker_StaleAnswersOfReplicatedLog_RegressedOnlyAfterTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(100)
	clock := fleettest.NewHandClock(time.Now())
	var stale, answers atomic.Int64 // answers yet to come that are stale, and all that were given
	info := "$JS.API.STREAM.INFO." + w.Names.EventStream()
	f := w.FoldThrough(fold.Config{Holder: "worker-1", ReconcileEvery: 5 * time.Millisecond}, clock.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		if subject != info {
			natstest.Forward(nc, m, subject)
			return
		}
		got, err := w.NC.Request(subject, m.Data, 5*time.Second)
		if err != nil {
			return
		}
		var answer struct {
			Type string `json:"type"`
			jetstream.StreamInfo
		}
		_ = json.Unmarshal(got.Data, &answer)
		answer.Config.Replicas = 3
		if stale.Add(-1) >= 0 {
			answer.State.LastSeq -= 2
		}
		b, _ := json.Marshal(answer)
		_ = nc.Publish(m.Reply, b)
		answers.Add(1)
	})
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= x.Last }, time.Minute, time.Millisecond)
	more := func(n int64) {
		t.Helper()
		n += answers.Load()
		require.Eventually(t, func() bool { return answers.Load() >= n }, time.Minute, time.Millisecond)
	}
	rebuilds := f.Stats().Rebuilds.Load()
	stale.Store(1)
	more(4) // the stale one, and some after it
	clock.Forward(2 * eventlog.ShorterTrust)
	stale.Store(1 << 40)
	more(4)
	require.Zero(t, f.Stats().Regressions.Load(), "a leader that is cut off may answer so")
	require.Zero(t, f.Stats().Failures.Load(), "the term goes on")
	require.Equal(t, rebuilds, f.Stats().Rebuilds.Load())
	clock.Forward(eventlog.ShorterTrust)
	require.Eventually(t, func() bool { return f.Stats().Regressions.Load() > 0 }, time.Minute, time.Millisecond, "no leader is cut off for so long")
}

// What executors have put into a shard must not take its worker: each term began with a comparison that failed.
func TestWorker_LiveRunsCannotBeRead_TermGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	var refused, passed atomic.Int64
	var healed atomic.Bool
	several := "$JS.API.DIRECT.GET.KV_" + w.Names.CheckpointBucket()
	f := w.FoldThrough(fold.Config{Holder: "worker-1", ReconcileEvery: 5 * time.Millisecond}, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		switch {
		case subject != several:
		case healed.Load():
			passed.Add(1)
		default:
			refused.Add(1)
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"500"}, "Description": {"told to fail"}}})
			return
		}
		natstest.Forward(nc, m, subject)
	})
	require.Eventually(t, func() bool { return refused.Load() > 3 }, time.Minute, time.Millisecond)
	x.TurnOf(100)
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= x.Last }, time.Minute, time.Millisecond)
	require.Zero(t, f.Stats().Failures.Load(), "the term goes on")
	healed.Store(true)
	require.Eventually(t, func() bool { return passed.Load() > 1 }, time.Minute, time.Millisecond, "it is tried again")
	require.Zero(t, f.Stats().Failures.Load())
}
