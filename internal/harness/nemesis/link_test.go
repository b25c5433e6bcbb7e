package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Way is a direction through a proxy.
type Way int

// The two directions.
const (
	// Forth is from the dialling side to the server, Back from the server.
	Forth Way = iota
	Back
)

// Weather is how a proxy treats data. The zero value lets everything through.
type Weather struct {
	// Cut closes open connections and refuses new ones.
	Cut bool
	// Hold keeps data in that direction forever: the connection stays open, and neither side notices. It models a
	// partition, and with one direction only a half-open connection, or lost acknowledgements.
	Hold [2]bool
	// Delay is added to each piece of data, each way.
	Delay time.Duration
	// StallEvery makes each nth piece wait for Stall more, as a lost packet does that is sent again.
	StallEvery int
	Stall      time.Duration
	// CutAfter closes each connection after so many bytes, most likely in mid message; 0 does not.
	CutAfter int64
}

// Calm reports whether everything is let through at once.
func (w Weather) Calm() bool { return w == Weather{} }

// Proxy is a TCP link to one server, whose weather can be changed at any time. Held data is lost when the weather
// changes: the connections that had any are closed, because later data must not pass it.
type Proxy struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	cancel   context.CancelFunc
	work     sync.WaitGroup
	mu       sync.Mutex
	weather  Weather
	changed  chan struct{} // closed and made again at each change
	links    map[*link]bool
	closed   bool
	accepted int
}

// link is one connection through a proxy.
type link struct {
	near, far net.Conn
	// tainted: something was held, so that nothing may follow.
	mu      sync.Mutex
	tainted bool
	passed  int64
}

func (l *link) close() {
	_ = l.near.Close() // the other side may have closed it
	_ = l.far.Close()
}

// NewProxy listens on a free port of 127.0.0.1 for the target, a host and port. The port stays the proxy's until Close.
func NewProxy(ctx context.Context, target string) (*Proxy, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	return NewProxyOn(ctx, listener, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", target) }), nil
}

// NewProxyOn connects a listener, which it closes, with the result of dial: either may be in another network than
// this process.
func NewProxyOn(ctx context.Context, listener net.Listener, dial func(context.Context) (net.Conn, error)) *Proxy {
	p := &Proxy{listener: listener, dial: dial, changed: make(chan struct{}), links: make(map[*link]bool)}
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.work.Go(func() { p.accept(ctx) })
	return p
}

// Port is where the proxy listens.
func (p *Proxy) Port() int {
	addr, ok := p.listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0 // a TCP listener has a TCP address
	}
	return addr.Port
}

// Set changes the weather.
func (p *Proxy) Set(w Weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w == p.weather {
		return
	}
	p.weather = w
	close(p.changed)
	p.changed = make(chan struct{})
	for l := range p.links {
		l.mu.Lock()
		end := w.Cut || l.tainted
		l.mu.Unlock()
		if end {
			l.close()
		}
	}
}

// Accepted counts the connections that were let through so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Close ends all connections and waits for their goroutines.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.cancel()
	err := p.listener.Close()
	p.work.Wait()
	return err
}

// now is the weather, and a channel that is closed when it changes.
func (p *Proxy) now() (Weather, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.weather, p.changed
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		near, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // such as a connection that was reset while it waited
		}
		p.work.Go(func() { p.join(ctx, near) })
	}
}

// join connects a connection with the target, and passes data both ways until one of them ends.
func (p *Proxy) join(ctx context.Context, near net.Conn) {
	w, _ := p.now()
	if w.Cut {
		_ = near.Close() // refused
		return
	}
	far, err := p.dial(ctx)
	if err != nil {
		_ = near.Close() // the server is away
		return
	}
	l := &link{near: near, far: far}
	p.mu.Lock()
	if p.closed || p.weather.Cut {
		p.mu.Unlock()
		l.close()
		return
	}
	p.links[l] = true
	p.accepted++
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, Forth, l.near, l.far) })
	both.Go(func() { p.pass(l, Back, l.far, l.near) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// pass passes data one way until the connection ends.
func (p *Proxy) pass(l *link, way Way, from io.Reader, to io.Writer) {
	defer l.close()
	buf := make([]byte, 32<<10)
	for n := 1; ; n++ {
		size, err := from.Read(buf)
		if size > 0 && !p.deliver(l, way, to, buf[:size], n) {
			return
		}
		if err != nil {
			return
		}
	}
}

// deliver forwards one piece of data as the weather allows. False ends the connection.
func (p *Proxy) deliver(l *link, way Way, to io.Writer, data []byte, n int) bool {
	w, changed := p.now()
	if w.Hold[way] {
		l.mu.Lock()
		l.tainted = true
		l.mu.Unlock()
		// Set may have looked at the link just before: then its change is seen here.
		if again, _ := p.now(); !again.Hold[way] {
			return false
		}
		return true // read and forgotten
	}
	l.mu.Lock()
	tainted := l.tainted
	l.passed += int64(len(data))
	over := l.passed - w.CutAfter
	l.mu.Unlock()
	if tainted && !w.Hold[1-way] {
		return false
	}
	wait := w.Delay
	if w.StallEvery > 0 && n%w.StallEvery == 0 {
		wait += w.Stall
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		}
	}
	if w.CutAfter > 0 && over > 0 {
		_, _ = to.Write(data[:max(0, len(data)-int(over))]) // the connection ends here in any case
		return false
	}
	_, err := to.Write(data)
	return err == nil
}
