package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// paused is a fleet with daemons whose clock, and with it the server's, a test moves.
type paused struct {
	tb     testing.TB
	server *natstest.Server
	js     jetstream.JetStream
	ahead  atomic.Int64
}

func newPaused(tb testing.TB, shards int) *paused {
	tb.Helper()
	w := &paused{tb: tb, server: natstest.Start(tb)}
	w.js = w.server.JetStream(tb)
	require.NoError(tb, kvstore.Provision(tb.Context(), w.js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20, Shards: shards}))
	return w
}

func (w *paused) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

// daemon starts a daemon, and returns it with the function that stops it.
func (w *paused) daemon(name string) (*consumer.Daemon, func()) {
	w.tb.Helper()
	d, err := consumer.New(w.tb.Context(), consumer.Config{
		Fleet: "default", Name: name, Service: w.server.JetStream(w.tb), Fold: w.server.JetStream(w.tb),
	}, w.now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(w.tb.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stopped := false
	stop := func() {
		if cancel(); !stopped {
			stopped = true
			require.NoError(w.tb, <-done)
		}
	}
	w.tb.Cleanup(stop)
	<-d.Ready()
	return d, stop
}

// ask sends a request about the fleet. It returns the error of the service.
func (w *paused) ask(verb string, req, reply any) *schema.ServiceError {
	w.tb.Helper()
	body, err := json.Marshal(req)
	require.NoError(w.tb, err)
	m, err := w.js.Conn().Request(schema.ServiceSubject(verb, "default", ""), body, time.Minute)
	require.NoError(w.tb, err)
	if m.Header.Get(schema.HeaderErrorCode) != "" {
		refused := new(schema.ServiceError)
		require.NoError(w.tb, json.Unmarshal(m.Data, refused))
		return refused
	}
	require.NoError(w.tb, json.Unmarshal(m.Data, reply))
	return nil
}

func (w *paused) pauses() []schema.Pause {
	w.tb.Helper()
	s, _, err := kvstore.NewFleets(w.js).Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	return s.Pauses
}

func TestPause_ItsTimeComes_IsEndedByTheDaemon(t *testing.T) {
	t.Parallel()
	w := newPaused(t, 2)
	d, _ := w.daemon("daemon-1")
	w.daemon("daemon-2")
	until := func(agent string, in time.Duration) {
		var reply schema.PauseReply
		require.Nil(t, w.ask(schema.VerbPause, schema.PauseRequest{
			Scope: schema.Scope{Agent: agent}, Reason: "why", By: "ann", Until: schema.FormatTime(w.now().Add(in)),
		}, &reply))
	}
	until("soon", time.Hour)
	until("late", 3*time.Hour)
	require.Nil(t, w.ask(schema.VerbPause, schema.PauseRequest{Scope: schema.Scope{Agent: "always"}, Reason: "why", By: "ann"}, new(schema.PauseReply)))
	require.Len(t, w.pauses(), 3)
	w.ahead.Store(int64(2 * time.Hour))
	require.Eventually(t, func() bool { return len(w.pauses()) == 2 }, time.Minute, 10*time.Millisecond)
	require.Equal(t, "late", w.pauses()[0].Agent)
	require.Eventually(t, func() bool { return len(d.LiveRuns().Pauses()) == 2 }, time.Minute, 10*time.Millisecond)

	refused := w.ask(schema.VerbPause, schema.PauseRequest{Reason: "why", By: "ann", Until: schema.FormatTime(w.now().Add(-time.Second))}, new(schema.PauseReply))
	require.Equal(t, schema.CodeBadRequest, refused.Code)
	require.Contains(t, refused.Message, "use a time to come")
}
