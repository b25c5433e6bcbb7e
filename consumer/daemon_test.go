package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestDaemonConfig_FieldThatCannotBeUsed_IsNamed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for _, c := range []struct {
		name   string
		change func(*consumer.Config)
	}{
		{"Fleet", func(c *consumer.Config) { c.Fleet = "a b" }},
		{"Name", func(c *consumer.Config) { c.Name = "" }},
		{"Service", func(c *consumer.Config) { c.Service = nil }},
	} {
		cfg := consumer.Config{Fleet: "default", Name: "daemon", Service: js}
		require.NoError(t, cfg.Validate())
		c.change(&cfg)
		_, err := consumer.New(t.Context(), cfg, time.Now, natstest.Logger(t))
		require.ErrorIs(t, err, service.ErrConfig)
		require.ErrorContains(t, err, c.name)
	}
}

func TestDaemon_SettingsChange_AreApplied(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20, Shards: 2}))
	opened, changed := make(chan int, 2), make(chan time.Duration, 8)
	d, err := consumer.New(t.Context(), consumer.Config{
		Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true,
		Opened:  func(shard int, _ *fold.Worker) { opened <- shard },
		Changed: func(s schema.FleetSettings) { changed <- s.Silence() },
	}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	require.Zero(t, <-opened)
	require.Equal(t, 1, <-opened)
	require.False(t, d.Workers()[0].Leads(), "it does not run yet")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	<-d.Ready()
	_, err = kvstore.Change(t.Context(), js, "default", func(c *kvstore.FleetConfig) { c.Silence = 5 * time.Second })
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, <-changed)
	require.Eventually(t, func() bool {
		workers := d.Workers()
		return workers[0].Leads() && workers[1].Leads()
	}, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-done)
	require.False(t, d.Workers()[0].Leads())
}

func TestSettings_ApplyFails_AppliedLater(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	current, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	fails := errors.New("told to fail")
	settings := consumer.NewSettings(current, nc, js, natstest.Logger(t), func(schema.FleetSettings) error { return fails })
	_, err = kvstore.Change(t.Context(), js, "default", func(c *kvstore.FleetConfig) { c.Silence = 5 * time.Second })
	require.NoError(t, err)
	require.ErrorIs(t, settings.Refresh(t.Context()), fails)
	require.Zero(t, settings.Current().SilenceMS)
	fails = nil
	require.NoError(t, settings.Refresh(t.Context()))
	require.EqualValues(t, 5000, settings.Current().SilenceMS)
}

// A restore may take the place of the fleet that the daemon began with.
func TestSettings_FleetReplacedByOneOfOtherShards_RunFails(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", Shards: 2, QuotaBytes: 64 << 20}))
	current, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	current.Shards = 8
	settings := consumer.NewSettings(current, nc, js, natstest.Logger(t), func(schema.FleetSettings) error { return nil })
	require.ErrorIs(t, settings.Run(t.Context()), consumer.ErrOtherShards)
}

// The provisioning process has read the settings: a leader that goes away after that must not end the start.
func TestDaemon_SettingsAreGiven_AreNotReadAgain(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_"+schema.FleetBucket))
	cfg := consumer.Config{Fleet: "default", Name: "daemon", Service: js}
	_, err = consumer.New(t.Context(), cfg, time.Now, natstest.Logger(t))
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	cfg.Settings = &settings
	_, err = consumer.New(t.Context(), cfg, time.Now, natstest.Logger(t))
	require.NoError(t, err)
}

func TestDaemon_ConnectionIsClosed_RunFails(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	d, err := consumer.New(t.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: server.JetStream(t)}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- d.Run(t.Context()) }()
	<-d.Ready()
	nc.Close()
	require.ErrorIs(t, <-done, nats.ErrConnectionClosed)
}
