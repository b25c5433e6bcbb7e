package transcript_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// world is a server with a fleet that is folded and served.
type world struct {
	tb     testing.TB
	server *natstest.Server
}

func newWorld(tb testing.TB, opts ...natstest.Option) *world {
	tb.Helper()
	w := &world{tb: tb, server: natstest.Start(tb, opts...)}
	_, js := w.connect()
	fleet := kvstore.FleetConfig{Fleet: "default", QuotaBytes: 1 << 30}
	require.NoError(tb, kvstore.Provision(tb.Context(), js, fleet))
	daemon, err := consumer.New(tb.Context(), consumer.Config{Fleet: "default", Name: "daemon-1", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(tb))
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-done)
	})
	select {
	case <-daemon.Ready():
	case err := <-done:
		require.NoError(tb, err, "the daemon ended early")
	}
	return w
}

func (w *world) connect() (*nats.Conn, jetstream.JetStream) {
	w.tb.Helper()
	nc := w.server.Conn(w.tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(w.tb, err)
	return nc, js
}

// fleet connects an executor; closing is the test's end.
func (w *world) fleet(executor string) *publisher.Fleet {
	w.tb.Helper()
	nc, _ := w.connect()
	f, err := publisher.Connect(w.tb.Context(), publisher.Config{Conn: nc, Executor: executor})
	require.NoError(w.tb, err)
	w.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(w.tb, f.Close(ctx))
	})
	return f
}

// recovered returns a run's state as any client gets it, with what is in the blob store.
func (w *world) recovered(f *publisher.Fleet, run string) *schema.State {
	w.tb.Helper()
	s, err := f.Get(w.tb.Context(), run)
	require.NoError(w.tb, err)
	require.NoError(w.tb, f.Hydrate(w.tb.Context(), s))
	require.Zero(w.tb, s.Head.Counts.DeadLetters)
	return s
}

// requireEqual compares a recovered state and its export with the source, by separate code.
func requireEqual(tb testing.TB, c *transcriptcheck.Conversation, s *schema.State, f transcript.Format) {
	tb.Helper()
	require.NoError(tb, c.State(s))
	require.NoError(tb, c.Export(export(tb, s, f)))
}
