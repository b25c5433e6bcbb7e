package base

import (
	"cmp"
	"context"
	stdjson "encoding/json" // the types of NATS micro use it
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Operator is the executor name under which commands publish and send requests.
const Operator = "waymark-cli"

// Client is a connection for one command.
type Client struct {
	NATS   *nats.Conn
	Target natsconn.Target
	Fleet  string
	// fleetFrom is the flag or variable that named the fleet; empty for the default.
	fleetFrom string
	Prompt    prompt.Prompt
	// Wait bounds one answer.
	Wait   time.Duration
	closed chan struct{}
	// keys of encrypted content; nil for none. secrets are the same keys.
	keys    *publisher.Encryption
	secrets *encryption.Keys
	// say writes a line for people, apart from the output.
	say func(format string, args ...any) error
}

// ConnectAs is [App.Connect] for requests that name their sender: by, or [Operator] if that is empty.
func (a *App) ConnectAs(ctx context.Context, by string, opts ...nats.Option) (cl *Client, sender string, err error) {
	if sender, err = Sender(by); err != nil {
		return nil, "", err
	}
	cl, err = a.Connect(ctx, opts...)
	return cl, sender, err
}

// Connect finds the server and connects. [App.Close] closes the client.
func (a *App) Connect(ctx context.Context, opts ...nats.Option) (*Client, error) {
	if err := schema.CheckName("fleet", a.Fleet); err != nil {
		return nil, err
	}
	if a.Timeout <= 0 {
		return nil, failure.New(failure.Usage, "use a time such as 30s", "--timeout %s is not above 0", a.Timeout)
	}
	keys, err := a.readKeys()
	if err != nil {
		return nil, err
	}
	config := natsconn.Config{Flags: a.Conn, Getenv: a.Getenv}
	stateDir, stateErr := a.StateDirectory()
	config.StateDir = stateDir
	target, err := config.Resolve(ctx)
	if err != nil {
		if stateErr != nil && errors.Is(err, natsconn.ErrNoServer) {
			return nil, stateErr
		}
		return nil, err
	}
	c := &Client{Target: target, Fleet: a.Fleet, fleetFrom: a.fleetFrom(), Prompt: a.Prompt, Wait: a.Timeout, closed: make(chan struct{}), keys: keys, secrets: a.Secrets}
	c.say = func(format string, args ...any) error { return a.Say(a.Stderr, format, args...) }
	opts = append([]nats.Option{
		nats.Name("waymark cli"),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if err := nc.LastError(); natsconn.Unauthorized(err) { // a key that was revoked while the command used it
				a.Refuse(fmt.Errorf("%w: %s: %w", natsconn.ErrRefused, target.Address(), err))
			}
			close(c.closed)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if e, ok := access.RefusalIn(err); ok {
				a.Refuse(e) // no other code receives this error
			}
		}),
	}, opts...)
	if c.NATS, err = target.Connect(ctx, opts...); err != nil {
		return nil, err
	}
	a.clients = append(a.clients, c)
	return c, nil
}

// Close ends the connections of the command and waits until they are closed.
func (a *App) Close() {
	for _, c := range a.clients {
		c.NATS.Close()
		<-c.closed
	}
}

// fleetFrom is the flag or variable that named the fleet; empty for the default.
func (a *App) fleetFrom() string {
	switch variable := a.Getenv("WAYMARK_FLEET"); {
	case variable != "" && variable == a.Fleet:
		return "WAYMARK_FLEET"
	case variable != "" || a.Fleet != schema.DefaultFleet:
		return "--fleet"
	}
	return ""
}

// Keys returns the keys of encrypted content; nil for none.
func (c *Client) Keys() *publisher.Encryption { return c.keys }

// HasKeys reports whether there are keys of encrypted content.
func (c *Client) HasKeys() bool { return c.secrets != nil }

// Decrypt decrypts the content of an event as far as there are keys.
func (c *Client) Decrypt(ctx context.Context, e *schema.Event, data schema.Data) error {
	if c.secrets == nil {
		return nil
	}
	return c.secrets.Open(ctx, e, data) //nolint:wrapcheck // it names the key
}

// Ask sends a request to the daemon and decodes the first reply.
func (c *Client) Ask(ctx context.Context, verb, run string, request, reply any) error {
	if run != "" {
		if err := schema.CheckName("run id", run); err != nil {
			return err
		}
	}
	request, readable, err := c.sealed(ctx, run, request)
	if err != nil {
		return err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding the request %s: %w", verb, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	answer, err := c.NATS.RequestWithContext(ctx, schema.ServiceSubject(verb, c.Fleet, run), body)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrNoResponders):
		return &failure.Error{
			Code: failure.Unavailable,
			What: fmt.Sprintf("no daemon answers for fleet %s on %s", c.Fleet, c.Target.Address()),
			Hint: c.StartHint(ctx),
			Err:  err,
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure.Error{
			Code: failure.Unavailable,
			What: fmt.Sprintf("the daemon of fleet %s did not answer %s within %s", c.Fleet, verb, c.Wait),
			Hint: "try again, or allow more time with --timeout; if it happens again, run: waymark doctor",
			Own:  true,
			Err:  err,
		}
	default:
		return fmt.Errorf("asking the daemon to %s: %w", verb, err)
	}
	if err := fleetclient.ErrorOf(answer); err != nil {
		return err
	}
	if err := json.Unmarshal(answer.Data, reply); err != nil {
		return fmt.Errorf("answer to %s: %w: %w", verb, publisher.ErrBadAnswer, err)
	}
	if readable != "" {
		return c.say("%s", readable)
	}
	return nil
}

// StartHint is the next step if the fleet has no daemon. Only the daemon's role can start one.
func (c *Client) StartHint(ctx context.Context) string {
	for _, role := range access.ClientRoles() {
		if c.NATS.Opts.InboxPrefix == access.InboxPrefix(role) {
			return c.startHintOf(role)
		}
	}
	start := "start its daemon there: " + c.Prompt.Command(c.serveWords())
	daemons, served := c.Daemons(ctx, nextWithin), []string(nil)
	for _, d := range daemons {
		served = append(served, d.Fleet)
	}
	served = slices.Compact(served)
	if c.starting(daemons) {
		return "the daemon of that server is starting: try again in a few seconds"
	}
	if len(served) == 0 || slices.Contains(served, c.Fleet) {
		return start
	}
	named := "fleet " + c.Fleet + " is the default"
	if c.fleetFrom != "" {
		named = "fleet " + c.Fleet + " comes from " + c.fleetFrom
	}
	return fmt.Sprintf("%s, but the daemons there serve %s: name one of them with --fleet, or %s", named, strings.Join(served, ", "), start)
}

// starting reports whether the local server, which answers before its own daemon, still has none that answered.
func (c *Client) starting(answered []Daemon) bool {
	return c.Target.Origin == natsconn.OriginLocal && len(answered) == 0
}

// startHintOf names the daemon's credentials file if it is in the directory of the one in use, otherwise its usual name.
func (c *Client) startHintOf(role access.Role) string {
	file, where := c.Fleet+"-daemon.json", ""
	daemons := filepath.Join(filepath.Dir(c.Target.Context), file)
	if _, err := os.Stat(daemons); c.Target.Context != "" && err == nil {
		file = daemons
	} else {
		file, where = "FILE", "; FILE is the "+file+" that waymark fleet add wrote"
	}
	return fmt.Sprintf("start the fleet's daemon with the daemon's credentials (those in use have the role %s): waymark serve --fleet %s%s%s",
		role, c.Fleet, schema.Flag("context", file), where)
}

const (
	// nextWithin bounds the wait for the next daemon after one that answered.
	nextWithin = 250 * time.Millisecond
	// daemonsMost bounds the daemons that are listed.
	daemonsMost = 256
)

// Daemon is one of those that a connection reaches.
type Daemon struct {
	Fleet   string    `json:"fleet"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
}

// Daemons asks the daemons of all fleets that the connection reaches, and waits that long for the first one. No answer
// is not an error: there is none, or the credentials may not ask.
func (c *Client) Daemons(ctx context.Context, first time.Duration) (list []Daemon) {
	told, watch := c.NATS.ErrorHandler(), access.NewWatch() // the handler before ends the command
	c.NATS.SetErrorHandler(watch.Handler(nil))
	defer c.NATS.SetErrorHandler(told)
	subject, inbox := micro.APIPrefix+"."+micro.StatsVerb.String()+"."+service.Name, c.NATS.NewInbox()
	ctx, stop := watch.Context(ctx, subject)
	defer stop()
	sub, err := c.NATS.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closed next
	if c.NATS.PublishRequest(subject, inbox, nil) != nil {
		return nil
	}
	for wait := first; len(list) < daemonsMost; {
		waiting, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(waiting)
		cancel()
		if err != nil {
			break
		}
		var s micro.Stats
		if stdjson.Unmarshal(m.Data, &s) == nil && schema.ValidName(s.Metadata["fleet"]) && schema.ValidName(s.Metadata["replica"]) {
			wait = nextWithin
			list = append(list, Daemon{s.Metadata["fleet"], s.Metadata["replica"], s.Version, s.Started})
		}
	}
	slices.SortFunc(list, func(a, b Daemon) int {
		return cmp.Or(strings.Compare(a.Fleet, b.Fleet), strings.Compare(a.Name, b.Name))
	})
	return list
}

// serveWords are the words of the command that starts a daemon on the client's server.
func (c *Client) serveWords() string {
	switch c.Target.Origin {
	case natsconn.OriginSelected:
		return "serve" + schema.Flag("context", c.Target.Context) // serve ignores the selected context
	case natsconn.OriginLocal:
		// Another daemon runs that server: it uses the state directory and the default HTTP address.
		return "serve" + schema.Flag("context", c.Target.Context) + " --http 127.0.0.1:0"
	default:
		return "serve"
	}
}
