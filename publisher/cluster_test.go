package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// cluster is three servers in this process with a fleet of three replicas.
type cluster struct {
	*world
	servers []*server.Server
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	const size = 3
	routes, ports := "", natstest.FreePorts(t, size)
	for _, port := range ports {
		routes += fmt.Sprintf(",nats://127.0.0.1:%d", port)
	}
	c := &cluster{world: &world{tb: t, names: schema.NamesOf("default", 0)}}
	urls := ""
	for i := range size {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}, Routes: server.RoutesFromStr(routes[1:]),
		})
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		c.servers = append(c.servers, s)
		urls += "," + s.ClientURL()
	}
	closed := make(chan struct{})
	nc, err := nats.Connect(urls[1:], nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); <-closed })
	c.nc = nc
	c.js, err = jetstream.New(nc)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, s := range c.servers {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == size {
				return true
			}
		}
		return false
	}, time.Minute, 20*time.Millisecond, "the cluster has no leader")
	// A leader that was busy may take a peer for gone until it hears of it again.
	require.Eventually(t, func() bool {
		err = kvstore.Provision(t.Context(), c.js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20, Replicas: 3})
		return !errors.Is(err, kvstore.ErrUnavailable)
	}, time.Minute, 20*time.Millisecond, "the servers do not find each other")
	require.NoError(t, err)
	return c
}

// replicas gives the fleet's streams so many, and waits until the log has them.
func (c *cluster) replicas(n int) error {
	if _, err := kvstore.Change(c.tb.Context(), c.js, "default", func(cfg *kvstore.FleetConfig) { cfg.Replicas = n }); err != nil {
		return err
	}
	require.Eventually(c.tb, func() bool {
		s, err := c.js.Stream(c.tb.Context(), c.names.EventStream())
		if err != nil {
			return false
		}
		info := s.CachedInfo().Cluster
		for _, r := range info.Replicas {
			if !r.Current {
				return false
			}
		}
		return info.Leader != "" && len(info.Replicas) == n-1
	}, time.Minute, 20*time.Millisecond)
	return nil
}

// leader is the server that leads the event stream.
func (c *cluster) leader() *server.Server {
	c.tb.Helper()
	for {
		s, err := c.js.Stream(c.tb.Context(), c.names.EventStream())
		require.NoError(c.tb, err)
		for _, one := range c.servers {
			if info := s.CachedInfo().Cluster; info != nil && one.Name() == info.Leader {
				return one
			}
		}
	}
}

// requireWholeLog compares a handle's fold with the log, which a replica may show late: each reading may come from
// another one, so it is the first whole reading that is compared.
func (c *cluster) requireWholeLog(run *publisher.Run) {
	c.tb.Helper()
	var log *schema.State
	require.Eventually(c.tb, func() bool {
		log = c.fold(run.ID())
		return log.Head.Position == run.Head().Position
	}, time.Minute, 10*time.Millisecond)
	c.requireFold(log, run)
}

func TestCluster_OfThree_Works(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: three servers, and one of them stops")
	}
	c := newCluster(t)
	f := c.fleet(func(cfg *publisher.Config) { cfg.PublishTimeout = time.Minute })

	t.Run("others write to the run at the same time", func(t *testing.T) {
		run := start(t, f, "busy")
		turn := openTurn(t, run)
		for i := range 20 {
			var wait sync.WaitGroup
			wait.Go(func() {
				for range 5 {
					c.control("busy", 1, &schema.RunOrphanedData{})
				}
			})
			_, err := turn.Call(t.Context(), publisher.ToolCall{ID: fmt.Sprint(i), Name: "x"}, publisher.ToolCall{ID: fmt.Sprint(i, "b"), Name: "x"})
			require.NoError(t, err)
			wait.Wait()
		}
		require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
		c.requireWholeLog(run)
	})

	t.Run("the log ends before what was acknowledged, once it has more replicas than at the start", func(t *testing.T) {
		require.NoError(t, c.replicas(1))
		late := c.fleet(func(cfg *publisher.Config) { cfg.Executor, cfg.PublishTimeout = "late", time.Minute })
		run := start(t, late, "scaled")
		require.NoError(t, run.Mark(t.Context(), "x"))
		require.NoError(t, c.replicas(3))
		require.NoError(t, run.Mark(t.Context(), "y"))
		s, err := c.js.Stream(t.Context(), c.names.EventStream())
		require.NoError(t, err)
		require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(c.names.EventSubject("scaled"))))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = run.Mark(ctx, "z")
		require.ErrorIs(t, err, publisher.ErrUnavailable, "a leader that is cut off may say so, and others know more")
		require.NotErrorIs(t, run.Err(), publisher.ErrLogRegressed)
	})

	t.Run("many runs at once", func(t *testing.T) {
		var wait sync.WaitGroup
		runs := make([]*publisher.Run, 32)
		for i := range runs {
			runs[i] = start(t, f, fmt.Sprint("r", i))
			wait.Go(func() {
				for range 10 {
					if err := runs[i].Mark(t.Context(), "x"); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		for _, run := range runs {
			c.requireWholeLog(run)
		}
	})

	t.Run("acknowledgements are lost", func(t *testing.T) {
		p := newProxy(t, c.nc.ConnectedUrl())
		lossy := c.fleet(func(cfg *publisher.Config) {
			cfg.Conn, cfg.URL, cfg.PublishTimeout = nil, p.url(), time.Minute
			cfg.Options = []nats.Option{nats.IgnoreDiscoveredServers()}
		})
		run := start(t, lossy, "lossy")
		for i := range 10 {
			p.dropAcks(1 + i%2)
			require.NoError(t, run.Mark(t.Context(), "x"))
		}
		turn := openTurn(t, run)
		p.dropAcks(1)
		_, err := turn.Call(t.Context(), publisher.ToolCall{ID: "a", Name: "x"}, publisher.ToolCall{ID: "b", Name: "x"})
		require.NoError(t, err)
		require.GreaterOrEqual(t, p.dropped(), 10)
		c.requireWholeLog(run)
		require.Zero(t, run.Head().Counts.Duplicates)
	})

	t.Run("the leader is lost", func(t *testing.T) {
		run := start(t, f, "failover")
		done := make(chan error, 1)
		half := make(chan struct{})
		ctx := context.WithoutCancel(t.Context())
		go func() {
			for i := range 100 {
				if i == 50 {
					close(half)
				}
				if err := run.Mark(ctx, "x"); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		<-half
		leader := c.leader()
		leader.Shutdown()
		leader.WaitForShutdown()
		require.NoError(t, <-done)
		require.Equal(t, int64(101), run.Head().Counts.Events)
		c.requireWholeLog(run)
	})
}
