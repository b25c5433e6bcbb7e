package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// startCluster starts three servers in this process and returns a connection to them.
func startCluster(tb testing.TB) *nats.Conn {
	tb.Helper()
	nc, _ := startServers(tb)
	return nc
}

// startServers is [startCluster] that returns the servers, too: the connection is one to the first.
func startServers(tb testing.TB) (*nats.Conn, []*server.Server) {
	tb.Helper()
	const size = 3
	routes := make([]string, size)
	ports := natstest.FreePorts(tb, size)
	for i := range ports {
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", ports[i])
	}
	servers := make([]*server.Server, size)
	for i := range servers {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: tb.TempDir(), SyncInterval: 2 * time.Second,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]},
			Routes:  server.RoutesFromStr(fmt.Sprintf("%s,%s,%s", routes[0], routes[1], routes[2])),
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
	return nc, servers
}

func TestCluster_OfThree_Works(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: three servers")
	}
	nc := startCluster(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := smallFleet()
	require.NoError(t, kvstore.Provision(t.Context(), js, cfg))
	require.Equal(t, jetstream.AsyncPersistMode, config(t, js, checkpointStream).PersistMode)
	require.Equal(t, jetstream.AsyncPersistMode, config(t, js, letterStream).PersistMode)

	cfg.Replicas = 3
	require.NoError(t, kvstore.Provision(t.Context(), js, cfg), "from one replica to three")
	require.NoError(t, kvstore.Provision(t.Context(), js, cfg))
	for _, stream := range []string{eventStream, checkpointStream, segmentStream, blobStream, letterStream, fleetStream, leaseStream} {
		require.Equal(t, 3, config(t, js, stream).Replicas, stream)
		require.Equal(t, jetstream.DefaultPersistMode, config(t, js, stream).PersistMode, stream)
	}

	cps := openShard(t, js, "alpha").Checkpoints
	require.Eventually(t, func() bool {
		_, err := cps.PutWatermark(t.Context(), kvstore.Watermark{Incarnation: "i"}, 0)
		return err == nil
	}, time.Minute, 50*time.Millisecond, "the rebuilt bucket has no leader")
	list := make([]kvstore.Item, 600)
	for i := range list {
		list[i].Checkpoint = checkpoint(fmt.Sprintf("run-%d", i), 1)
	}
	revs := make([]schema.Revision, len(list))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i, r := range cps.PutBatch(ctx, list) {
		for ctx.Err() == nil && errors.Is(r.Err, kvstore.ErrUnavailable) { // the leader changed: the next try shows whether it is stored
			if r.Revision, r.Err = cps.Put(ctx, list[i].Checkpoint, 0); errors.Is(r.Err, kvstore.ErrConflict) {
				_, r.Revision, r.Err = cps.GetFresh(ctx, list[i].Checkpoint.Run)
			}
		}
		require.NoError(t, r.Err)
		revs[i] = r.Revision
	}
	for i, r := range cps.PutBatch(ctx, list) {
		for ctx.Err() == nil && errors.Is(r.Err, kvstore.ErrUnavailable) { // a server under load may lose its lead again
			_, r.Err = cps.Put(ctx, list[i].Checkpoint, 0)
		}
		require.ErrorIs(t, r.Err, kvstore.ErrConflict, i)
	}
	_, err = cps.Put(t.Context(), checkpoint("run-7", 2), revs[7]+1)
	require.ErrorIs(t, err, kvstore.ErrConflict)
	next, err := cps.Put(t.Context(), checkpoint("run-7", 2), revs[7])
	require.NoError(t, err)
	_, rev, err := cps.GetFresh(t.Context(), "run-7")
	require.NoError(t, err)
	require.Equal(t, next, rev)
}

func TestProvision_ReplicasWithoutCluster_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.Replicas = 3
	err := kvstore.Provision(t.Context(), b.js, cfg)
	require.ErrorContains(t, err, "replicas > 1 not supported in non-clustered mode")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()), "nothing has changed")
}

// A log counts as lone only while it has one replica and is to keep one: not from the moment it is scaled to three
// replicas until two of them are removed.
func TestAskLone_LogScaledUpAndDown_IsLoneWithOneReplicaOnly(t *testing.T) {
	t.Parallel()
	nc := startCluster(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := smallFleet()
	cfg.Replicas = 1
	require.Eventually(t, func() bool { return kvstore.Provision(t.Context(), js, cfg) == nil }, time.Minute, 50*time.Millisecond)
	names := schema.NamesOf(cfg.Fleet, 0)
	for range 3 {
		_, err := js.Publish(t.Context(), names.EventSubject("run-1"), nil)
		require.NoError(t, err)
	}
	log, err := eventlog.AskLone(t.Context(), js, names, "run-1")
	require.NoError(t, err)
	require.True(t, log.Only)
	require.True(t, log.Holds)
	require.EqualValues(t, 3, log.Last)
	require.WithinDuration(t, time.Now(), log.Now, time.Minute)
	log, err = eventlog.AskLone(t.Context(), js, names, "unknown")
	require.NoError(t, err)
	require.False(t, log.Holds)

	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	scale := func(replicas int) {
		c := stream.CachedInfo().Config
		c.Replicas = replicas
		_, err := js.UpdateStream(t.Context(), c)
		require.NoError(t, err)
	}
	scale(3)
	for current := 0; current < 2; {
		log, err := eventlog.AskLone(t.Context(), js, names, "")
		if err == nil {
			require.False(t, log.Only)
		}
		info, err := stream.Info(t.Context())
		if current = 0; err == nil && info.Cluster != nil {
			for _, r := range info.Cluster.Replicas {
				if r.Current {
					current++
				}
			}
		}
	}
	scale(1)
	require.Eventually(t, func() bool {
		log, err := eventlog.AskLone(t.Context(), js, names, "")
		return err == nil && log.Only && log.Last == 3
	}, time.Minute, 20*time.Millisecond)
}
