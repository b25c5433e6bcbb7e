package base

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// WithServer runs an embedded server during the call of use.
func WithServer(ctx context.Context, config natsd.Config, use func(*nats.Conn) error, opts ...nats.Option) (err error) {
	start, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	server, err := natsd.Start(start, config, zerolog.Nop())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	closed := make(chan struct{})
	opts = append([]nats.Option{nats.Name("waymark cli"), nats.ClosedHandler(func(*nats.Conn) { close(closed) })}, opts...)
	nc, err := server.Connect(opts...)
	if err != nil {
		return err
	}
	defer func() {
		nc.Close()
		<-closed
	}()
	return use(nc)
}

// IsLoopback reports whether an address, ADDRESS:PORT, is reachable from this machine only.
func IsLoopback(addr string) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// NotPublic refuses a value that is not a public key. It prints no part of the value, because it may be a seed.
func NotPublic(where, given, hint string) error {
	if failure.SeedLike.MatchString(given) {
		return failure.New(failure.Usage, "create a new seed if others could see it; "+hint, "%s: that is a secret seed, not a public key; it was not printed", where)
	}
	return failure.New(failure.Usage, hint, "%s is not a public key; it was not printed", where)
}
