package natsd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// start starts a server and closes it with the test; a test may close it earlier.
func start(t *testing.T, cfg natsd.Config) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(t.Context(), cfg, natstest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func connect(t *testing.T, s *natsd.Server) jetstream.JetStream {
	t.Helper()
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

func createStream(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
}

func TestServer_Restart_KeepsStreamsCredentialsPort(t *testing.T) {
	t.Parallel()
	cfg := natsd.Config{StateDir: filepath.Join(t.TempDir(), "with [brackets] and spaces")}
	first := start(t, cfg)
	js := connect(t, first)
	createStream(t, js)
	ack, err := js.Publish(t.Context(), "s", []byte("one"))
	require.NoError(t, err)
	require.EqualValues(t, 1, ack.Sequence)
	url, natsContext := first.URL(), readFile(t, first.Endpoint().Context)
	js.Conn().Close()
	require.NoError(t, first.Close())

	second := start(t, cfg)
	require.Equal(t, url, second.URL())
	require.Equal(t, natsContext, readFile(t, second.Endpoint().Context))
	require.NotEqual(t, first.Endpoint().ServerID, second.Endpoint().ServerID)
	js = connect(t, second)
	stream, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "one", string(msg.Data))
	require.NoError(t, second.Healthy(t.Context()))
}

func TestServer_NoCredentials_Refused(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir()})
	for name, opts := range map[string][]nats.Option{
		"anonymous":      nil,
		"wrong password": {nats.UserInfo("waymark", "guess")},
		"token":          {nats.Token("guess")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nats.Connect(s.URL(), opts...)
			require.ErrorIs(t, err, nats.ErrAuthorization)
		})
	}
	nc, err := nats.Connect(s.URL(), s.Options()...)
	require.NoError(t, err)
	nc.Close()
}

func TestServer_Listener_LoopbackOnly(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir()})
	require.True(t, strings.HasPrefix(s.URL(), "nats://127.0.0.1:"), s.URL())
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, address := range addresses {
		ip, ok := address.(*net.IPNet)
		if !ok || ip.IP.IsLoopback() || ip.IP.IsLinkLocalUnicast() {
			continue
		}
		var dialer net.Dialer
		_, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(ip.IP.String(), fmt.Sprint(s.Port())))
		require.Error(t, err, "reachable at %s", ip)
	}
}

func TestCluster_Nodes_FindEachOther(t *testing.T) {
	t.Parallel()
	var servers [3]*natsd.Server
	cluster := natstest.Cluster{Name: "c", Ports: natstest.FreePorts(t, len(servers)), User: "u", Password: "p"}
	for i := range servers {
		node := cluster
		node.Node = i
		s, err := natsd.Start(t.Context(), natsd.Config{StateDir: t.TempDir(), Sync: natsd.SyncInterval, Options: node.Options}, zerolog.Nop())
		require.NoError(t, err)
		servers[i] = s
		t.Cleanup(func() { require.NoError(t, s.Close()) })
	}
	nc, err := nats.Connect(servers[0].URL(), nats.UserInfo("u", "p"))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
		return err == nil
	}, time.Minute, 20*time.Millisecond, "a stream of three replicas needs all three")
}

func TestStateFiles_Mode_OwnerOnly(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no mode bits: the directory inherits the rights of the user's profile")
	}
	root := filepath.Join(t.TempDir(), "state")
	s := start(t, natsd.Config{StateDir: root})
	createStream(t, connect(t, s))
	store := filepath.Join(root, "nats", "store")
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.HasPrefix(path, store+string(filepath.Separator)) {
			return nil // the server's own file, below a directory that no other user may enter
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		require.Equal(t, want, info.Mode().Perm(), path)
		return nil
	}))
}

func TestStart_WorldWritableDirectory_Refused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no mode bits")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := natsd.Start(t.Context(), natsd.Config{StateDir: dir}, natstest.Logger(t))
	require.ErrorIs(t, err, natsconn.ErrUnusable)
	require.ErrorContains(t, err, "chmod o-w "+dir)
}

func TestStart_DirectoryInUse_NamesHolder(t *testing.T) {
	t.Parallel()
	t.Run("same process", func(t *testing.T) {
		s := start(t, natsd.Config{StateDir: t.TempDir()})
		requireLocked(t, s.StateDir(), os.Getpid())
		require.NoError(t, s.Healthy(t.Context()), "the holder is not disturbed")
		require.NoError(t, s.Close())
		start(t, natsd.Config{StateDir: s.StateDir()})
	})
	t.Run("another process, until it is killed", func(t *testing.T) {
		p := natstest.StartProcess(t)
		requireLocked(t, p.StateDir(), p.PID())
		p.Kill9(t)
		start(t, natsd.Config{StateDir: p.StateDir()})
	})
}

func requireLocked(t *testing.T, dir string, pid int) {
	t.Helper()
	_, err := natsd.Start(t.Context(), natsd.Config{StateDir: dir}, natstest.Logger(t))
	require.ErrorIs(t, err, natsd.ErrLocked)
	var locked *natsd.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, dir, locked.Dir)
	require.Equal(t, pid, locked.PID)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, fmt.Sprintf("process %d", pid))
	require.ErrorContains(t, err, "WAYMARK_STATE_DIR")
}

func TestStart_PortTaken_LeavesNothing(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	port := taken.Addr().(*net.TCPAddr).Port //nolint:errcheck // a TCP listener has a TCP address

	cfg := natsd.Config{StateDir: t.TempDir(), Port: port}
	_, err = natsd.Start(t.Context(), cfg, natstest.Logger(t))
	require.ErrorIs(t, err, natsd.ErrPortInUse)
	require.ErrorContains(t, err, fmt.Sprintf("127.0.0.1:%d", port))
	require.ErrorContains(t, err, "choose another port")

	cfg.Port = 0
	s := start(t, cfg)
	require.False(t, s.UncleanStart())
	require.NotEqual(t, port, s.Port())
}

func TestStart_LastPortTaken_UsesFreePort(t *testing.T) {
	t.Parallel()
	cfg := natsd.Config{StateDir: t.TempDir()}
	first := start(t, cfg)
	port := first.Port()
	require.NoError(t, first.Close())
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	require.NotEqual(t, port, start(t, cfg).Port())
}

func TestUncleanStart_Flag_StaysUntilCleared(t *testing.T) {
	t.Parallel()
	p := natstest.StartProcess(t)
	require.False(t, p.UncleanStart())
	p.Stop(t)
	p.Start(t)
	require.False(t, p.UncleanStart(), "after a clean stop")
	p.Kill9(t)
	p.Start(t)
	require.True(t, p.UncleanStart(), "after kill -9")
	p.Stop(t)
	p.Start(t)
	require.True(t, p.UncleanStart(), "a clean restart does not make it good")
	p.Stop(t)

	s := start(t, natsd.Config{StateDir: p.StateDir()})
	require.True(t, s.UncleanStart())
	require.NoError(t, s.ClearUnclean())
	require.False(t, s.UncleanStart())
	require.NoError(t, s.Close())
	require.False(t, start(t, natsd.Config{StateDir: p.StateDir()}).UncleanStart())
}

func TestStart_FailedAfterUncleanStop_StillUnclean(t *testing.T) {
	t.Parallel()
	p := natstest.StartProcess(t)
	p.Kill9(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("asked to stop")
	cancel(why)
	_, err := natsd.Start(ctx, natsd.Config{StateDir: p.StateDir()}, natstest.Logger(t))
	require.Error(t, err)
	require.True(t, start(t, natsd.Config{StateDir: p.StateDir()}).UncleanStart())
}

func TestStart_ContextEnds_Returns(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("asked to stop")
	cancel(why)
	cfg := natsd.Config{StateDir: t.TempDir()}
	s, err := natsd.Start(ctx, cfg, natstest.Logger(t))
	if err == nil { // the start was quicker than the check of ctx
		require.NoError(t, s.Close())
	} else {
		require.ErrorIs(t, err, why)
	}
	require.False(t, start(t, cfg).UncleanStart())
}

func TestClose_Repeated_Safe(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir()})
	done := make(chan error)
	for range 3 {
		go func() { done <- s.Close() }()
	}
	for range 3 {
		require.NoError(t, <-done)
	}
	require.NoError(t, s.WaitForShutdown(t.Context()))
	require.ErrorIs(t, s.Healthy(t.Context()), natsd.ErrUnhealthy)
	_, err := natsconn.Discover(t.Context(), s.StateDir())
	require.ErrorIs(t, err, natsconn.ErrNotRunning)
}

// A client behind a partition keeps its subscriptions, and receives requests that others would answer, until the
// server ends its connection.
func TestServer_ClientAnswersNoPing_ConnectionEnds(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir(), Options: func(o *server.Options) { o.PingInterval = 500 * time.Millisecond }})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	opts := nats.GetDefaultOptions()
	for _, opt := range s.Options() {
		require.NoError(t, opt(&opts))
	}
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nPING\r\n", opts.User, opts.Password)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	said, err := io.ReadAll(conn)
	require.NoError(t, err, "the server does not end it")
	require.Contains(t, string(said), "PONG", "it was let in")
	require.Contains(t, string(said), "Stale Connection")
}

func TestClose_Timeout_KeepsDirectory(t *testing.T) {
	t.Parallel()
	var cfg natsd.Config
	var s *natsd.Server
	var err error
	// On a busy machine the server may have stopped before the clock is read: then it was in time.
	for try := 0; err == nil && try < 20; try++ {
		cfg = natsd.Config{StateDir: t.TempDir(), StopTimeout: 1}
		s, err = natsd.Start(t.Context(), cfg, natstest.Logger(t))
		require.NoError(t, err)
		err = s.Close()
	}
	require.ErrorIs(t, err, natsd.ErrStopTimeout)
	require.ErrorContains(t, err, cfg.StateDir)
	require.NoError(t, s.WaitForShutdown(t.Context()))
	requireLocked(t, cfg.StateDir, os.Getpid())
	require.FileExists(t, filepath.Join(cfg.StateDir, "running.json"))
}

func TestWaitForShutdown_ContextEnds_Returns(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.WaitForShutdown(ctx), context.Canceled)
}

func TestServer_Limits_Applied(t *testing.T) {
	t.Parallel()
	s := start(t, natsd.Config{StateDir: t.TempDir(), Options: func(o *server.Options) { o.MaxPayload, o.JetStreamMaxStore = 8<<10, 1<<20 }})
	js := connect(t, s)
	require.EqualValues(t, 8<<10, js.Conn().MaxPayload())
	require.ErrorIs(t, js.Conn().Publish("s", make([]byte, 8<<10+1)), nats.ErrMaxPayload)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, MaxBytes: 2 << 20})
	require.ErrorContains(t, err, "insufficient storage")
}

func TestStateFiles_Unparsable_Named(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"not JSON":    "{",
		"incomplete":  `{"user":"waymark"}`,
		"twice":       `{"user":"a","user":"b"}`,
		"huge":        `{"user":"` + strings.Repeat("x", 100<<10) + `"}`,
		"port beyond": `{"server_name":"n","user":"u","password":"p","port":70000}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "nats", "identity.json")
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			_, err := natsd.Start(t.Context(), natsd.Config{StateDir: dir}, natstest.Logger(t))
			require.ErrorIs(t, err, natsconn.ErrUnusable)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestServer_Log_WarningsAndAbove(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s, err := natsd.Start(t.Context(), natsd.Config{StateDir: t.TempDir()}, zerolog.New(zerolog.SyncWriter(&out)))
	require.NoError(t, err)
	_, err = nats.Connect(s.URL(), nats.Name("evil\r\nname"))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	nc, err := s.Connect()
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, s.Close())
	require.Contains(t, out.String(), "authentication error")
	require.NotContains(t, out.String(), password(t, s))
	require.NotContains(t, out.String(), "Listening for client connections")
	require.NotContains(t, out.String(), "\r")
	for line := range strings.Lines(out.String()) {
		require.True(t, strings.HasPrefix(line, "{"), line)
	}
}

func password(t *testing.T, s *natsd.Server) string {
	t.Helper()
	var options nats.Options
	for _, option := range s.Options() {
		require.NoError(t, option(&options))
	}
	require.Regexp(t, "^[A-Z2-7]{26}$", options.Password, "it begins with no dash, and needs no quoting")
	return options.Password
}

func TestConfig_Invalid_NamesField(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]natsd.Config{
		"StateDir": {},
		"Port":     {StateDir: "x", Port: 65536},
	} {
		t.Run(field, func(t *testing.T) {
			_, err := natsd.Start(t.Context(), cfg, natstest.Logger(t))
			require.ErrorIs(t, err, natsd.ErrInvalidConfig)
			require.ErrorContains(t, err, field)
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func TestServer_Defaults_SyncsEveryMessage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  natsd.Config
		want bool
	}{
		"by default":                   {natsd.Config{}, true},
		"not when the interval is set": {natsd.Config{Sync: natsd.SyncInterval}, false},
	} {
		t.Run(name, func(t *testing.T) {
			test.cfg.StateDir = t.TempDir()
			require.Equal(t, test.want, natsd.JetStreamConfig(start(t, test.cfg)).SyncAlways)
		})
	}
}
