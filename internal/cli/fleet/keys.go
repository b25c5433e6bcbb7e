package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

type keysCmd struct {
	Ls     keysLsCmd     `cmd:"" default:"1" help:"List the keys. This is the default."`
	Add    keysAddCmd    `cmd:"" help:"Add a daemon's signing key. It takes effect after one minute."`
	Retire keysRetireCmd `cmd:"" help:"Retire a key, effective in one minute. Earlier signatures stay valid."`
}

type keysLsCmd struct{}

// Help is the text below the flags.
func (keysLsCmd) Help() string {
	return `In a fleet with keys, control events count only if a daemon of the fleet signed them. A new fleet has the key of the connection ` +
		`that creates it.`
}

type keysAddCmd struct {
	Key string `arg:"" optional:"" help:"Public key (U…; default: that of this connection)."`
}

// Help is the text below the flags.
func (keysAddCmd) Help() string {
	return `Connect with the daemon's context; no other key may write the settings.

Example:
  waymark --context fleets/payments-daemon.json --fleet payments fleet keys add`
}

type keysRetireCmd struct {
	Key string `arg:"" help:"Public key (U…) that waymark fleet keys lists."`
}

// Help is the text below the flags.
func (keysRetireCmd) Help() string {
	return `Start every daemon with another key first: with a retired key it cannot sign. The last key cannot be retired.`
}

// keysView is the JSON output of keys.
type keysView struct {
	Fleet string            `json:"fleet"`
	Keys  []schema.FleetKey `json:"keys"`
}

// Run lists the keys.
func (c keysLsCmd) Run(ctx context.Context, a *base.App) error {
	return withFleets(ctx, a, func(context.Context, *base.Client, *kvstore.Fleets) (schema.FleetSettings, error) {
		return schema.FleetSettings{}, nil
	})
}

// Run adds a key.
func (c keysAddCmd) Run(ctx context.Context, a *base.App) error {
	if c.Key != "" && !nkeys.IsValidPublicUserKey(c.Key) {
		return base.NotPublic("the key to add", c.Key, hintPublicUser)
	}
	return withFleets(ctx, a, func(ctx context.Context, cl *base.Client, fleets *kvstore.Fleets) (schema.FleetSettings, error) {
		key := c.Key
		if key == "" {
			signer, err := keyring.SignerOf(cl.NATS)
			if err != nil {
				return schema.FleetSettings{}, err
			}
			if signer == nil {
				return schema.FleetSettings{}, failure.New(failure.Usage, "name the daemon's public key, or connect with its --nkey, --creds or context", "this connection has no key")
			}
			key = signer.Name
		}
		settings, err := fleets.AddKey(ctx, cl.Fleet, key)
		return settings, aboutKeys(err, "create another key (nk -gen user), and add its public key: waymark fleet keys add PUBLICKEY")
	})
}

// Run retires a key.
func (c keysRetireCmd) Run(ctx context.Context, a *base.App) error {
	if !nkeys.IsValidPublicUserKey(c.Key) {
		return base.NotPublic("the key to retire", c.Key, hintPublicUser)
	}
	return withFleets(ctx, a, func(ctx context.Context, cl *base.Client, fleets *kvstore.Fleets) (schema.FleetSettings, error) {
		settings, err := fleets.RetireKey(ctx, cl.Fleet, c.Key)
		return settings, aboutKeys(err, "list the fleet's keys: waymark fleet keys; add another daemon's key before you retire the last one: waymark fleet keys add PUBLICKEY")
	})
}

// hintPublicUser says how to show a daemon's public key.
const hintPublicUser = "name the public key of a daemon (U…), shown by: nk -inkey SEEDFILE -pubout"

// aboutKeys adds the next step to a refused change of the keys.
func aboutKeys(err error, hint string) error {
	if !errors.Is(err, kvstore.ErrSettings) {
		return err
	}
	return &failure.Error{Code: failure.Usage, What: strings.TrimPrefix(err.Error(), kvstore.ErrSettings.Error()+": "), Err: err, Hint: hint, Own: true}
}

// keysClient connects to the server with the keys. If the local server is stopped, it runs one in its state directory
// meanwhile: a daemon without a key of the fleet does not start, so no other server could add one.
func keysClient(ctx context.Context, a *base.App, use func(*base.Client) error) error {
	cl, err := a.Connect(ctx)
	if err == nil {
		return use(cl)
	}
	dir, dirErr := a.StateDirectory()
	if !errors.Is(err, natsconn.ErrNotRunning) || dirErr != nil || !natsconn.StateDirUsed(dir) {
		return err
	}
	keys, key, err := a.LocalKey()
	if err != nil {
		return err
	}
	var opts []nats.Option
	if key != nil {
		opts = append(opts, key)
	}
	return base.WithServer(ctx, natsd.Config{StateDir: dir, Keys: keys}, func(nc *nats.Conn) error {
		return use(&base.Client{NATS: nc, Target: natsconn.Target{Origin: natsconn.OriginLocal, URL: nc.ConnectedUrl()}, Fleet: a.Fleet, Prompt: a.Prompt, Wait: a.Timeout})
	}, opts...)
}

// withFleets applies change to the fleet's keys, notifies its daemons, and shows the keys.
func withFleets(ctx context.Context, a *base.App, change func(context.Context, *base.Client, *kvstore.Fleets) (schema.FleetSettings, error)) error {
	return keysClient(ctx, a, func(cl *base.Client) error { return changeKeys(ctx, a, cl, change) })
}

func changeKeys(ctx context.Context, a *base.App, cl *base.Client,
	change func(context.Context, *base.Client, *kvstore.Fleets) (schema.FleetSettings, error),
) error {
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cl.Wait)
	defer cancel()
	changed, err := change(ctx, cl, kvstore.NewFleets(js))
	late := err // the change is stored in any case
	if err != nil && !errors.Is(err, kvstore.ErrKeysLate) {
		return err
	}
	if changed.Fleet != "" {
		settings = changed
		if err := cl.NATS.Publish(schema.SettingsSubject(cl.Fleet), nil); err != nil {
			return err
		}
	}
	if settings.Keys == nil {
		settings.Keys = []schema.FleetKey{}
	}
	if a.JSON {
		return errors.Join(late, output.Document(a.Stdout, keysView{Fleet: cl.Fleet, Keys: settings.Keys}))
	}
	if len(settings.Keys) == 0 {
		_, err = fmt.Fprintf(a.Stdout, "fleet %s has no keys: control events are not signed, so any client that may publish events can forge them\n", cl.Fleet)
		return err
	}
	rows := make([][]string, len(settings.Keys))
	for i, k := range settings.Keys {
		rows[i] = []string{k.Key, orText(k.Since, "the beginning"), orText(k.Until, "")}
	}
	return errors.Join(late, output.Table(a.Stdout, []output.Column{{Title: "key"}, {Title: "since"}, {Title: "until"}}, rows))
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
