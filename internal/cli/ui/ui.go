package ui

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

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
	Listen    string `default:"127.0.0.1:0" placeholder:"ADDR" environ:"WAYMARK_UI" help:"Address of the pages (WAYMARK_UI; default: a free port on 127.0.0.1). Others than loopback need --https-cert, --https-key and --token-file."`
	NoOpen    bool   `help:"Do not open a browser."`
	ReadOnly  bool   `help:"Show no buttons, whatever the credentials allow."`
	NoContent bool   `help:"Hide messages, arguments, results and questions."`
	Cert      string `name:"https-cert" placeholder:"FILE" help:"TLS certificate."`
	Key       string `name:"https-key" placeholder:"FILE" help:"Key of the certificate."`
	TokenFile string `type:"path" placeholder:"FILE" help:"File with a token for viewers, 16 characters or more."`
	By        string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `The pages show what the commands show, with your credentials: an observer's have no buttons. The fleet's daemon must run.

The printed address works for one browser; after its use another is printed. The pages are reachable from this machine only, ` +
		`unless TLS and a token file are given.

Examples:
  waymark ui --read-only --no-content --no-open
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
	address, err := Listen(ctx, "--listen", c.Listen, secured)
	if err != nil {
		return err
	}
	acts := !c.ReadOnly && !readers[cl.NATS.Opts.InboxPrefix]
	pages, err := New(a, address, inspector.Config{
		Fleet: fleet, By: by, NoContent: c.NoContent, Token: token, Acts: acts,
	}, Say(a))
	if err != nil {
		return err
	}
	if a.JSON {
		err = output.Line(a.Stdout, ready{URL: pages.Entrance, Fleet: cl.Fleet, Acts: acts})
	} else {
		_, err = fmt.Fprintf(a.Stdout, "waymark ui: %s\n", pages.Entrance)
	}
	if err == nil && !c.NoOpen {
		var remove func()
		remove, err = pages.Browse(ctx, a)
		defer remove()
	}
	if err != nil {
		return errors.Join(err, pages.Close())
	}
	return pages.Serve(ctx)
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
