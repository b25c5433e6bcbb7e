package foldtest

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

// Tap is a connection's way to the server. It calls a function before each request whose subject begins with one of the prefixes.
type Tap struct {
	Prefixes []string
	// Dead connections send and receive nothing more, and are not replaced; After says that the last seen request is
	// still sent.
	Dead  atomic.Bool
	After bool

	mu     sync.Mutex
	before func(subject string)
}

// Set changes the function.
func (d *Tap) Set(before func(subject string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = before
}

// Dial implements nats.CustomDialer.
func (d *Tap) Dial(network, address string) (net.Conn, error) {
	if d.Dead.Load() {
		return nil, net.ErrClosed
	}
	conn, err := new(net.Dialer).DialContext(context.Background(), network, address)
	return &tappedConn{conn, d}, err
}

type tappedConn struct {
	net.Conn
	tap *Tap
}

func (c *tappedConn) Write(b []byte) (int, error) {
	for line := range bytes.SplitSeq(b, []byte("\r\n")) {
		rest, ok := bytes.CutPrefix(line, []byte("PUB "))
		if !ok {
			rest, ok = bytes.CutPrefix(line, []byte("HPUB "))
		}
		subject, _, _ := bytes.Cut(rest, []byte(" "))
		if !ok || !slices.ContainsFunc(c.tap.Prefixes, func(p string) bool { return bytes.HasPrefix(subject, []byte(p)) }) {
			continue
		}
		c.tap.mu.Lock()
		before := c.tap.before
		c.tap.mu.Unlock()
		if before != nil {
			before(string(subject))
		}
		if c.tap.Dead.Load() {
			if c.tap.After {
				_, _ = c.Conn.Write(b)
			}
			_ = c.Close()
			return 0, net.ErrClosed
		}
	}
	if c.tap.Dead.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// FoldTapped starts a fold worker all of whose requests go through a tap, and returns it with the function that stops it.
func (w *World) FoldTapped(cfg fold.Config, d *Tap) (*fold.Worker, func()) {
	w.TB.Helper()
	cfg.Fleet, cfg.LeaseTTL, cfg.ReconcileEvery = "default", cmp.Or(cfg.LeaseTTL, time.Second), 20*time.Millisecond
	nc := w.Server.Conn(w.TB, nats.SetCustomDialer(d), nats.MaxReconnects(0))
	js := JetStream(w.TB, nc)
	settings, _, err := kvstore.NewFleets(w.JS).Get(w.TB.Context(), "default")
	require.NoError(w.TB, err)
	shard, err := kvstore.OpenShard(js, settings, 0, cfg.Holder)
	require.NoError(w.TB, err)
	f, err := fold.New(cfg, nc, js, shard, time.Now, natstest.Logger(w.TB))
	require.NoError(w.TB, err)
	return f, w.Run(f)
}

// FoldThrough starts a fold worker whose requests to the JetStream API a test sees first, as natstest.Between has it.
func (w *World) FoldThrough(cfg fold.Config, now func() time.Time, seen func(nc *nats.Conn, m *nats.Msg, subject string)) *fold.Worker {
	w.TB.Helper()
	cfg.Fleet, cfg.LeaseTTL = "default", time.Second
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 20 * time.Millisecond
	}
	nc := w.Server.Conn(w.TB)
	js := natstest.Between(w.TB, nc, func(m *nats.Msg, subject string) { seen(nc, m, subject) })
	settings, _, err := kvstore.NewFleets(w.JS).Get(w.TB.Context(), "default")
	require.NoError(w.TB, err)
	shard, err := kvstore.OpenShard(js, settings, 0, cfg.Holder)
	require.NoError(w.TB, err)
	f, err := fold.New(cfg, nc, js, shard, now, natstest.Logger(w.TB))
	require.NoError(w.TB, err)
	w.Run(f)
	return f
}
