package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
)

// A server that is too old is refused before anything is asked of it, by all that make streams, and by doctor first.
func TestCommands_ServerIsTooOld_SayWhatIsNeeded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	asked := new(lockedBuffer)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = fmt.Fprint(conn, `INFO {"server_id":"X","version":"2.12.1","proto":1,"headers":true,"jetstream":true,"max_payload":1048576}`+"\r\n")
				for in := bufio.NewScanner(conn); in.Scan(); {
					switch line := in.Text(); {
					case line == "PING":
						_, _ = fmt.Fprint(conn, "PONG\r\n")
					case strings.HasPrefix(line, "PUB"), strings.HasPrefix(line, "HPUB"):
						_, _ = fmt.Fprintln(asked, line)
					}
				}
			}()
		}
	}()
	dir := t.TempDir()
	getenv := func(name string) string { return map[string]string{"WAYMARK_STATE_DIR": dir}[name] }
	for _, command := range []string{"serve --http off", "doctor"} {
		var out bytes.Buffer
		code := Run(t.Context(), append(strings.Fields(command), "--nats", listener.Addr().String()), getenv, strings.NewReader(""), &out, &out)
		want := failure.Unavailable
		if command == "doctor" {
			want = failure.General
		}
		require.Equal(t, int(want), code, "%s: %s", command, &out)
		require.Contains(t, out.String(), "nats-server "+kvstore.LeastServer+" is needed or newer", command)
		require.Contains(t, out.String(), `version "2.12.1"`, command)
		require.NotContains(t, out.String(), "does not exist", command)
	}
	require.Empty(t, asked.String())
}

// A daemon that may not hear a verb is not ready: a start ends with the subject, and a daemon that loses the right says so.
func TestServe_SubscriptionIsRefused_IsNotReady(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	file, context := filepath.Join(dir, "nats.conf"), filepath.Join(dir, "user.json")
	require.NoError(t, os.WriteFile(context, fmt.Appendf(nil, `{"url":"nats://%s","user":"a","password":"secret"}`, address), 0o600))
	permit := func(rights string) {
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `listen: %q
jetstream { store_dir: %q, max_file_store: 20G }
accounts { team { jetstream: enabled, users: [{ user: a, password: secret, permissions: { %s } }] } }
`, address, filepath.Join(dir, "nats"), rights), 0o600))
	}
	permit("")
	srv := newServer(t, file)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(startLimit))
	getenv := func(name string) string {
		return map[string]string{"WAYMARK_STATE_DIR": filepath.Join(dir, "state")}[name]
	}
	args := []string{"--json", "--http", "127.0.0.1:0", "--quota", "64MiB", "--shards", "1", "--context", context}

	line, stop, err := startDaemon(args, getenv)
	require.NoError(t, err)
	var ready serve.Ready
	require.NoError(t, json.Unmarshal([]byte(line), &ready))
	url := ready.HTTP
	require.Eventually(t, func() bool { code, _ := ask(t, url+"/readyz"); return code == http.StatusOK }, startLimit, 100*time.Millisecond)
	permit(`subscribe: { deny: ["waymark.list.>"] }`)
	require.NoError(t, srv.Reload())
	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = ask(t, url+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, `subscribe to "waymark.list.`)
	}, startLimit, 100*time.Millisecond, "%s", &body)
	code, log := stop()
	require.Zero(t, code, log)

	_, _, err = startDaemon(args, getenv)
	require.ErrorContains(t, err, fmt.Sprintf("ended with %d", failure.Refused))
	require.ErrorContains(t, err, `subscribe to \"waymark.list.`)
}
