package publisher_test

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
)

// daemon starts all that `waymark serve` runs.
func (w *world) daemon() {
	w.tb.Helper()
	nc := w.server.Conn(w.tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	heartbeats, wait, err := startDaemon(ctx, js, natstest.Logger(w.tb))
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

// startDaemon runs the daemon of the fleet "default" until ctx ends. It returns once requests are answered; wait waits for the end.
func startDaemon(ctx context.Context, js jetstream.JetStream, log zerolog.Logger) (heartbeats *liveness.Heartbeats, wait func() error, err error) {
	daemon, err := consumer.New(ctx, consumer.Config{
		Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true,
		Requests: service.Config{ClaimRate: 1000, ClaimBurst: 1000},
		Worker:   fold.Config{SweepEvery: 50 * time.Millisecond},
	}, time.Now, log)
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	select {
	case <-daemon.Ready():
	case <-ctx.Done():
	}
	return daemon.Heartbeats(), func() error { return <-ended }, nil
}
