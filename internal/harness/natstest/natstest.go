package natstest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// portWait bounds the wait for a port that another process took between stop and start.
const portWait = 5 * time.Second

// connectWait bounds one attempt to connect: the two seconds of the client pass on a busy machine.
const connectWait = 10 * time.Second

// Option changes the configuration of a server before it starts.
type Option func(*natsd.Config)

// SyncAlways makes the server write every acknowledged message through to the disk, as in production.
func SyncAlways() Option {
	return func(c *natsd.Config) { c.Sync = natsd.SyncAlways }
}

// MaxStore bounds the server's store, in bytes.
func MaxStore(n int64) Option {
	return func(c *natsd.Config) { c.Options = func(o *server.Options) { o.JetStreamMaxStore = n } }
}

// With changes any other field.
func With(change func(*natsd.Config)) Option { return change }

// Main is the body of TestMain: it runs the tests, then looks for leaked goroutines. In a child process of
// StartProcess it runs the server instead, and does not return.
func Main(m *testing.M, opts ...goleak.Option) {
	if settings := os.Getenv(childVariable); settings != "" {
		os.Exit(runChild(settings, os.Stdin, os.Stdout, os.Stderr)) //nolint:forbidigo // replaces main
	}
	mainCalled = true
	// A connection that is closed right after its first asynchronous publish can leave this goroutine in nats.go: its
	// channel is removed before it waits for it. Other leaks of a connection are still found.
	const left = "github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"
	goleak.VerifyTestMain(m, append(opts, goleak.IgnoreTopFunction(left))...)
}

// Server is an embedded server within the test process.
type Server struct {
	cfg  natsd.Config
	live *natsd.Server

	mu    sync.Mutex
	conns []*nats.Conn // those of Conn
	// OnConn changes each new connection; nil for none.
	OnConn func(*nats.Conn)
}

// Start starts a server on a directory of the test's own. It is closed when the test ends.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s := &Server{cfg: config(tb, opts)}
	s.start(tb)
	tb.Cleanup(func() {
		if err := s.live.Close(); err != nil {
			tb.Errorf("closing the test's nats server: %v", err)
		}
	})
	return s
}

func config(tb testing.TB, opts []Option) natsd.Config {
	tb.Helper()
	cfg := natsd.Config{StateDir: tb.TempDir(), Sync: natsd.SyncInterval}
	for _, opt := range opts {
		opt(&cfg)
	}
	return cfg
}

func (s *Server) start(tb testing.TB) {
	tb.Helper()
	// Not the test's context: a server may be needed in a cleanup, when that is over.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	live, err := natsd.Start(ctx, s.cfg, Logger(tb))
	require.NoError(tb, err, "starting the test's nats server")
	s.live = live
}

// NATSD is the server itself, for functions that this package does not wrap. It changes at each Restart.
func (s *Server) NATSD() *natsd.Server { return s.live }

// URL is the server's address, without credentials.
func (s *Server) URL() string { return s.live.URL() }

// StateDir is the server's state directory.
func (s *Server) StateDir() string { return s.live.StateDir() }

// Options are the credentials, short reconnect times and a short queue. Further options may follow them.
func (s *Server) Options() []nats.Option { return append(s.live.Options(), connectOptions()...) }

func connectOptions() []nats.Option {
	// The default queue of a subscription takes half a megabyte, which the race detector has to look after as well.
	return []nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.SyncQueueLen(1 << 13),
		nats.Timeout(connectWait),
	}
}

// Conn connects over TCP, as an executor would. The connection is closed when the test ends.
func (s *Server) Conn(tb testing.TB, opts ...nats.Option) *nats.Conn {
	tb.Helper()
	nc := connect(tb, s.URL(), append(s.Options(), opts...))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, nc)
	if s.OnConn != nil {
		s.OnConn(nc)
	}
	return nc
}

func connect(tb testing.TB, url string, opts []nats.Option) *nats.Conn {
	tb.Helper()
	// Close alone would not wait for the connection's goroutines, and the leak check would see them.
	closed := make(chan struct{})
	opts = append(opts, func(o *nats.Options) error {
		before := o.ClosedCB
		o.ClosedCB = func(nc *nats.Conn) {
			if before != nil {
				before(nc)
			}
			close(closed)
		}
		return nil
	})
	nc, err := nats.Connect(url, opts...)
	require.NoError(tb, err, "connecting to the test's nats server at %s", url)
	tb.Cleanup(func() {
		nc.Close()
		select {
		case <-closed:
		case <-time.After(portWait):
			tb.Errorf("a nats connection did not close within %s", portWait)
		}
	})
	return nc
}

// JetStream connects and returns a JetStream client.
func (s *Server) JetStream(tb testing.TB, opts ...nats.Option) jetstream.JetStream {
	tb.Helper()
	return newJetStream(tb, s.Conn(tb, opts...))
}

func newJetStream(tb testing.TB, nc *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err, "creating a JetStream client")
	return js
}

// Restart stops the server cleanly and starts it on the same directory and port: connections reconnect.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop(tb)
	s.Resume(tb)
}

// Stop stops the server cleanly. Connections keep trying until Resume. It returns once those of Conn know that the
// server is away: earlier messages are lost.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.cfg.Port = s.live.Port()
	require.NoError(tb, s.live.Close(), "stopping the test's nats server")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, nc := range s.conns {
		require.Eventually(tb, func() bool { return !nc.IsConnected() }, time.Minute, time.Millisecond, "a connection outlives its server")
	}
}

// Resume starts a stopped server on its directory and port.
func (s *Server) Resume(tb testing.TB) {
	tb.Helper()
	awaitPort(tb, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		live, err := natsd.Start(ctx, s.cfg, Logger(tb))
		if err == nil {
			s.live = live
		}
		return err
	})
}

// awaitPort retries a start whose fixed port another test's connection holds for a moment.
func awaitPort(tb testing.TB, start func() error) {
	tb.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(portWait)
	for {
		err := start()
		if !errors.Is(err, natsd.ErrPortInUse) {
			require.NoError(tb, err, "starting the test's nats server again")
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			require.NoError(tb, err, "starting the test's nats server again")
		}
	}
}

// Logger writes to the test's log, all levels. Lines after the test's end are dropped, because the testing package
// would panic. A benchmark's logger writes nothing: its lines would hide the figures.
func Logger(tb testing.TB) zerolog.Logger {
	tb.Helper()
	if _, ok := tb.(*testing.B); ok {
		return zerolog.Nop()
	}
	w := &testWriter{tb: tb}
	tb.Cleanup(w.end)
	return zerolog.New(w).Level(zerolog.TraceLevel)
}

type testWriter struct {
	mu    sync.Mutex
	tb    testing.TB
	ended bool
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.tb.Helper()
		w.tb.Logf("%s", p)
	}
	return len(p), nil
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}
