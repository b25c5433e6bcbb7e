package publisher_test

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

// daemon starts all that `waymark serve` runs: the folders, which also tell executors what others wrote and orphan the
// runs of silent ones, and the service, which gives runs out.
func (w *world) daemon() {
	w.tb.Helper()
	nc := w.server.Conn(w.tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(w.tb, err)
	log := natstest.Logger(w.tb)
	settings, _, err := kvstore.NewFleets(js).Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	var shards []*kvstore.Shard
	for i := range settings.Shards() {
		shard, err := kvstore.OpenShard(js, settings, i, "daemon-1")
		require.NoError(w.tb, err)
		shards = append(shards, shard)
	}
	roster := consumer.NewRoster(shards, 0, time.Now, log)
	heartbeats := consumer.NewHeartbeats("default", nc, time.Now, log)
	for i, shard := range shards {
		folder, err := consumer.NewFolder(consumer.FolderConfig{
			Fleet: "default", Shard: i, Holder: "daemon-1", Roster: roster, Heartbeats: heartbeats, SweepEvery: 50 * time.Millisecond,
		}, nc, js, shard, time.Now, log)
		require.NoError(w.tb, err)
		group.Go(func() error { return folder.Run(ctx) })
	}
	service, err := consumer.NewService(consumer.ServiceConfig{
		Fleet: "default", Name: "daemon-1", Generations: settings.Generations, ClaimRate: 1000, ClaimBurst: 1000,
	}, nc, js, shards, roster, time.Now, log)
	require.NoError(w.tb, err)
	group.Go(func() error { return roster.Run(ctx) })
	group.Go(func() error { return heartbeats.Run(ctx) })
	group.Go(func() error { return service.Run(ctx) })
	w.tb.Cleanup(func() {
		cancel()
		require.NoError(w.tb, group.Wait())
	})
	<-service.Ready()
}
