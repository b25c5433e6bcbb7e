package natsconn_test

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

func TestDiscover_RunningServer_ContextConnects(t *testing.T) {
	t.Parallel()
	p := natstest.StartProcess(t)
	end, err := natsconn.Discover(t.Context(), p.StateDir())
	require.NoError(t, err)
	require.Equal(t, p.URL(), end.URL)
	require.Equal(t, p.PID(), end.PID)
	require.False(t, end.Started.IsZero())
	nc, err := end.Connect()
	require.NoError(t, err)
	defer nc.Close()
	require.Equal(t, end.ServerID, nc.ConnectedServerId())
}

func TestDiscover_NoServer_SaysWhy(t *testing.T) {
	t.Parallel()
	t.Run("never started", func(t *testing.T) {
		requireNotRunning(t, t.TempDir(), "there is no endpoint.json")
	})
	t.Run("killed", func(t *testing.T) {
		p := natstest.StartProcess(t)
		p.Kill9(t)
		requireNotRunning(t, p.StateDir(), "does not answer")
	})
	t.Run("killed, and another server has its port", func(t *testing.T) {
		p := natstest.StartProcess(t)
		p.Kill9(t)
		dir := copyEndpoint(t, p.StateDir())
		p.Start(t)
		requireNotRunning(t, dir, "another server answers")
	})
	t.Run("killed, and something else has its port", func(t *testing.T) {
		var lc net.ListenConfig
		other, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
			_ = conn.Close()
		}()
		dir := t.TempDir()
		writeEndpoint(t, dir, `{"url":"nats://`+other.Addr().String()+`","pid":1,"server_id":"X"}`)
		requireNotRunning(t, dir, "not a nats server")
		require.NoError(t, other.Close())
		<-served
	})
}

func TestDiscover_UnparsableFile_Named(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeEndpoint(t, dir, `{"url":`)
	_, err := natsconn.Discover(t.Context(), dir)
	require.ErrorIs(t, err, natsconn.ErrUnusable)
	require.ErrorContains(t, err, filepath.Join(dir, "endpoint.json"))
}

func requireNotRunning(t *testing.T, dir, reason string) {
	t.Helper()
	_, err := natsconn.Discover(t.Context(), dir)
	require.ErrorIs(t, err, natsconn.ErrNotRunning)
	var gone *natsconn.NotRunningError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, dir, gone.Dir)
	require.ErrorContains(t, err, reason)
	require.ErrorContains(t, err, `"waymark serve"`)
}

func copyEndpoint(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	content, err := os.ReadFile(filepath.Join(from, "endpoint.json"))
	require.NoError(t, err)
	writeEndpoint(t, dir, string(content))
	return dir
}

func writeEndpoint(t *testing.T, dir, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "endpoint.json"), []byte(content), 0o600))
}

func TestStateDir_Environment_Followed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the cases are those of Unix; on Windows LocalAppData takes the place of XDG_STATE_HOME")
	}
	tests := map[string]struct {
		env  []string
		want string
		err  string
	}{
		"own variable wins":          {env: []string{"WAYMARK_STATE_DIR=/w", "XDG_STATE_HOME=/x", "HOME=/h"}, want: "/w"},
		"then XDG_STATE_HOME":        {env: []string{"XDG_STATE_HOME=/x", "HOME=/h"}, want: "/x/waymark"},
		"then the home directory":    {env: []string{"HOME=/h"}, want: "/h/.local/state/waymark"},
		"nothing set is an error":    {err: "set WAYMARK_STATE_DIR"},
		"a relative XDG is an error": {env: []string{"XDG_STATE_HOME=x", "HOME=/h"}, err: "XDG_STATE_HOME"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := natsconn.StateDir(func(key string) string {
				for _, pair := range test.env {
					if value, ok := strings.CutPrefix(pair, key+"="); ok {
						return value
					}
				}
				return ""
			})
			if test.err != "" {
				require.ErrorIs(t, err, natsconn.ErrUnusable)
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}
