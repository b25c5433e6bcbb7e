package uicheck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/showcase"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

// securedWait bounds the start of a part of a secured fleet.
const securedWait = time.Minute

// newSecuredScene is a fleet with accounts: a server with the configuration that "fleet add" writes, a daemon and an executor with their keys, and
// "waymark ui" with an observer's key. Its pages let one browser in.
func newSecuredScene(t *testing.T) *scene {
	t.Helper()
	needsChromium(t)
	dir := t.TempDir()
	keys, url := filepath.Join(dir, "keys"), fmt.Sprintf("nats://127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	add := []string{"fleet", "add", schema.DefaultFleet, "--dir", keys}
	waymark(t, append(add, "--offline", "--quota", "4GiB", "--nats", url)...)
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "listen: %q\njetstream { store_dir: %q, max_file_store: 500G }\naccounts {\n  include %q\n}\n",
		strings.TrimPrefix(url, "nats://"), filepath.Join(dir, "nats"), "keys/fleet-"+schema.DefaultFleet+".conf"), 0o600))
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	opts.NoSigs = true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(securedWait))
	waymark(t, add...)
	as := func(role access.Role, args ...string) []string {
		return append(args, "--context", filepath.Join(keys, schema.DefaultFleet+"-"+string(role)+".json"))
	}
	serving(t, as(access.Daemon, "serve", "--json", "--http", "off", "--name", "daemon-1")...)
	executor := connection(t, url, keys, access.Executor)
	s := &scene{T: t, stage: showcase.On(t, executor), executor: executor}
	s.js, err = jetstream.New(connection(t, url, keys, access.Daemon))
	require.NoError(t, err)
	var line struct {
		File string `json:"file"`
		Acts bool   `json:"acts"`
	}
	require.NoError(t, json.Unmarshal(serving(t, as(access.Observer, "ui", "--json")...), &line))
	require.False(t, line.Acts, "an observer's pages have no buttons")
	s.entrance = func() string {
		address, err := os.ReadFile(line.File)
		require.NoError(t, err)
		return strings.TrimSpace(string(address))
	}
	return s
}

// connection is a connection with the key of a role.
func connection(t *testing.T, url, keys string, role access.Role) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(keys, schema.DefaultFleet+"-"+string(role)+".nk"))
	require.NoError(t, err)
	nc, err := nats.Connect(url, key, nats.CustomInboxPrefix(access.InboxPrefix(role)), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// environment returns variables of a user without a context and a state directory.
func environment(t *testing.T) func(string) string {
	t.Helper()
	dir := t.TempDir()
	return func(name string) string {
		return map[string]string{"HOME": dir, "XDG_CONFIG_HOME": dir, "WAYMARK_STATE_DIR": filepath.Join(dir, "state")}[name]
	}
}

// waymark runs a command to its end.
func waymark(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	var out bytes.Buffer
	require.Zero(t, cli.Run(ctx, args, environment(t), strings.NewReader(""), &out, &out), "waymark %s: %s", strings.Join(args, " "), &out)
}

// serving runs a command until the test ends, and returns its first line.
func serving(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, said, done := &firstLine{line: make(chan []byte, 1)}, new(firstLine), make(chan int, 1)
	getenv := environment(t)
	go func() { done <- cli.Run(ctx, args, getenv, strings.NewReader(""), out, said) }()
	t.Cleanup(func() {
		cancel()
		require.Zero(t, <-done, said)
	})
	select {
	case line := <-out.line:
		return line
	case code := <-done:
		done <- 0
		require.Failf(t, "it ended", "waymark %s: exit code %d: %s", strings.Join(args, " "), code, said)
	case <-time.After(securedWait):
		require.Failf(t, "it is not ready", "waymark %s: %s", strings.Join(args, " "), said)
	}
	return nil
}

// firstLine keeps what a command writes, and hands its first line over.
type firstLine struct {
	mu   sync.Mutex
	text bytes.Buffer
	line chan []byte
	told bool
}

func (w *firstLine) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.text.Write(p)
	if line, _, ok := bytes.Cut(w.text.Bytes(), []byte("\n")); ok && w.line != nil && !w.told {
		w.told = true
		w.line <- bytes.Clone(line)
	}
	return n, err
}

func (w *firstLine) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
