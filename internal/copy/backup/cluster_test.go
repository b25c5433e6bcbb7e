package backup_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

// onCluster is three servers in this process without a fleet.
func onCluster(tb testing.TB) *world {
	tb.Helper()
	const size = 3
	ports, routes := natstest.FreePorts(tb, size), make([]string, size)
	for i, port := range ports {
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", port)
	}
	servers := make([]*server.Server, size)
	for i := range servers {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: tb.TempDir(), Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]},
			Routes: server.RoutesFromStr(strings.Join(routes, ",")),
		})
		require.NoError(tb, err)
		s.Start()
		tb.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		servers[i] = s
	}
	closed := make(chan struct{})
	nc, err := nats.Connect(servers[0].ClientURL(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(tb, err)
	tb.Cleanup(func() { nc.Close(); <-closed })
	require.Eventually(tb, func() bool {
		for _, s := range servers {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == size {
				return true
			}
		}
		return false
	}, time.Minute, 20*time.Millisecond, "the cluster has no leader")
	return onServer(tb, nc)
}

func TestRestore_ThreeReplicas_OnThree(t *testing.T) {
	if testing.Short() {
		t.Skip("short: two clusters of three servers")
	}
	w := onCluster(t)
	w.provision(kvstore.FleetConfig{Fleet: fleet, Shards: 2, Replicas: 3, QuotaBytes: 256 << 20})
	underLoad(t, w, onCluster(t), 6)
}

func TestRestore_ThreeReplicas_OnOneServer(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	w := onCluster(t)
	w.provision(kvstore.FleetConfig{Fleet: fleet, Replicas: 3, QuotaBytes: 256 << 20})
	x := w.writer("x")
	require.NoError(t, x.start(t.Context()))
	require.NoError(t, x.oneTurn(t.Context(), 100))
	dir := target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	other := empty(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrLone)
	other.requireNothing(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir, Replicas: 1, Quota: 64 << 20})
	require.NoError(t, err)
	other.load()
	require.Equal(t, 1, other.settings.Replicas)
	require.EqualValues(t, 64<<20, other.settings.QuotaBytes)
	require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&other.settings)))
	other.requireRun(x, m.Shards[0].Cut)
}
