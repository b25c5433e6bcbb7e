package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/internal/denied"
	"github.com/waymarkio/waymark/internal/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// operator is the executor's name under which commands publish and ask.
const operator = "waymark-cli"

// client is a connection for one command.
type client struct {
	nc     *nats.Conn
	target natsconn.Target
	fleet  string
	prompt prompt
	// wait bounds one answer.
	wait   time.Duration
	closed chan struct{}
}

// connect finds the server and connects. Close the client.
func (a *app) connect(ctx context.Context, opts ...nats.Option) (*client, error) {
	if err := schema.CheckName("fleet", a.cli.Fleet); err != nil {
		return nil, err
	}
	if a.cli.Timeout <= 0 {
		return nil, fail(exitUsage, "use a time such as 30s", "--timeout %s is not above 0", a.cli.Timeout)
	}
	config := natsconn.Config{Flags: a.cli.Conn.settings(), Getenv: a.getenv}
	stateDir, stateErr := a.stateDir()
	config.StateDir = stateDir
	target, err := config.Resolve(ctx)
	if err != nil {
		if stateErr != nil && errors.Is(err, natsconn.ErrNoServer) {
			return nil, stateErr
		}
		return nil, err
	}
	c := &client{target: target, fleet: a.cli.Fleet, prompt: a.prompt, wait: a.cli.Timeout, closed: make(chan struct{})}
	opts = append([]nats.Option{
		nats.Name("waymark cli"),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if e, ok := denied.From(err); ok {
				a.refuse(e) // nobody else is told of it
			}
		}),
	}, opts...)
	if c.nc, err = target.Connect(ctx, opts...); err != nil {
		return nil, err
	}
	return c, nil
}

// close ends the connection and waits until it has.
func (c *client) close() {
	c.nc.Close()
	<-c.closed
}

// ask sends a request to the daemon and decodes the first reply.
func (c *client) ask(ctx context.Context, verb, run string, request, reply any) error {
	if run != "" {
		if err := schema.CheckName("run id", run); err != nil {
			return err
		}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encoding the request %s: %w", verb, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	answer, err := c.nc.RequestWithContext(ctx, schema.ServiceSubject(verb, c.fleet, run), body)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrNoResponders):
		return &failure{
			code: exitUnavailable,
			what: fmt.Sprintf("no daemon answers for fleet %s on %s", c.fleet, c.target.Address()),
			hint: c.startHint(),
			err:  err,
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{
			code: exitUnavailable,
			what: fmt.Sprintf("the daemon of fleet %s did not answer %s within %s", c.fleet, verb, c.wait),
			hint: "try again, or allow more time with --timeout; if it stays so, see what is wrong: waymark doctor",
			own:  true,
			err:  err,
		}
	default:
		return fmt.Errorf("asking the daemon to %s: %w", verb, err)
	}
	if code := answer.Header.Get(schema.HeaderErrorCode); code != "" {
		return c.aboutRun(run, serviceError(answer))
	}
	if err := json.Unmarshal(answer.Data, reply); err != nil {
		return fmt.Errorf("answer to %s: %w: %w", verb, publisher.ErrBadAnswer, err)
	}
	return nil
}

// startHint is what to do when no daemon answers. A role other than the daemon's cannot start one.
func (c *client) startHint() string {
	for _, role := range access.ClientRoles() {
		if c.nc.Opts.InboxPrefix == access.InboxPrefix(role) {
			return fmt.Sprintf("have the fleet's daemon started, with the daemon's credentials (those in use are of role %s): waymark serve --fleet %s --context %s-daemon.json",
				role, c.fleet, c.fleet)
		}
	}
	return "start one there: " + c.prompt.command(c.serveWords())
}

// serveWords are those of the command that starts a daemon on the server of this client.
func (c *client) serveWords() string {
	if c.target.Origin == natsconn.OriginSelected {
		return "serve --context " + schema.ShellWord(c.target.Context) // serve does not look for a selected one
	}
	return "serve"
}

// serviceError is the error that a reply carries.
func serviceError(answer *nats.Msg) error {
	e := new(schema.ServiceError)
	if err := json.Unmarshal(answer.Data, e); err != nil || e.Code == "" {
		return fmt.Errorf("the daemon failed: %s (%s)", answer.Header.Get(schema.HeaderError), answer.Header.Get(schema.HeaderErrorCode))
	}
	return e
}

// aboutRun gives a refusal the next step at a prompt, with the run in it, so that it can be pasted.
func (c *client) aboutRun(run string, err error) error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || run == "" {
		return err
	}
	f := explainService(err)
	switch service.Code {
	case schema.CodeRunEnded:
		f.hint = "see how it ended: " + c.prompt.command("runs get "+run) + "; to go on with it all the same: " +
			c.prompt.command("recover "+run+" --executor NAME --reason reopen")
	case schema.CodeQuarantined:
		f.hint = "look at what it stops at: " + c.prompt.command("runs get "+run+" --view events") + "; then let the fleet try again: " +
			c.prompt.command("release "+run)
	case schema.CodeNotInDoubt:
		f.hint = "see the run's calls: " + c.prompt.command("runs get "+run+" --view state")
	default:
		return err
	}
	f.err, f.own = err, false
	return f
}
