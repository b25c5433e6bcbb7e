package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Limits of the steps of a start and a stop.
const (
	StartTimeout = time.Minute
	CloseTimeout = 15 * time.Second
)

// Sender returns the sender's name for a request.
func Sender(by string) (string, error) {
	if by == "" {
		return Operator, nil
	}
	return by, schema.CheckName("--by", by)
}

// Get reads the state of a run.
func (c *Client) Get(ctx context.Context, run string) (*schema.GetReply, error) {
	reply := new(schema.GetReply)
	if err := c.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// Settings reads the settings of the client's fleet.
func (c *Client) Settings(ctx context.Context) (jetstream.JetStream, schema.FleetSettings, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	js, err := jetstream.New(c.NATS)
	if err != nil {
		return nil, schema.FleetSettings{}, fmt.Errorf("jetstream: %w", err)
	}
	settings, _, err := kvstore.NewFleets(js).Get(ctx, c.Fleet)
	if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrStreamMissing) {
		err = c.notThere(ctx, err)
	}
	return js, settings, err
}

// notThere is the error for a fleet that the server does not have, or whose settings are lost. The roles of clients cannot
// tell: they may not list streams.
func (c *Client) notThere(ctx context.Context, err error) error {
	if !slices.ContainsFunc(access.ClientRoles(), func(r access.Role) bool { return c.NATS.Opts.InboxPrefix == access.InboxPrefix(r) }) {
		if js, jsErr := jetstream.New(c.NATS); jsErr == nil {
			if lost := kvstore.Remains(ctx, js, c.Fleet); errors.Is(lost, kvstore.ErrSettingsMissing) {
				return fmt.Errorf("fleet %s: %w", c.Fleet, lost)
			}
		}
	}
	return &failure.Error{Code: failure.NotFound, Err: err, Hint: c.StartHint(ctx), What: fmt.Sprintf("fleet %s does not exist on %s", c.Fleet, c.Target.Address())}
}

// WithExecutor calls use with the SDK on the client's connection, for a command that publishes events under an
// executor's name.
func (c *Client) WithExecutor(ctx context.Context, executor string, use func(*publisher.Fleet) error) error {
	fleet, err := c.Executor(ctx, executor, func(config *publisher.Config) {
		if executor == Operator {
			config.Heartbeat = -1 // a command does not keep runs
		}
	})
	if err != nil {
		return err
	}
	err = use(fleet)
	return errors.Join(err, CloseFleet(ctx, fleet))
}

// CloseFleet closes an executor's connection within CloseTimeout, also after ctx.
func CloseFleet(ctx context.Context, fleet *publisher.Fleet) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
	defer cancel()
	return fleet.Close(limit)
}

// Program is the command line behind --, of a command that starts another program.
func Program(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// Executor connects as an executor, with a configuration that change may change. It waits for a local daemon that is
// starting. The caller closes the fleet.
func (c *Client) Executor(ctx context.Context, name string, change func(*publisher.Config)) (*publisher.Fleet, error) {
	config := publisher.Config{Conn: c.NATS, Fleet: c.Fleet, Executor: name, RequestTimeout: c.Wait, Encryption: c.keys}
	change(&config)
	limit, cancel := context.WithTimeout(ctx, StartTimeout)
	defer cancel()
	fleet, err := publisher.Connect(ctx, config)
	for told := false; errors.Is(err, publisher.ErrNotProvisioned) && limit.Err() == nil && c.starting(c.Daemons(limit, nextWithin)); told = true {
		if !told {
			_ = c.say("waiting for the daemon of that server, which is starting")
		}
		fleet, err = publisher.Connect(ctx, config)
	}
	if err != nil {
		return nil, c.ConnectFailed(ctx, err)
	}
	return fleet, nil
}

// Host is the name of this machine as part of an executor's or a daemon's name.
func Host() string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '-'
	}, host)
	return cmp.Or(strings.Trim(name[:min(len(name), 40)], "-"), "host")
}

// WithReader calls use with a reader on the client's connection.
func (c *Client) WithReader(ctx context.Context, use func(*publisher.Reader) error) error {
	reader, err := publisher.NewReader(ctx, publisher.Config{Conn: c.NATS, Fleet: c.Fleet, RequestTimeout: c.Wait, Encryption: c.keys})
	if err != nil {
		return c.ConnectFailed(ctx, err)
	}
	return use(reader)
}

// ConnectFailed explains why the fleet cannot be read.
func (c *Client) ConnectFailed(ctx context.Context, err error) error {
	if errors.Is(err, publisher.ErrNotProvisioned) {
		return c.notThere(ctx, err)
	}
	return err
}

// StateOf reads the full state of a run. For a run with missing events it returns the known state, and missing
// describes the gaps.
func StateOf(ctx context.Context, fleet *publisher.Reader, run string) (state *schema.State, missing, err error) {
	state, err = fleet.Get(ctx, run)
	if errors.Is(err, publisher.ErrIncomplete) && state != nil {
		missing, err = err, nil
	}
	return state, missing, err
}

// CheckAnswer validates an answer to an encrypted run, if the keys are available: the daemon cannot.
func (c *Client) CheckAnswer(ctx context.Context, h *schema.Head, in publisher.Input) error {
	if c.secrets == nil || len(h.KeyIDs) == 0 {
		return nil
	}
	return c.WithReader(ctx, func(fleet *publisher.Reader) error { return fleet.CheckAnswer(ctx, h.Run, in) })
}
