//go:build unix

package natsconn_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

func TestDiscover_EveryoneMayWriteToTheDirectory_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeEndpoint(t, dir, `{"url":"nats://127.0.0.1:1","server_id":"X"}`)
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // Discover must refuse this mode
	_, err := natsconn.Discover(t.Context(), dir)
	require.ErrorIs(t, err, natsconn.ErrUnusable)
	require.ErrorContains(t, err, "chmod o-w")
}

func TestDiscover_EndpointIsAFIFO_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "endpoint.json"), 0o600))
	_, err := natsconn.Discover(t.Context(), dir)
	require.ErrorIs(t, err, natsconn.ErrUnusable)
	require.ErrorContains(t, err, "no regular file")
}

func TestDiscover_ServerSaysNothing_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	dir := t.TempDir()
	writeEndpoint(t, dir, `{"url":"nats://`+listener.Addr().String()+`","server_id":"X"}`)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	done := make(chan error, 1)
	go func() {
		_, err := natsconn.Discover(ctx, dir)
		done <- err
	}()
	select {
	case err := <-done:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(4 * time.Second):
		require.Fail(t, "it waits for the server")
	}
}
