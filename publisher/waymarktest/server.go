package waymarktest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// portPatience is how long a restarted server waits for its port, which another process may hold for a moment.
const portPatience = 5 * time.Second

// Server is the NATS server of a world. Start and Stop are called from the test's goroutine.
type Server struct {
	w   *World
	dir string
	// url and options of the clients; the server keeps its port.
	url     string
	port    int
	options []nats.Option
	// live is nil while the server is stopped.
	live *natsd.Server
}

// Start starts the server again after Stop, on its directory and port: clients reconnect by themselves. If the
// server runs, Start does nothing.
func (s *Server) Start() {
	s.w.tb.Helper()
	if s.live != nil {
		return
	}
	deadline := time.Now().Add(portPatience)
	for {
		ctx, cancel := s.w.context()
		// A test needs no data after a power cut, and syncs would take most of its time.
		live, err := natsd.Start(ctx, natsd.Config{StateDir: s.dir, Port: s.port, Sync: natsd.SyncInterval}, s.w.log)
		cancel()
		if errors.Is(err, natsd.ErrPortInUse) && time.Now().Before(deadline) {
			time.Sleep(lookEvery) //nolint:forbidigo // there is no notice when a port becomes free
			continue
		}
		s.w.must(err, "start the NATS server")
		s.live, s.url, s.port, s.options = live, live.URL(), live.Port(), live.Options()
		return
	}
}

// Stop stops the server cleanly. All clients are disconnected until Start.
func (s *Server) Stop() {
	s.w.tb.Helper()
	s.end(true)
}

// end closes the server if it runs. An error ends the test if fatal, and fails it otherwise.
func (s *Server) end(fatal bool) {
	s.w.tb.Helper()
	if s.live == nil {
		return
	}
	err := s.live.Close()
	s.live = nil
	if fatal {
		s.w.must(err, "stop the NATS server")
	} else if err != nil {
		s.w.tb.Errorf("waymarktest: stop the NATS server: %v", err)
	}
}

func (s *Server) runs() bool { return s.live != nil }

// jetStream is an in-process connection, for the world itself.
func (s *Server) jetStream() jetstream.JetStream {
	s.w.tb.Helper()
	nc, err := nats.Connect(s.url, append(slices.Clone(s.options),
		nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1), nats.SyncQueueLen(1<<13))...)
	s.w.must(err, "connect to the NATS server")
	js, err := jetstream.New(nc)
	s.w.must(err, "connect to JetStream")
	return js
}

// closed closes a connection and waits until it is closed.
func closed(ctx context.Context, nc *nats.Conn) {
	status := nc.StatusChanged(nats.CLOSED)
	nc.Close()
	select {
	case <-status:
	case <-ctx.Done():
	}
}
