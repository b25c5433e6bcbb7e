package ui

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inspector"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
)

// Cmd is waymark ui.
type Cmd struct {
	Listen    string `default:"127.0.0.1:0" placeholder:"ADDR" environ:"WAYMARK_UI" help:"Address of the pages (WAYMARK_UI; default: a free port on 127.0.0.1). Others need a certificate and a token file."`
	ReadOnly  bool   `help:"Show no buttons, whatever the credentials allow."`
	NoContent bool   `help:"Hide messages, arguments, results and questions."`
	Cert      string `name:"https-cert" placeholder:"FILE" help:"TLS certificate."`
	Key       string `name:"https-key" placeholder:"FILE" help:"Key of the certificate."`
	TokenFile string `type:"path" placeholder:"FILE" help:"File with a token for viewers, 16 characters or more."`
	By        string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `The pages have your credentials: an observer's have no buttons. The printed address works for one browser; then another is printed.

Examples:
  waymark ui --listen 10.0.0.5:8443 --https-cert cert.pem --https-key key.pem --token-file token`
}

// readers are the inbox prefixes of the roles that may not act for a person.
var readers = map[string]bool{access.InboxPrefix(access.Observer): true, access.InboxPrefix(access.Executor): true}

// leastToken is the least length of a token from a file.
const leastToken = 16

// ready is the output line with the address of the pages.
type ready struct {
	URL   string `json:"url"`
	Fleet string `json:"fleet"`
	Acts  bool   `json:"acts"`
}

// Run serves the pages until ctx ends.
func (c Cmd) Run(ctx context.Context, a *base.App) error {
	by, err := base.Sender(c.By)
	if err != nil {
		return err
	}
	token, secured, err := c.secrets()
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx, nats.Name("waymark ui"), nats.MaxReconnects(-1), nats.ErrorHandler(nil)) // an error concerns one page
	if err != nil {
		return err
	}
	fleet, err := inspector.Connect(ctx, publisher.Config{Conn: cl.NATS, Fleet: cl.Fleet, RequestTimeout: cl.Wait, Encryption: cl.Keys()})
	if err != nil {
		return cl.ConnectFailed(ctx, err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return &failure.Error{
			Code: failure.Unavailable, What: fmt.Sprintf("cannot listen on --listen %s: %v", c.Listen, err),
			Hint: "choose another address, or leave --listen out for a free port", Own: true, Err: err,
		}
	}
	url := "http://" + listener.Addr().String()
	local := base.IsLoopback(listener.Addr().String())
	if secured != nil {
		url = "https://" + listener.Addr().String()
		listener = tls.NewListener(listener, secured)
	}
	acts := !c.ReadOnly && !readers[cl.NATS.Opts.InboxPrefix]
	config := inspector.Config{
		Fleet: fleet, By: by, NoContent: c.NoContent, Token: token, Acts: acts, Local: local, Secure: secured != nil, Now: a.Now, Prompt: a.Prompt,
	}
	var pages *inspector.Inspector
	at := url
	entrance := func() string { return at + "/enter?t=" + pages.NewToken() }
	if token == "" {
		config.Used = func() { _ = a.Say(a.Stderr, "for another browser: %s", entrance()) } // a closed terminal needs none
	}
	if pages, err = inspector.New(config); err != nil {
		return errors.Join(err, listener.Close())
	}
	if token == "" {
		url = entrance()
	}
	if a.JSON {
		err = output.Line(a.Stdout, ready{URL: url, Fleet: cl.Fleet, Acts: acts})
	} else {
		_, err = fmt.Fprintf(a.Stdout, "waymark ui: %s\n", url)
	}
	if err != nil {
		pages.Close()
		return errors.Join(err, listener.Close())
	}
	return serve(ctx, pages, listener)
}

// Timeouts of the server. An event stream has a timeout for each write, not for the whole.
const (
	headerWithin = 5 * time.Second
	readWithin   = 30 * time.Second
	idleFor      = 2 * time.Minute
	maxHeader    = 32 << 10
)

// serve serves the pages until ctx ends.
func serve(ctx context.Context, pages *inspector.Inspector, listener net.Listener) error {
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		pages.Close()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // a viewer does not read
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the pages: %w", err)
	}
	<-done // a person who is giving an answer still sees its result
	return nil
}

// secrets reads the token and the certificate. It refuses an address that requires them if they are missing.
func (c Cmd) secrets() (token string, secured *tls.Config, err error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", nil, failure.New(failure.Usage, "write host and port, such as 127.0.0.1:0", "--listen %q is not an address", c.Listen)
	}
	local := host == "localhost" || base.IsLoopback(net.JoinHostPort(host, "0"))
	if !local && (c.Cert == "" || c.Key == "" || c.TokenFile == "") {
		return "", nil, failure.New(failure.Usage, "set all three, or listen on 127.0.0.1 and reach it through ssh -L",
			"--listen %s is reachable from other machines: it needs --https-cert, --https-key and --token-file", c.Listen)
	}
	if (c.Cert == "") != (c.Key == "") {
		return "", nil, failure.New(failure.Usage, "set both", "--https-cert and --https-key need each other")
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return "", nil, failure.New(failure.Usage, "name a certificate and its key, as PEM", "the certificate cannot be used: %v", err)
		}
		secured = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if c.TokenFile != "" {
		text, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return "", nil, failure.New(failure.NotFound, "name a file with a token", "%v", err)
		}
		if token = strings.TrimSpace(string(text)); len(token) < leastToken {
			return "", nil, failure.New(failure.Usage, "create one with: openssl rand -hex 32", "the token of --token-file has fewer than %d characters", leastToken)
		}
	}
	return token, secured, nil
}
