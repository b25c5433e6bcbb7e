package ui

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/inspector"
)

// Timeouts of the server. An event stream has a timeout for each write, not for the whole.
const (
	headerWithin = 5 * time.Second
	readWithin   = 30 * time.Second
	idleFor      = 2 * time.Minute
	maxHeader    = 32 << 10
)

// CheckLocal refuses an address that is reachable from other machines.
func CheckLocal(flag, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q is not an address: write host and port, such as 127.0.0.1:0", flag, address)
	}
	if host != "localhost" && !base.IsLoopback(net.JoinHostPort(host, "0")) {
		return fmt.Errorf("%s %s is not of this machine alone: use waymark ui --listen with a certificate and a token file", flag, address)
	}
	return nil
}

// Address is an open listener. Close it, or serve pages on it.
type Address struct {
	net.Listener
	local   bool
	secured *tls.Config
}

// Listen opens an address; secured is nil without TLS. Errors name flag, the flag with the address.
func Listen(ctx context.Context, flag, address string, secured *tls.Config) (*Address, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &failure.Error{
			Code: failure.Unavailable, What: fmt.Sprintf("cannot listen on %s %s: %v", flag, address, err),
			Hint: "choose another address, or leave " + flag + " out for a free port", Own: true, Err: err,
		}
	}
	return &Address{Listener: listener, local: base.IsLoopback(listener.Addr().String()), secured: secured}, nil
}

// url is the URL of the address, with the chosen port.
func (a *Address) url() string {
	if a.secured != nil {
		return "https://" + a.Addr().String()
	}
	return "http://" + a.Addr().String()
}

// Pages are the pages of a fleet on an address. Close them, or serve them.
type Pages struct {
	address *Address
	pages   *inspector.Inspector
	// Entrance is the URL to print. It has a single-use token, unless there is a permanent one.
	Entrance string
	// token is the permanent one; empty for none.
	token string
}

// New makes the pages of config on an address. Once a single-use token was used, it prints a URL with another one.
func New(a *base.App, address *Address, config inspector.Config, say func(another string)) (*Pages, error) {
	config.Local, config.Secure, config.Now, config.Prompt = address.local, address.secured != nil, a.Now, a.Prompt
	p := &Pages{address: address, token: config.Token, Entrance: address.url()}
	if config.Token == "" {
		config.Used = func() { say(p.entrance()) }
	}
	var err error
	if p.pages, err = inspector.New(config); err != nil {
		return nil, errors.Join(err, address.Close())
	}
	if config.Token == "" {
		p.Entrance = p.entrance()
	}
	return p, nil
}

// Say returns a function that prints the URL for another browser on standard error.
func Say(a *base.App) func(another string) {
	return func(another string) { _ = a.Say(a.Stderr, "for another browser: %s", another) } // a closed terminal needs none
}

// entrance is a URL that lets one browser in.
func (p *Pages) entrance() string { return p.address.url() + "/enter?t=" + p.pages.NewToken() }

// Close releases pages that were never served.
func (p *Pages) Close() error {
	p.pages.Close()
	return p.address.Close()
}

// Browse opens a browser, if the user is at this machine's terminal. remove removes the file that it needed.
func (p *Pages) Browse(ctx context.Context, a *base.App) (remove func(), err error) {
	if !p.address.local || p.token != "" || !output.IsTerminal(output.Below(a.Stdout)) {
		return func() {}, nil
	}
	remove, err = open(ctx, p.entrance())
	if err != nil {
		err = a.Say(a.Stderr, "no browser was opened: %v", err)
	}
	return remove, err
}

// Serve serves the pages until ctx ends.
func (p *Pages) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: p.pages, ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		p.pages.Close()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // a viewer does not read
		}
	})
	defer stop()
	listener := p.address.Listener
	if p.address.secured != nil {
		listener = tls.NewListener(listener, p.address.secured)
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the pages: %w", err)
	}
	<-done // a person who is giving an answer still sees its result
	return nil
}
