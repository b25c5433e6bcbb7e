package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

// The fleet of another account of the same server is new, and not the lost one of the first account.
func TestServe_FleetOfAnotherAccount_IsNew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `listen: %q
jetstream { store_dir: %q, max_file_store: 20G }
accounts {
  "team a" { jetstream: enabled, users: [{ user: a, password: secret }] }
  "team_a" { jetstream: enabled, users: [{ user: b, password: secret }] }
}
`, address, filepath.Join(dir, "nats")), 0o600))
	srv := newServer(t, file)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(startLimit))

	getenv := func(name string) string {
		if name == "WAYMARK_STATE_DIR" {
			return filepath.Join(dir, "state")
		}
		return ""
	}
	serve := func(user string) error {
		path := filepath.Join(dir, user+".json")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"url":"nats://%s","user":%q,"password":"secret"}`, address, user), 0o600))
		_, stop, err := startDaemon([]string{"--http", "off", "--quota", "64MiB", "--shards", "1", "--context", path}, getenv)
		if err == nil {
			code, log := stop()
			require.Zero(t, code, log)
		}
		return err
	}
	require.NoError(t, serve("a"))
	require.NoError(t, serve("b"), "this account has had no fleet")

	nc, err := nats.Connect("nats://"+address, nats.UserInfo("b", "secret"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	for name := range js.StreamNames(t.Context()).Name() {
		require.NoError(t, js.DeleteStream(t.Context(), name))
	}
	err = serve("b")
	require.ErrorContains(t, err, "fleet "+schema.DefaultFleet+" is gone")
	require.ErrorContains(t, err, "ended with 6")
	require.NoError(t, serve("a"))
}
