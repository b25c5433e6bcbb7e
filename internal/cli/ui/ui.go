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

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/inspector"
	"github.com/waymarkio/waymark/publisher"
)

// Cmd is waymark ui.
type Cmd struct {
	Listen    string `default:"127.0.0.1:0" placeholder:"ADDR" environ:"WAYMARK_UI" help:"Address of the pages (WAYMARK_UI; default: a free port on 127.0.0.1). An address other than loopback needs --https-cert, --https-key and --token-file."`
	NoOpen    bool   `help:"Do not open a browser."`
	ReadOnly  bool   `help:"Show no buttons, whatever the credentials allow."`
	NoContent bool   `help:"Hide messages, arguments, results and questions."`
	Cert      string `name:"https-cert" placeholder:"FILE" help:"TLS certificate."`
	Key       string `name:"https-key" placeholder:"FILE" help:"Key of the certificate."`
	TokenFile string `type:"path" placeholder:"FILE" help:"File with a token for viewers, valid for any number of uses; 16 characters or more."`
	By        string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim with what you decide (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `The pages show the same data as the commands: the fleet, the inbox, what each run did, and what would happen if its executor died now. They ` +
		`are served by this process with your credentials: an observer's show no buttons, and the server refuses actions without permission. The fleet's daemon must run.

The printed address works for one browser only; after its use another address is printed. The browser that is opened gets its own address from ` +
		`a file that only you can read. The pages are reachable from this machine only, unless TLS and a token file are given. Ctrl-C ends it.

Examples:
  waymark ui
  waymark ui --read-only --no-content --no-open
  waymark ui --listen 10.0.0.5:8443 --https-cert cert.pem --https-key key.pem --token-file token`
}

// readers are the roles, by the prefix of their inboxes, that may decide nothing for people.
var readers = map[string]bool{access.InboxPrefix(access.Observer): true, access.InboxPrefix(access.Executor): true}

// leastToken is the shortest token of a file.
const leastToken = 16

// Timeouts of the server. An event stream has none: each of its writes has.
const (
	headerWithin = 5 * time.Second
	readWithin   = 30 * time.Second
	idleFor      = 2 * time.Minute
	maxHeader    = 32 << 10
)

// ready is the line that says where the pages are.
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
	cl, err := a.Connect(ctx, nats.Name("waymark ui"), nats.MaxReconnects(-1), nats.ErrorHandler(nil)) // a refusal concerns one page
	if err != nil {
		return err
	}
	defer cl.Close()
	fleet, err := inspector.Connect(ctx, publisher.ReaderConfig{Conn: cl.NATS, Fleet: cl.Fleet, RequestTimeout: cl.Wait, Encryption: cl.Keys()})
	if err != nil {
		return cl.ConnectFailed(ctx, err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return &failure.Error{
			Code: failure.Unavailable, What: fmt.Sprintf("cannot listen on --listen %s: %v", c.Listen, err),
			Hint: "choose another address, or omit --listen for a free port", Own: true, Err: err,
		}
	}
	address, local := listener.Addr().String(), base.IsLoopback(listener.Addr().String())
	out := a.Stdout
	config := inspector.Config{
		Fleet: fleet, Prompt: a.Prompt, By: by, NoContent: c.NoContent, Local: local, Secure: secured != nil, Token: token, Now: a.Now,
		Acts: !c.ReadOnly && !readers[cl.NATS.Opts.InboxPrefix],
	}
	url := "http://" + address
	if secured != nil {
		url = "https://" + address
		listener = tls.NewListener(listener, secured)
	}
	var pages *inspector.Inspector
	entrance := func() string { return url + "/enter?t=" + pages.NewToken() }
	if token == "" {
		config.Used = func() { _ = a.Say(a.Stderr, "for another browser: %s", entrance()) } // a terminal that is gone needs none
	}
	if pages, err = inspector.New(config); err != nil {
		return errors.Join(err, listener.Close())
	}
	defer pages.Close()
	line := ready{URL: url, Fleet: cl.Fleet, Acts: config.Acts}
	if token == "" {
		line.URL = entrance()
	}
	if a.JSON {
		err = output.Line(out, line)
	} else {
		_, err = fmt.Fprintf(out, "waymark ui: %s\n", line.URL)
	}
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if !c.NoOpen && local && token == "" && output.IsTerminal(output.Below(a.Stdout)) {
		remove, err := open(ctx, entrance())
		defer remove()
		if err != nil {
			if err := a.Say(a.Stderr, "no browser was opened: %v", err); err != nil {
				return err
			}
		}
	}
	return serve(ctx, listener, pages)
}

// secrets reads the token and the certificate, and refuses an address that needs them and has none.
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

// serve answers until ctx ends.
func serve(ctx context.Context, listener net.Listener, pages *inspector.Inspector) error {
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
			_ = server.Close() // a viewer that does not read is left
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the pages: %w", err)
	}
	<-done // an answer that is under way is told to who gave it
	return nil
}
