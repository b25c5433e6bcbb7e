package natstest_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func createStream(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
}

func requireMessages(t *testing.T, js jetstream.JetStream, want uint64) {
	t.Helper()
	stream, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, info.State.Msgs)
}

// reconnected returns a channel that is signalled at each reconnect.
func reconnected() (<-chan struct{}, nats.Option) {
	back := make(chan struct{}, 16)
	return back, nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} })
}

func TestServer_Restart_Reconnects(t *testing.T) {
	s := natstest.Start(t)
	back, opt := reconnected()
	js := s.JetStream(t, opt)
	createStream(t, js)
	_, err := js.Publish(t.Context(), "s", nil)
	require.NoError(t, err)
	s.Restart(t)
	<-back
	requireMessages(t, js, 1)
	require.False(t, s.NATSD().UncleanStart())
}

func TestServer_Kill9_KeepsAcknowledged(t *testing.T) {
	p := natstest.StartProcess(t, natstest.SyncAlways())
	back, opt := reconnected()
	js := p.JetStream(t, opt)
	createStream(t, js)
	url := p.URL()
	for range 3 {
		_, err := js.Publish(t.Context(), "s", nil)
		require.NoError(t, err)
	}
	p.Kill9(t)
	p.Start(t)
	require.Equal(t, url, p.URL())
	require.True(t, p.UncleanStart())
	<-back
	requireMessages(t, js, 3)
}

func TestServer_Two_Isolated(t *testing.T) {
	a, b := natstest.Start(t), natstest.Start(t)
	require.NotEqual(t, a.StateDir(), b.StateDir())
	createStream(t, a.JetStream(t))
	_, err := b.JetStream(t).Stream(t.Context(), "S")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

func TestLogger_TestEnded_Silent(t *testing.T) {
	var late func()
	t.Run("ends", func(t *testing.T) {
		logger := natstest.Logger(t)
		late = func() { logger.Info().Msg("after the end") }
		logger.Info().Msg("before the end")
	})
	require.NotPanics(t, late)
}
