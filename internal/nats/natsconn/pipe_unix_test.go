//go:build unix

package natsconn_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

func TestResolve_CredentialsAreAPipe_IsRefused(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	getenv := func(name string) string {
		return map[string]string{"NATS_URL": "nats://127.0.0.1:1", "NATS_CREDS": pipe}[name]
	}
	said := make(chan error, 1)
	go func() {
		_, err := natsconn.Config{Getenv: getenv}.Resolve(t.Context())
		said <- err
	}()
	select {
	case err := <-said:
		require.ErrorIs(t, err, natsconn.ErrSettings)
		require.ErrorContains(t, err, "is a pipe")
	case <-time.After(10 * time.Second):
		require.Fail(t, "it waits for the pipe")
	}
}
