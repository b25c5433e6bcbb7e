package cli

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// provisioned is a fleet on a server of the test's, without a daemon, and an executor of it. where names the server to commands.
func provisioned(t *testing.T) (where []string, js jetstream.JetStream, fleet *publisher.Fleet) {
	t.Helper()
	server := natstest.Start(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet, QuotaBytes: 64 << 20}))
	fleet, err = publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "e", Agent: "a", Heartbeat: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) })
	return []string{"--context", server.NATSD().Endpoint().Context}, js, fleet
}
