package backup

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

func TestSendChunk_ServerIsHeardOfLate_IsSentAgain(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc, late := server.Conn(t), server.Conn(t)
	_, err := nc.RequestWithContext(t.Context(), "restore.x", []byte("a"))
	require.ErrorIs(t, err, nats.ErrNoResponders)
	heard := make(chan string, 8)
	timer := time.AfterFunc(100*time.Millisecond, func() {
		_, err := late.Subscribe("restore.x", func(m *nats.Msg) {
			heard <- string(m.Data)
			_ = m.Respond(nil) // the test's connection may be closed
		})
		if err != nil {
			heard <- err.Error()
		}
	})
	defer timer.Stop()
	_, err = sendChunk(t.Context(), nc, "restore.x", []byte("a"))
	require.NoError(t, err)
	require.Equal(t, "a", <-heard)
	require.Empty(t, heard, "it is sent once")
}
