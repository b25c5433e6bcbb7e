package publisher_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// proxy stands between an executor and the server and swallows acknowledgements on their way back.
type proxy struct {
	listener net.Listener
	target   string
	group    sync.WaitGroup

	mu sync.Mutex
	// drop acknowledgements: that many, all when negative.
	drop, swallowed int
	// dropClaims swallows the answers to claims.
	dropClaims bool
	// spoilRun makes that many answers to takeovers of the run unusable, all when spoil is negative.
	// spoilt is the subject of the last: a connection may be sent one message for two subscriptions.
	spoilRun, spoilt string
	spoil            int
	// held is closed when answers may go on; nil when none is held up.
	held   chan struct{}
	conns  []net.Conn
	closed bool
}

func newProxy(tb testing.TB, server string) *proxy {
	tb.Helper()
	u, err := url.Parse(server)
	require.NoError(tb, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	p := &proxy{listener: listener, target: u.Host}
	p.group.Go(p.serve)
	tb.Cleanup(func() {
		p.release()
		_ = listener.Close()
		p.mu.Lock()
		p.closed = true
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.group.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

// dropAcks drops the next n acknowledgements, all from now on when n is negative, none when 0.
func (p *proxy) dropAcks(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = n
}

// deafen drops all acknowledgements to f, which gives an event up after a second. Call it while f publishes nothing.
func (p *proxy) deafen(f *publisher.Fleet) {
	publisher.SetPublishTimeout(f, time.Second)
	p.dropAcks(-1)
}

// heal lets acknowledgements through again, and restores the publish timeout of f.
func (p *proxy) heal(f *publisher.Fleet) {
	p.dropAcks(0)
	publisher.SetPublishTimeout(f, patience)
}

// hold holds acknowledgements, and what comes behind them, up until release.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

func (p *proxy) dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed
}

// loseClaims swallows the answers to claims from now on, or no longer.
func (p *proxy) loseClaims(lose bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropClaims = lose
}

// spoilTakeovers makes the next n answers to takeovers of the run unusable, all from now on when n is negative.
func (p *proxy) spoilTakeovers(run string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoilRun, p.spoil = run, n
}

// spoiled changes, in place, an answer that is to be unusable.
func (p *proxy) spoiled(subject string, payload []byte) {
	const member = `"next_sequence":`
	at := bytes.Index(payload, []byte(member))
	p.mu.Lock()
	defer p.mu.Unlock()
	if at < 0 || p.spoil == 0 && subject != p.spoilt || !bytes.Contains(payload, []byte(`"run":"`+p.spoilRun+`"`)) {
		return
	}
	if p.spoil > 0 && subject != p.spoilt {
		p.spoil--
	}
	p.spoilt = subject
	payload[at+1] = 'N'
}

func (p *proxy) swallow(payload []byte) bool {
	if bytes.Contains(payload, []byte(`"retry_after_ms":`)) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.dropClaims
	}
	if !bytes.Contains(payload, []byte(`"stream":"WAYMARK_EVENTS_`)) || !bytes.Contains(payload, []byte(`"seq":`)) {
		return false
	}
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop == 0 {
		return false
	}
	if p.drop > 0 {
		p.drop--
	}
	p.swallowed++
	return true
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns = append(p.conns, c)
	return true
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client) || !p.keep(server) {
			return
		}
		p.group.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		})
		p.group.Go(func() {
			_ = p.filter(client, bufio.NewReader(server))
			_ = client.Close()
		})
	}
}

// filter copies the server's protocol, message by message.
func (p *proxy) filter(to io.Writer, from *bufio.Reader) error {
	for {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return err
		}
		fields := bytes.Fields(line)
		if len(fields) > 2 && (bytes.EqualFold(fields[0], []byte("MSG")) || bytes.EqualFold(fields[0], []byte("HMSG"))) {
			n, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			payload := make([]byte, n+2)
			if _, err := io.ReadFull(from, payload); err != nil {
				return err
			}
			if p.swallow(payload) {
				continue
			}
			p.spoiled(string(fields[1]), payload)
			line = append(line, payload...)
		}
		if _, err := to.Write(line); err != nil {
			return err
		}
	}
}

// processWorld is a fleet on a server in a process of its own, which can be killed.
type processWorld struct {
	server *natstest.Process
	js     jetstream.JetStream
	fleet  *publisher.Fleet
}

func newProcessWorld(t *testing.T) *processWorld {
	t.Helper()
	p := &processWorld{server: natstest.StartProcess(t, natstest.SyncAlways())}
	nc := p.server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	p.js = js
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	p.fleet, err = publisher.Connect(t.Context(), publisher.Config{
		Conn: nc, Executor: "exec-1", Agent: "coder", PublishTimeout: 30 * time.Second, TryTimeout: 500 * time.Millisecond,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.fleet.Close(t.Context())) })
	return p
}

func (p *processWorld) log(tb testing.TB, run string) []schema.Record {
	tb.Helper()
	var all []schema.Record
	require.NoError(tb, eventlog.Read(tb.Context(), p.js, schema.NamesOf("default", 0), run, 1, func(rec schema.Record) error {
		all = append(all, rec)
		return nil
	}))
	return all
}
