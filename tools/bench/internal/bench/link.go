package bench

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// link is a connection whose close can be awaited.
type link struct {
	*nats.Conn
	closed chan struct{}
}

// linkWith opens a connection by the given function, with the options that executors and daemons use.
func linkWith(name string, connect func(...nats.Option) (*nats.Conn, error), opts ...nats.Option) (*link, error) {
	l := &link{closed: make(chan struct{})}
	var err error
	if l.Conn, err = connect(append(opts,
		nats.Name("waymark bench "+name), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }))...); err != nil {
		return nil, fmt.Errorf("connection of the %s: %w", name, err)
	}
	return l, nil
}

// dial connects over TCP.
func dial(url, name string, opts ...nats.Option) (*link, error) {
	return linkWith(name, func(all ...nats.Option) (*nats.Conn, error) { return nats.Connect(url, all...) }, opts...)
}

// close ends the connection and waits for its goroutines.
func (l *link) close() {
	l.Close()
	<-l.closed
}
