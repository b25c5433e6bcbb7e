package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// daemon runs what `waymark serve` runs for the fleet "default".
func daemon(t *testing.T, server *natstest.Server) {
	t.Helper()
	log := natstest.Logger(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "daemon")
	require.NoError(t, err)
	shards := []*kvstore.Shard{shard}
	roster := consumer.NewRoster(shards, 0, time.Now, log)
	heartbeats := consumer.NewHeartbeats("default", nc, time.Now, log)
	service, err := consumer.NewService(consumer.ServiceConfig{Fleet: "default", Name: "daemon"}, nc, js, shards, roster, time.Now, log)
	require.NoError(t, err)
	folder, err := consumer.NewFolder(consumer.FolderConfig{Fleet: "default", Holder: "daemon", Roster: roster, Heartbeats: heartbeats}, nc, js, shard, time.Now, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{service.Run, roster.Run, heartbeats.Run, folder.Run} {
		group.Go(func() error { return part(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		require.NoError(t, group.Wait())
	})
	<-service.Ready()
}

func TestTheShortestExecutorClaimsARunAndFinishesIt(t *testing.T) {
	server := natstest.Start(t)
	daemon(t, server)
	other, err := publisher.Connect(t.Context(), publisher.Config{Conn: server.Conn(t, nats.ReconnectBufSize(-1)), Executor: "other", Agent: "greeter"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close(context.Background())) })
	run, err := other.Start(t.Context(), publisher.RunSpec{ID: "hello"})
	require.NoError(t, err)
	require.NoError(t, run.Interrupt(t.Context(), "shutdown"))

	// As where `waymark serve` runs on the same machine, and nothing else names a server.
	for _, name := range append(natsconn.Variables(), "WAYMARK_FLEET") {
		t.Setenv(name, "")
	}
	t.Setenv("WAYMARK_STATE_DIR", server.StateDir())
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx) }()
	require.Eventually(t, func() bool {
		head, err := other.Head(t.Context(), "hello")
		return err == nil && head.Status == schema.StatusCompleted
	}, 20*time.Second, 20*time.Millisecond)
	stop()
	require.NoError(t, <-served)
	state, err := other.Get(t.Context(), "hello")
	require.NoError(t, err)
	require.JSONEq(t, `"Hello!"`, string(state.Calls[0].Result))
	require.Equal(t, schema.Epoch(2), state.Head.Epoch)
}
