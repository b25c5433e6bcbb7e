package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// daemon runs what `waymark serve` runs for the fleet "default".
func daemon(t *testing.T, server *natstest.Server) {
	t.Helper()
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	d, err := consumer.New(t.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-d.Ready()
}

func TestShortestExecutor_StartedRun_Finishes(t *testing.T) {
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
