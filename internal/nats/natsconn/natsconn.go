package natsconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
)

// connectTimeout bounds the connection to one address.
const connectTimeout = 5 * time.Second

// Origin says which level named the server.
type Origin string

// Origins.
const (
	OriginFlag        Origin = "command line"
	OriginEnvironment Origin = "environment"
	OriginLocal       Origin = "state directory"
	OriginSelected    Origin = "selected nats context"
	OriginProgram     Origin = "program" // see [To]
)

// Config says where to search.
type Config struct {
	// Flags are the settings on the command line.
	Flags Settings
	// Getenv reads the environment. Required.
	Getenv func(string) string
	// StateDir is the state directory of the local server. Empty means that no local server is searched for.
	StateDir string
}

// Explicit returns the server in flags or environment; ok is false if they name none.
func (c Config) Explicit() (t Target, ok bool, err error) {
	env := FromEnvironment(c.Getenv)
	switch {
	case c.Flags.NamesServer():
		settings := c.Flags
		if c.Flags.Context == "" {
			settings = env.credentials(c.Flags)
			settings.URL, settings.Context = c.Flags.URL, ""
		}
		t, err = c.target(OriginFlag, settings)
		return t, true, err
	case env.NamesServer():
		t, err = c.target(OriginEnvironment, env.credentials(c.Flags))
		return t, true, err
	}
	return Target{}, false, nil
}

// Resolve returns the server to use: named, else local, else that of the selected context.
func (c Config) Resolve(ctx context.Context) (Target, error) {
	if t, ok, err := c.Explicit(); ok || err != nil {
		return t, err
	}
	missing := ErrNoServer
	if c.StateDir != "" {
		end, err := Discover(ctx, c.StateDir)
		switch {
		case err == nil:
			return c.local(end)
		case !errors.Is(err, ErrNotRunning):
			return Target{}, err
		}
		missing = fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	if name := selectedContext(c.Getenv); name != "" {
		settings := c.Flags
		settings.Context = name
		return c.target(OriginSelected, settings)
	}
	return Target{}, missing
}

func (c Config) local(end Endpoint) (Target, error) {
	if err := c.Flags.validate(OriginFlag); err != nil {
		return Target{}, err
	}
	over, err := c.Flags.options()
	if err != nil {
		return Target{}, err
	}
	return Target{Origin: OriginLocal, URL: end.URL, Context: end.Context, opts: over}, nil
}

func (c Config) target(origin Origin, s Settings) (Target, error) {
	if err := s.validate(origin); err != nil {
		return Target{}, err
	}
	opts, err := s.options()
	if err != nil {
		return Target{}, err
	}
	t := Target{Origin: origin, URL: s.URL, opts: opts}
	if s.Context != "" {
		if t.Context, err = contextPath(s.Context, c.Getenv); err != nil {
			return Target{}, err
		}
		inContext, err := contextURL(t.Context)
		if err != nil {
			return Target{}, err
		}
		if s.URL != "" && inContext != "" {
			return Target{}, fmt.Errorf("%w: %s and the url of context %s name two servers, and the context's credentials are for its own: leave one out", ErrSettings, s.named("--nats", origin), t.Context)
		}
		t.URL = cmp.Or(t.URL, inContext)
		if t.URL == "" {
			return Target{}, fmt.Errorf("%w %s names no url", ErrUnknownContext, t.Context)
		}
	}
	return t, checkAddresses(t.URL, s.named("--nats", origin))
}

// To is the servers at addresses, separated by commas, from a program's own setting. No other source is used.
func To(addresses, setting string) (Target, error) {
	return Target{Origin: OriginProgram, URL: addresses}, checkAddresses(addresses, setting)
}

func checkAddresses(addresses, setting string) error {
	for address := range strings.SplitSeq(addresses, ",") {
		if _, err := parseAddress(address); err != nil {
			return fmt.Errorf("%w: %s %q: %w", ErrSettings, setting, redact(address), err)
		}
	}
	return nil
}

// parseAddress accepts the same as nats.go: a URL, or host and port.
func parseAddress(address string) (*url.URL, error) {
	address = strings.TrimSpace(address)
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		// The error of url.Parse has the whole address, and so a password.
		return nil, errors.New("not an address such as nats://127.0.0.1:4222")
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
	default:
		return nil, fmt.Errorf("%s:// is not spoken: use nats://, tls://, ws:// or wss://", u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, errors.New("names no host: use one such as nats://127.0.0.1:4222")
	}
	return u, nil
}

// redact removes user and password from addresses.
func redact(addresses string) string {
	list := strings.Split(addresses, ",")
	for i, address := range list {
		address = strings.TrimSpace(address)
		scheme, rest, ok := strings.Cut(address, "://")
		if !ok {
			scheme, rest = "", address
		} else {
			scheme += "://"
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = rest[at+1:]
		}
		list[i] = scheme + rest
	}
	return strings.Join(list, ",")
}

// Target is a server to connect to.
type Target struct {
	// Origin says which level named it.
	Origin Origin
	// URL is its address; it may have credentials: show Address instead.
	URL string
	// Context is the path of the context file, or "".
	Context string
	opts    []nats.Option
}

// Address is the address without credentials.
func (t Target) Address() string { return redact(t.URL) }

// PingEvery and MaxPings find a connection whose other end is silently gone, as behind a partition, within fifteen
// seconds. With the client's defaults that takes up to six minutes, in which the daemon would receive and send
// nothing.
const (
	PingEvery = 5 * time.Second
	MaxPings  = 2
)

// Connect connects. ctx also bounds later attempts to connect again: it should end with the program's last
// use of the connection. Options are added to those of the target.
func (t Target) Connect(ctx context.Context, opts ...nats.Option) (*nats.Conn, error) {
	d := &dialer{ctx: ctx}
	// If the other side accepts a connection and then says nothing, wait no longer than ctx.
	stop := context.AfterFunc(ctx, d.close)
	defer stop()
	all := []nats.Option{
		nats.Timeout(connectTimeout),
		nats.ReconnectBufSize(-1), // nothing is sent long after its sender gave up
		nats.PingInterval(PingEvery),
		nats.MaxPingsOutstanding(MaxPings),
		nats.SetCustomDialer(d),
	}
	all = append(append(append(all, t.opts...), opts...), func(o *nats.Options) error {
		d.timeout = o.Timeout
		if o.Dialer != nil { // the client ignores it next to a custom one
			d.net = *o.Dialer
		}
		return nil
	})
	var conn *nats.Conn
	var err error
	if t.Context != "" {
		servers := func(o *nats.Options) error { // the address wins over the context's
			o.Servers = nil
			for address := range strings.SplitSeq(t.URL, ",") {
				o.Servers = append(o.Servers, strings.TrimSpace(address))
			}
			return nil
		}
		conn, _, err = natscontext.Connect(t.Context, append(all, servers)...)
	} else {
		conn, err = nats.Connect(t.URL, all...)
	}
	switch {
	case ctx.Err() != nil:
		if conn != nil {
			conn.Close()
		}
		return nil, context.Cause(ctx)
	case err == nil:
		return conn, nil
	case Unauthorized(err), errors.Is(err, nats.ErrPermissionViolation):
		return nil, fmt.Errorf("%w: %s (named by %s): %w", ErrRefused, t.Address(), t.Origin, err)
	case crowded(err):
		return nil, fmt.Errorf("%w: %s (named by %s): %w", ErrCrowded, t.Address(), t.Origin, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w of %s: %w", ErrSettings, t.Address(), err)
	}
	return nil, fmt.Errorf("%w at %s (named by %s): %w", ErrUnreachable, t.Address(), t.Origin, err)
}

// Unauthorized reports whether the server refused the credentials of a connection.
func Unauthorized(err error) bool {
	for _, sentinel := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

// crowded reports whether the server refuses another connection: while a client connects, nats.go has only its words.
func crowded(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, nats.MAX_CONNECTIONS_ERR) || strings.Contains(text, nats.MAX_ACCOUNT_CONNECTIONS_ERR)
}

// dialer lets a context end the attempt to connect. It belongs to one connection, which has one link at a time: the
// client leaves a link that was accepted and then not answered, as by a proxy without its servers, to the garbage
// collector; dialer closes it.
type dialer struct {
	ctx     context.Context //nolint:containedctx // nats.go's dialer interface has no context
	net     net.Dialer
	timeout time.Duration
	mu      sync.Mutex
	last    net.Conn
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.close()
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	conn, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.last = conn
	d.mu.Unlock()
	if d.ctx.Err() != nil { // ctx ended while this was dialing
		d.close()
		return nil, context.Cause(d.ctx)
	}
	return conn, nil
}

// close ends the latest link, which may be closed already.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil {
		_ = d.last.Close()
		d.last = nil
	}
}
