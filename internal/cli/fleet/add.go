package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

type addCmd struct {
	Name        string         `arg:"" help:"Name of the fleet."`
	Dir         string         `placeholder:"DIR" help:"Directory for keys, NATS contexts and the server's configuration; without it, only streams and buckets are created."`
	Offline     bool           `help:"Write files only; connect to no server."`
	Include     string         `placeholder:"FILE" help:"The servers' fleets.conf on this machine, which includes the fleet's configuration (default: as before)."`
	Quota       base.QuotaSize `default:"0" placeholder:"SIZE" help:"Size of log, segments, checkpoints and blobs, of each, per shard (default: 4GiB)."`
	Shards      base.Positive  `placeholder:"N" help:"Shards, also in the permissions (default: 1)."`
	Replicas    base.Positive  `placeholder:"N" help:"Replicas of every stream (default: 1)."`
	Checkpoints base.Positive  `placeholder:"N" help:"Checkpoints kept of each run, 1 to 64 (default: 5)."`
	Connections int64          `default:"0" placeholder:"N" help:"Maximum connections of each role (default: 250)."`
	Executors   []string       `name:"executor" sep:"," placeholder:"NAME,..." help:"Executors with a key each."`
	Observers   []string       `name:"observer" sep:"," placeholder:"NAME,..." help:"Observers with a key each."`
	Operators   []string       `name:"operator" sep:"," placeholder:"NAME,..." help:"Operators with a key each."`
	Duties      string         `enum:",joint,separate" default:"" placeholder:"RULE" help:"separate: operators only approve; joint: they have executors' permissions, too (default: joint)."`
	ending      bool
	Verify      []string `sep:"," placeholder:"SUBJECT,..." help:"Subjects for questions about calls in doubt, such as tools.>."`
}

// Help is the text below the flags.
func (addCmd) Help() string {
	return `With --dir it writes what is missing: a key and a NATS context for each role (NAME-daemon.nk, NAME-daemon.json), with --executor, ` +
		`--observer and --operator a key for each name (NAME-operator.ann.nk), and fleet-NAME.conf for the servers. Once the servers know the ` +
		`fleet, run it again: it creates streams and buckets, and asks each server with a key of each role. To revoke a key, remove its file, ` +
		`run it again, and reload the servers.

Examples:
  waymark fleet add payments --dir fleets --offline --replicas 3 --nats tls://nats-1:4222,tls://nats-2:4222 --tls-ca ca.pem
  waymark fleet add payments --dir fleets --executor ci,prod --observer grafana --operator ann,bob --duties separate
  waymark fleet add payments --dir fleets
`
}

// Added is the JSON output of fleet add.
type Added struct {
	Fleet string `json:"fleet"`
	// Config is the fleet's part of the server's configuration; Written reports that it was changed now.
	Config  string `json:"config,omitzero"`
	Written bool   `json:"written,omitzero"`
	// Included is the servers' file that includes it.
	Included string `json:"included,omitzero"`
	// Contexts by role.
	Contexts map[access.Role]string `json:"contexts,omitzero"`
	// Duties are joint or separate.
	Duties string `json:"duties,omitzero"`
	// Owners of a key of their own, sorted by role and name.
	Owners []Owner `json:"owners,omitzero"`
	// Removed are the contexts whose key file was removed.
	Removed     []string `json:"removed,omitzero"`
	Provisioned bool     `json:"provisioned"`
	Shards      int      `json:"shards"`
	QuotaBytes  int64    `json:"quota_bytes,omitzero"`
	// KeyMissing is the daemon's public key if it is not among the keys that sign the fleet's control events.
	KeyMissing string `json:"key_missing,omitzero"`
	// existed: the fleet existed before, and may have a daemon that runs.
	existed bool
}

// Owner is an executor, observer or operator with a key of its own.
type Owner struct {
	Role access.Role `json:"role"`
	Name string      `json:"name"`
	// Key is the public key, as in control events.
	Key     string `json:"key"`
	Context string `json:"context"`
}

// Run adds a fleet, or changes one.
func (c addCmd) Run(ctx context.Context, a *base.App) error {
	switch {
	case c.Offline && c.Dir == "":
		return failure.New(failure.Usage, "name the directory with --dir", "--offline writes files only")
	case c.Dir == "" && (c.Connections != 0 || len(c.Verify) > 0 || len(c.Executors)+len(c.Observers)+len(c.Operators) > 0 || c.Duties != "" || c.Include != ""):
		return failure.New(failure.Usage, "name the directory with --dir", "--connections, --executor, --observer, --operator, --duties, --verify and --include change the server's configuration")
	}
	if err := schema.CheckName("fleet", c.Name); err != nil {
		return err
	}
	if int(c.Shards) > kvstore.MaxShards {
		return failure.New(failure.Usage, fmt.Sprintf("use 1 to %d", kvstore.MaxShards), "--shards %d is more than a fleet can have", int(c.Shards))
	}
	done := Added{Fleet: c.Name, Shards: max(int(c.Shards), 1)}
	var files *fleetFiles
	if c.Dir != "" {
		var err error
		if files, err = c.write(a, &done); err != nil {
			return err
		}
		if _, err := os.Stat(files.Include); c.Include == "" && err == nil { // as before, on the same machine
			c.Include = files.Include
		}
		if done.Included, err = include(c.Include, done.Config); err != nil {
			return err
		}
	}
	if !c.Offline {
		if files != nil {
			a.Conn = natsconn.Settings{Context: done.Contexts[access.Daemon]}
		}
		a.Fleet = c.Name
		if err := c.provision(ctx, a, &done, files); err != nil {
			return err
		}
		if files != nil {
			if err := c.prove(ctx, a, &done, files); err != nil {
				return err
			}
		}
	}
	if a.JSON {
		return output.Line(a.Stdout, done)
	}
	return c.print(a, &done)
}

// provision creates the fleet's streams and buckets.
func (c addCmd) provision(ctx context.Context, a *base.App, done *Added, files *fleetFiles) error {
	cl, err := a.Connect(ctx)
	if files != nil && errors.Is(err, natsconn.ErrRefused) {
		return &failure.Error{
			Code: failure.Refused, Err: err,
			What: fmt.Sprintf("the server does not know fleet %s yet: %s", c.Name, err),
			Hint: strings.Join(c.afterwards(done), "; "),
		}
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(cl.Wait, time.Minute))
	defer cancel()
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	config := kvstore.FleetConfig{Fleet: c.Name}
	replicas := int(c.Replicas)
	if files != nil {
		replicas = files.Replicas
	}
	if replicas > 1 && cl.NATS.ConnectedClusterName() == "" {
		return failure.New(failure.Usage, "use --replicas 1, or the servers of a cluster", "--replicas %d needs a cluster, and %s is a lone server", replicas, cl.Target.Address())
	}
	_, _, err = kvstore.NewFleets(js).Get(ctx, c.Name)
	switch {
	case err == nil:
		done.existed = true
		_, err = kvstore.Change(ctx, js, c.Name, c.change)
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrStreamMissing):
		if files != nil {
			config.Replicas, config.QuotaBytes, config.Shards = files.Replicas, files.Quota, files.Shards
		}
		c.change(&config)
		err = kvstore.Provision(ctx, js, config)
	}
	if refused, ok := errors.AsType[*access.Refusal](context.Cause(ctx)); ok && files != nil {
		return &failure.Error{
			Code: failure.Refused, Err: refused,
			What: "the servers' permissions for fleet " + c.Name + " differ from its files: " + refused.What(),
			Hint: strings.Join(c.afterwards(done), "; "),
		}
	}
	if err != nil {
		return err
	}
	settings, _, err := kvstore.NewFleets(js).Get(ctx, c.Name)
	if err != nil {
		return err
	}
	signer, err := keyring.SignerOf(cl.NATS)
	if err != nil {
		return err
	}
	if signer != nil && files != nil && !slices.ContainsFunc(settings.Keys, func(k schema.FleetKey) bool { return k.Key == signer.Name }) {
		done.KeyMissing = signer.Name
	}
	done.Provisioned, done.Shards, done.QuotaBytes = true, settings.Shards, settings.QuotaBytes
	return nil
}

// prove asks each server with a key of each client role. Version 2.15 of the server connects the imports of an account that is new in a
// reload at the next reload only: until then its clients get no answer, while the daemon works.
func (c addCmd) prove(ctx context.Context, a *base.App, done *Added, files *fleetFiles) error {
	contexts := make(map[access.Role]string)
	for _, o := range done.Owners {
		contexts[o.Role] = o.Context
	}
	maps.Copy(contexts, done.Contexts)
	var deaf []string
	for address := range strings.SplitSeq(files.URL, ",") {
		for _, role := range access.ClientRoles() {
			a.Conn = natsconn.Settings{
				URL: strings.TrimSpace(address), CA: files.CA, NKey: strings.TrimSuffix(contexts[role], ".json") + ".nk", InboxPrefix: access.InboxPrefix(role),
			}
			cl, err := a.Connect(ctx)
			if err == nil {
				// JetStream answers it for every role, without the fleet's daemon.
				ask, cancel := context.WithTimeout(ctx, cl.Wait)
				_, err = cl.NATS.RequestWithContext(ask, "$JS.API.STREAM.INFO."+schema.NamesOf(c.Name, 0).EventStream(), nil)
				cancel()
			}
			switch {
			case errors.Is(err, natsconn.ErrUnreachable): // it reads the configuration when it starts
			case errors.Is(err, nats.ErrNoResponders), errors.Is(err, natsconn.ErrRefused):
				deaf = append(deaf, fmt.Sprintf("%s (%s)", address, role))
			case err != nil:
				return fmt.Errorf("ask %s as %s: %w", address, role, err)
			}
		}
	}
	if deaf == nil {
		return nil
	}
	return failure.New(failure.Unavailable, "reload these servers once more: nats-server --signal reload; then run again: "+c.command(),
		"fleet %s exists, but these servers do not serve its clients yet: %s", c.Name, strings.Join(deaf, ", "))
}

// change applies the flags to a fleet's configuration.
func (c addCmd) change(config *kvstore.FleetConfig) {
	for to, from := range map[*int]int{&config.Shards: int(c.Shards), &config.Replicas: int(c.Replicas), &config.CheckpointsPerRun: int(c.Checkpoints)} {
		if from != 0 {
			*to = from
		}
	}
	if c.Quota != 0 {
		config.QuotaBytes = int64(c.Quota)
	}
}

// named are the owners of keys that the flags name.
func (c addCmd) named() map[access.Role][]string {
	return map[access.Role][]string{access.Executor: c.Executors, access.Observer: c.Observers, access.Operator: c.Operators}
}

// command is this command without --offline. It repeats the flags: the files have not all of them, and the settings of a fleet that exists
// change by flags alone.
func (c addCmd) command() string {
	command := "waymark fleet add " + c.Name
	flag := func(name, value string, given bool) {
		if given {
			command += schema.Flag(name, value)
		}
	}
	flag("dir", c.Dir, c.Dir != "")
	flag("include", c.Include, c.Include != "")
	flag("quota", base.ByteSize(c.Quota).Flag(), c.Quota != 0)
	flag("shards", fmt.Sprint(int(c.Shards)), c.Shards != 0)
	flag("replicas", fmt.Sprint(int(c.Replicas)), c.Replicas != 0)
	flag("checkpoints", fmt.Sprint(int(c.Checkpoints)), c.Checkpoints != 0)
	flag("connections", fmt.Sprint(c.Connections), c.Connections != 0)
	for _, role := range access.ClientRoles() {
		flag(string(role), strings.Join(c.named()[role], ","), len(c.named()[role]) > 0)
	}
	flag("duties", c.Duties, c.Duties != "")
	flag("verify", strings.Join(c.Verify, ","), len(c.Verify) > 0)
	return command
}

// afterwards lists the steps after which the server knows the fleet.
func (c addCmd) afterwards(done *Added) []string {
	again := "then run again: " + c.command()
	if c.ending {
		again = fmt.Sprintf("then run: waymark%s --fleet %s fleet rm %s", schema.Flag("context", done.Contexts[access.Daemon]), c.Name, c.Name)
	}
	if done.Included != "" {
		return []string{"start or reload the servers: nats-server --signal reload", again}
	}
	return []string{
		fmt.Sprintf("copy %s to each server, next to its nats.conf", done.Config),
		fmt.Sprintf("add the line include %q to its fleets.conf, once", filepath.Base(done.Config)),
		"reload it: nats-server --signal reload",
		again,
	}
}

func (c addCmd) print(a *base.App, done *Added) error {
	fields := []string{"fleet", c.Name}
	if done.Provisioned {
		quota := "unlimited"
		if done.QuotaBytes > 0 {
			quota = output.Bytes(done.QuotaBytes) + " a shard"
		}
		fields = append(fields, "shards", fmt.Sprint(done.Shards), "log", quota, "streams and buckets", "exist")
	}
	if done.Config != "" {
		fields = append(fields, "accounts", done.Config)
		if done.Included != "" {
			fields = append(fields, "included in", done.Included)
		}
		for _, role := range access.Roles() {
			if done.Contexts[role] != "" {
				fields = append(fields, string(role), done.Contexts[role])
			}
		}
		fields = append(fields, "duties", done.Duties)
		for _, o := range done.Owners {
			fields = append(fields, string(o.Role)+" "+o.Name, o.Context+", key "+o.Key)
		}
		for _, file := range done.Removed {
			fields = append(fields, "removed", file+", because its key file was removed")
		}
	}
	if err := output.Fields(a.Stdout, fields...); err != nil || a.Quiet {
		return err
	}
	start := "start its daemon: "
	if done.existed {
		start = "unless it has a running daemon, start one: "
	}
	next := []string{start + "waymark serve --fleet " + c.Name}
	if done.Config != "" {
		next = []string{fmt.Sprintf("%swaymark serve --fleet %s%s --synced", start, c.Name, schema.Flag("context", done.Contexts[access.Daemon]))}
	}
	if done.KeyMissing != "" {
		next = append([]string{fmt.Sprintf("add its key as a signing key: waymark%s --fleet %s fleet keys add %s",
			schema.Flag("context", done.Contexts[access.Daemon]), c.Name, done.KeyMissing)}, next...)
	}
	if !done.Provisioned {
		next = c.afterwards(done)
	}
	for i, step := range next {
		if _, err := fmt.Fprintf(a.Stdout, "%d. %s\n", i+1, output.Printable(step)); err != nil {
			return err
		}
	}
	return nil
}
