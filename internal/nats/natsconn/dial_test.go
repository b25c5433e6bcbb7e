package natsconn_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// It connects through something that accepts connections without a server behind it, like a proxy. Each attempt
// closes the link of the one before.
func TestConnect_NotAServer_ClosesSocket(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var work sync.WaitGroup
	var mu sync.Mutex
	accepted, open := 0, 0
	work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			accepted++
			open++
			mu.Unlock()
			work.Go(func() {
				_, _ = conn.Write([]byte("no server here\r\n"))
				_, _ = io.Copy(io.Discard, conn) // until the client closes it
				_ = conn.Close()
				mu.Lock()
				defer mu.Unlock()
				open--
			})
		}
	})
	target, err := newWorld(t).resolve(t, natsconn.Settings{URL: "nats://" + listener.Addr().String()}, t.TempDir())
	require.NoError(t, err)
	closed := make(chan struct{})
	nc, err := target.Connect(t.Context(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	most := 0
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, open)
		return accepted > 25
	}, time.Minute, time.Millisecond)
	require.Less(t, most, 10, "links are left open")
	nc.Close()
	<-closed
	require.NoError(t, listener.Close())
	work.Wait()
}
