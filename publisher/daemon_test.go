package publisher_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

// daemon starts all that `waymark serve` runs.
func (w *world) daemon() {
	w.tb.Helper()
	nc := w.server.Conn(w.tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	heartbeats, wait, err := startDaemon(ctx, nc, js, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	require.Eventually(w.tb, func() bool {
		_, listening := heartbeats.Steady()
		return listening
	}, patience, time.Millisecond)
	w.tb.Cleanup(func() {
		cancel()
		require.NoError(w.tb, wait())
	})
}

// startDaemon runs what a daemon does for the fleet "default" until ctx ends: the folders, which also tell executors what
// others wrote and orphan the runs of silent ones, and the service, which gives runs out. It returns once requests are
// answered; wait waits for the end.
func startDaemon(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, log zerolog.Logger) (heartbeats *consumer.Heartbeats, wait func() error, err error) {
	settings, _, err := kvstore.NewFleets(js).Get(ctx, "default")
	if err != nil {
		return nil, nil, fmt.Errorf("settings: %w", err)
	}
	shards := make([]*kvstore.Shard, settings.Shards())
	for i := range shards {
		if shards[i], err = kvstore.OpenShard(js, settings, i, "daemon"); err != nil {
			return nil, nil, fmt.Errorf("shard %d: %w", i, err)
		}
	}
	roster := consumer.NewRoster(shards, 0, time.Now, log)
	heartbeats = consumer.NewHeartbeats("default", nc, time.Now, log)
	service, err := consumer.NewService(consumer.ServiceConfig{
		Fleet: "default", Name: "daemon", Generations: settings.Generations, ClaimRate: 1000, ClaimBurst: 1000,
	}, nc, js, shards, roster, time.Now, log)
	if err != nil {
		return nil, nil, fmt.Errorf("service: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, shard := range shards {
		folder, err := consumer.NewFolder(consumer.FolderConfig{
			Fleet: "default", Shard: i, Holder: "daemon", Roster: roster, Heartbeats: heartbeats, SweepEvery: 50 * time.Millisecond,
		}, nc, js, shard, time.Now, log)
		if err != nil {
			return nil, nil, fmt.Errorf("folder %d: %w", i, err)
		}
		group.Go(func() error { return folder.Run(ctx) })
	}
	group.Go(func() error { return roster.Run(ctx) })
	group.Go(func() error { return heartbeats.Run(ctx) })
	group.Go(func() error { return service.Run(ctx) })
	select {
	case <-service.Ready():
	case <-ctx.Done():
	}
	return heartbeats, group.Wait, nil
}
