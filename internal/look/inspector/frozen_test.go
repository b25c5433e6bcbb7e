package inspector

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// link is a way to a server. After cut, the server is like a stopped process: it accepts connections and says nothing.
type link struct {
	net.Listener
	mu     sync.Mutex
	frozen bool
	open   []net.Conn
	// waits has a token for each connection that hears nothing.
	waits chan struct{}
}

func newLink(tb testing.TB, url string) *link {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	l := &link{Listener: listener, waits: make(chan struct{}, 100)}
	var ends sync.WaitGroup
	ends.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			l.open = append(l.open, client)
			frozen := l.frozen
			l.mu.Unlock()
			if frozen {
				l.waits <- struct{}{}
				continue
			}
			server, err := new(net.Dialer).DialContext(tb.Context(), "tcp", strings.TrimPrefix(url, "nats://"))
			if err != nil {
				_ = client.Close() // the server ended
				continue
			}
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				ends.Go(func() {
					_, _ = io.Copy(pair[0], pair[1]) // it ends with either side
					_ = pair[0].Close()
					_ = pair[1].Close()
				})
			}
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		l.cut()
		ends.Wait()
	})
	return l
}

// cut ends the connections. Later ones hear nothing.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = true
	for _, c := range l.open {
		_ = c.Close()
	}
	l.open = nil
}

// frozenDesk has the pages of a fleet, and those of the same fleet behind a link. Each wait for its server is longer than
// the test.
func frozenDesk(t *testing.T) *desk {
	t.Helper()
	const long = time.Hour
	w := waymarktest.Start(t)
	d := deskOf(t, w, nil, nil)
	l := newLink(t, w.URL())
	nc, err := nats.Connect("nats://"+l.Addr().String(), append(w.Options(), nats.Timeout(long))...)
	require.NoError(t, err)
	fleet, err := Connect(t.Context(), publisher.Config{Conn: nc, Fleet: schema.DefaultFleet, RequestTimeout: long})
	require.NoError(t, err)
	cfg := d.pages.Config
	cfg.Fleet, cfg.First = fleet, d.pages
	other, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = l.Close()
		l.cut() // until then, it would wait for the server
		other.Close()
		nc.Close()
	})
	d.pages.Also("search", other, nil)
	d.busy()
	require.Eventually(t, func() bool { return strings.Contains(d.page("/in/search/"), "work-0") }, time.Minute, 10*time.Millisecond)
	l.cut()
	<-l.waits // an attempt to connect again holds the connection's lock from here on
	return d
}

func TestFleets_ServerOfOneIsFrozen_PagesDoNotWaitForIt(t *testing.T) {
	t.Parallel()
	d := frozenDesk(t)
	d.viewer.Timeout = time.Minute
	require.Contains(t, d.eventually("/", "search unreachable"), "work-0")
	for _, path := range []string{"/in/search/", "/in/search/run/work-0", "/in/search/run/work-0/recovery", "/in/search/executors", "/in/search/act/cancel?status=running"} {
		status, page := d.get(path)
		require.Equal(t, http.StatusServiceUnavailable, status, path)
		require.Contains(t, page, "cannot reach the nats server: the connection is lost", path)
	}
}
