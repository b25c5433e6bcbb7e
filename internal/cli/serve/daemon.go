package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/firing"
	"github.com/waymarkio/waymark/internal/look/webhook"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// embeddedLease is the time to live of a fold worker's lease on the embedded server: only one process can use its
// directory, so that after a crash the daemon need not wait for another lease.
const embeddedLease = time.Second

// daemon has the parts that serve starts.
type daemon struct {
	// server is nil when the daemon joined another one.
	server *natsd.Server
	// key proves the daemon to its own server by the key that it signs with; nil without one.
	key     nats.Option
	target  natsconn.Target
	waymark *consumer.Daemon
	// webhook is nil without --webhook.
	webhook *webhook.Watch
	// firings submit the runs of schedules; nil until the daemon is put together.
	firings *firing.Firings
	// proof returns the sender of a request; nil if the NATS server proves no senders.
	proof func(verb string, m *nats.Msg) (by string, err error)
	conns []*nats.Conn
	// served is the file that says that the daemon has served the fleet in this account of this server; empty
	// without a state directory.
	served string
	// refuse ends a start because the server does not permit what it needs; nil once it is ready.
	refuse atomic.Pointer[context.CancelCauseFunc]
	// unheard are the refused subscriptions of each connection since it was made, the latest of each.
	unheard []*atomic.Pointer[access.Refusal]
}

// refused handles permission errors of the server.
func (d *daemon) refused(e *access.Refusal) {
	if refuse := d.refuse.Load(); refuse != nil {
		(*refuse)(e)
	}
}

// start opens everything in order; each thing opened is added to open. It tells waits what it waits for.
func (c Cmd) start(ctx context.Context, a *base.App, waits func(*base.Finding), registry prometheus.Registerer, open *closers, log zerolog.Logger) (_ *daemon, err error) {
	d := new(daemon)
	defer func() { err = d.ranOut(err) }()
	d.refuse.Store(&a.Refuse)
	if err := c.openServer(ctx, a, d, open, log); err != nil {
		return nil, err
	}
	// The connections outlive ctx: unfinished work is finished after it.
	work := context.WithoutCancel(ctx)
	serviceConn, err := d.connect(work, "service", registry, open, log)
	if err != nil {
		return nil, err
	}
	if err := kvstore.CheckServer(serviceConn); err != nil {
		return nil, err
	}
	if d.served, err = d.servedFile(ctx, a, log); err != nil {
		return nil, err
	}
	foldConn, err := d.connect(work, "fold-worker", registry, open, log)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(serviceConn)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	fold, err := jetstream.New(foldConn)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	settings, err := c.provision(ctx, a, d, js, waits, log)
	if err != nil {
		return nil, err
	}
	d.remember(a, log)
	if d.server != nil {
		if err := d.server.Map(schema.EventMapping(a.Fleet, settings.Shards)); err != nil {
			return nil, err
		}
	}
	if err := d.proveSenders(ctx, serviceConn, a.Fleet, log); err != nil {
		return nil, err
	}
	if err := c.checkSigner(ctx, a, js, log); err != nil {
		return nil, err
	}
	config, err := c.config(a, d, registry, log)
	if err != nil {
		return nil, err
	}
	if config.Service, config.Settings = js, &settings; !c.NoFold {
		config.Fold = fold
	}
	if d.waymark, err = consumer.New(ctx, config, a.Now, log); err != nil {
		return nil, err
	}
	registerDaemon(registry, a.Fleet, d.waymark)
	if d.firings, err = fire(ctx, a, d.waymark, js, log); err != nil {
		return nil, err
	}
	registerFirings(registry, a.Fleet, d.firings)
	registerReady(registry, d, a.Now) //nolint:contextcheck // a scrape has a context of its own
	if c.Webhook != "" {
		if d.webhook, err = c.watchPeople(ctx, a, d.waymark, d.conns[0], log); err != nil {
			return nil, err
		}
		registerWebhook(registry, a.Fleet, d.webhook)
	}
	return d, nil
}

// config is the configuration from the flags, without connections.
func (c Cmd) config(a *base.App, d *daemon, registry prometheus.Registerer, log zerolog.Logger) (consumer.Config, error) {
	signer, err := keyring.SignerOf(d.conns[0])
	if err != nil {
		return consumer.Config{}, err
	}
	config := consumer.Config{
		Fleet: a.Fleet, Name: c.Name, Alone: d.server != nil, MaxClaims: c.MaxClaims,
		Requests: service.Config{Version: base.ServiceVersion(), Grace: c.Grace, Proof: d.proof, Webhook: d.posts, Schedules: d.schedules},
		Worker:   fold.Config{Linger: c.Interval, PurgeAfter: time.Duration(c.PurgeAfter), Synced: c.Synced},
		Opened:   func(shard int, f *fold.Worker) { registerWorker(registry, a.Fleet, shard, f) },
		Changed:  func(settings schema.FleetSettings) { sayUnsigned(a, signer, settings, log) },
	}
	if d.server != nil {
		config.Worker.LeaseTTL, config.Worker.Synced = embeddedLease, true
		config.Worker.UncleanStart = d.server.UncleanStart()
		config.Worker.AfterUnclean = func() {
			if err := d.server.ClearUnclean(); err != nil {
				log.Warn().Err(err).Msg("unclean stop stays recorded; the next start folds from the safe position again")
			}
		}
	}
	return config, nil
}

// openServer starts the embedded server, or finds the one to join.
func (c Cmd) openServer(ctx context.Context, a *base.App, d *daemon, open *closers, log zerolog.Logger) error {
	stateDir, stateErr := a.StateDirectory()
	if !c.Embedded {
		target, named, err := natsconn.Config{Flags: a.Conn, Getenv: a.Getenv}.Explicit()
		if err != nil {
			return err
		}
		if named {
			if c.Port != 0 {
				return failure.New(failure.Usage, "omit --port, or add --embedded", "--port is for the embedded server, but %s names another one", target.Origin)
			}
			d.target = target
			log.Info().Str("url", target.Address()).Str("origin", string(target.Origin)).Msg("joining a nats server")
			return nil
		}
	}
	if stateErr != nil {
		return stateErr
	}
	keys, key, err := a.LocalKey()
	if err != nil {
		return err
	}
	d.key = key
	startCtx, cancel := context.WithTimeout(ctx, base.StartTimeout)
	defer cancel()
	server, err := natsd.Start(startCtx, natsd.Config{StateDir: stateDir, Port: c.Port, Keys: keys}, log)
	if err != nil {
		return err
	}
	d.server = server
	// Close bounds itself.
	open.add("nats server", 2*natsd.DefaultStopTimeout, func(context.Context) error { return server.Close() })
	return nil
}

// connect opens a connection for one role, so that a slow reader of one connection does not delay another.
func (d *daemon) connect(ctx context.Context, role string, registry prometheus.Registerer, open *closers, log zerolog.Logger) (*nats.Conn, error) {
	log = log.With().Str("connection", role).Logger()
	closed, unheard := make(chan struct{}), new(atomic.Pointer[access.Refusal])
	opts := []nats.Option{
		nats.Name("waymark " + role),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			unheard.Store(nil) // the next connection subscribes again
			if err != nil {
				log.Warn().Err(err).Msg("connection lost")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info().Msg("reconnected") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			event := log.Warn().Err(err)
			if e, ok := access.RefusalIn(err); ok {
				event = event.Str("hint", e.Hint())
				if !e.Publish {
					unheard.Store(e)
				}
				d.refused(e)
			}
			if sub != nil {
				event = event.Str("subject", sub.Subject)
			}
			event.Msg("asynchronous error")
		}),
	}
	var nc *nats.Conn
	var err error
	if d.server != nil {
		if d.key != nil {
			opts = append(opts, d.key)
		}
		nc, err = d.server.Connect(opts...)
	} else {
		nc, err = d.target.Connect(ctx, opts...)
	}
	if err != nil {
		return nil, err
	}
	registerConnection(registry, role, nc)
	d.conns, d.unheard = append(d.conns, nc), append(d.unheard, unheard)
	open.add("connection of the "+role, base.CloseTimeout, func(ctx context.Context) error {
		nc.Close()
		select {
		case <-closed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return nc, nil
}

// proveSenders sets proof if the server proves senders. If the server does not answer, the daemon does not start: a guess could turn proofs
// into claims.
func (d *daemon) proveSenders(ctx context.Context, nc *nats.Conn, fleet string, log zerolog.Logger) error {
	if d.server != nil {
		return nil // the embedded server has one user with all rights
	}
	ctx, cancel := context.WithTimeout(ctx, base.StartTimeout)
	defer cancel()
	proves, err := access.Proves(nc, fleet, func(subject string) (*nats.Msg, error) { return nc.RequestWithContext(ctx, subject, nil) })
	switch {
	case err != nil:
		return err
	case proves:
		d.proof = access.Prover(fleet)
	default:
		log.Info().Str("account", access.AccountOf(access.Daemon, fleet)).
			Msg("senders of requests are not proven: the daemon is not an nkey user of the fleet's account")
	}
	return nil
}

// provisionTry is how long one try to provision waits for answers: a cluster that is being formed answers nothing.
const provisionTry = 10 * time.Second

// provision creates the missing streams and buckets of the fleet. It retries while the servers do not answer: daemons and servers may start at
// the same time, in any order.
func (c Cmd) provision(ctx context.Context, a *base.App, d *daemon, js jetstream.JetStream, waits func(*base.Finding), log zerolog.Logger) (schema.FleetSettings, error) {
	ctx, cancel := context.WithTimeout(ctx, base.StartTimeout)
	defer cancel()
	defer waits(nil)
	again := time.NewTicker(time.Second)
	defer again.Stop()
	since, told := a.Now(), ""
	for {
		try, cancel := context.WithTimeout(ctx, provisionTry)
		settings, err := c.provisionOnce(try, a, d, js)
		cancel()
		if err == nil || !kvstore.MayCome(err) || ctx.Err() != nil {
			return settings, err
		}
		why := base.Find("", base.Failed, failure.Explain(ctx, err).Hint, "%s", err)
		try, cancel = context.WithTimeout(ctx, proofPatience)
		if found := base.Unusable(try, d.conns[0], d.target.Address()); len(found) > 0 {
			why = found[0]
		}
		cancel()
		if told != why.Detail {
			told = why.Detail
			log.Warn().Str("detail", why.Detail).Str("hint", why.Do).Msg("waiting for nats")
		}
		f := base.Find("start", base.Failed, why.Do, "waiting for NATS at %s since %s: %s", d.target.Address(), since.UTC().Format(time.RFC3339), why.Detail)
		waits(&f)
		select {
		case <-again.C:
		case <-ctx.Done():
			return settings, &failure.Error{Code: failure.Unavailable, What: why.Detail, Hint: why.Do, Err: err}
		}
	}
}

// provisionOnce provisions, and returns the fleet's settings as stored. Settings without a flag stay unchanged.
func (c Cmd) provisionOnce(ctx context.Context, a *base.App, d *daemon, js jetstream.JetStream) (schema.FleetSettings, error) {
	fleets := kvstore.NewFleets(js)
	config := kvstore.FleetConfig{Fleet: a.Fleet}
	change := kvstore.Provision
	switch stored, _, err := fleets.Get(ctx, a.Fleet); {
	case err == nil:
		config = kvstore.ConfigOf(&stored)
		config.Shards = cmp.Or(int(c.Shards), config.Shards)
		change = func(ctx context.Context, js jetstream.JetStream, want kvstore.FleetConfig) error {
			_, err := kvstore.Change(ctx, js, a.Fleet, func(c *kvstore.FleetConfig) {
				want.Retention = c.Retention // which may change at this moment
				*c = want
			})
			return err
		}
	case !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrStreamMissing): // the bucket of settings comes with the first fleet
		return schema.FleetSettings{}, err
	default:
		switch remains := kvstore.Remains(ctx, js, a.Fleet); {
		case remains == nil:
			if err := d.mayCreate(a, err); err != nil {
				return schema.FleetSettings{}, err
			}
		case !errors.Is(remains, kvstore.ErrSettingsMissing) && !errors.Is(remains, kvstore.ErrStreamMissing):
			return schema.FleetSettings{}, remains
		}
		if d.server != nil {
			config.NewShards = roomyShards(d.storeRoom(), int64(c.Quota))
			config.QuotaBytes = roomyQuota(d.storeRoom(), cmp.Or(int(c.Shards), config.NewShards))
		}
	}
	if config.Shards == 0 {
		config.Shards = int(c.Shards)
	}
	for to, from := range map[*int]int{&config.Replicas: int(c.Replicas), &config.CheckpointsPerRun: int(c.Checkpoints)} {
		if from != 0 {
			*to = from
		}
	}
	if c.Silence != 0 {
		config.Silence = c.Silence
	}
	if c.Quota != 0 {
		config.QuotaBytes = int64(c.Quota)
	}
	if err := change(ctx, js, config); err != nil {
		if errors.Is(err, kvstore.ErrFull) {
			err = d.noRoom(config.Defaults(), err)
		}
		return schema.FleetSettings{}, err
	}
	settings, _, err := fleets.Get(ctx, a.Fleet)
	return settings, err
}

// storeRoom is how many bytes a new fleet may use on the daemon's own server: the limit of the server, and at most three quarters of the free
// disk space.
func (d *daemon) storeRoom() int64 {
	room := d.server.MaxStore()
	if free, _, err := natsd.DiskRoom(d.server.StateDir()); err == nil {
		room = min(room, free/4*3)
	}
	return room
}

// roomyShards is the number of shards of a new fleet on an embedded server that may store so many bytes: [kvstore.LoneShards], or on a small
// disk as many of the quota as fit; a quota of 0 is any from leastQuota on. The server reserves their room.
func roomyShards(store, quota int64) int {
	shards := kvstore.LoneShards
	for shards > 1 && kvstore.LargestQuota(store-store/rest, shards) < max(quota, leastQuota) {
		shards /= 2
	}
	return shards
}

// rest is the part of a small store that is left for leases and settings, and to other fleets.
const rest = 16

// roomyQuota is the default quota of a new fleet's shard on an embedded server that may store so many bytes: the usual
// one, or on a small disk what fits. The server reserves it.
func roomyQuota(store int64, shards int) int64 {
	return min(max(kvstore.LargestQuota(store-store/rest, shards), kvstore.MinQuotaBytes), kvstore.DefaultQuotaBytes)
}

// noRoom adds to the error of a server that cannot reserve the fleet's streams the quota that would fit, if it is known.
func (d *daemon) noRoom(config kvstore.FleetConfig, err error) error {
	f := &failure.Error{
		Code: failure.Full, Err: err, Own: true, What: err.Error(),
		Hint: fmt.Sprintf("use a quota below %s (waymark serve --quota SIZE), or give the server more space", output.Bytes(config.QuotaBytes)),
	}
	if d.server == nil {
		return f
	}
	switch fits := kvstore.LargestQuota(d.server.MaxStore(), config.Shards); {
	case fits < kvstore.MinQuotaBytes:
		// The store is three quarters of the disk: see natsd.
		f.Hint = fmt.Sprintf("use a disk of at least %s: a fleet of %s reserves %s, and the server stores %s here",
			output.Bytes(kvstore.LeastRoom(config.Shards)/3*4), output.Plural(config.Shards, "shard"), output.Bytes(kvstore.LeastRoom(config.Shards)), output.Bytes(d.server.MaxStore()))
	case fits < config.QuotaBytes:
		f.Hint = fmt.Sprintf("use a quota of at most %dMiB (waymark serve --quota %dMiB), or a larger disk", fits>>20, fits>>20)
	}
	return f
}

// leastQuota is the smallest default quota of several shards; with less room there are fewer.
const leastQuota = 64 << 20

// Run starts the parts in group. Each ends with ctx; the service finishes its pending requests.
func (d *daemon) run(ctx context.Context, group *errgroup.Group, log zerolog.Logger) {
	group.Go(func() error { return d.waymark.Run(ctx) })
	group.Go(func() error { return d.firings.Run(ctx) })
	if d.webhook != nil {
		group.Go(func() error { return d.webhook.Run(ctx) })
	}
	if d.server != nil {
		group.Go(func() error { return d.watchRoom(ctx, log) })
		group.Go(func() error {
			if err := d.server.WaitForShutdown(ctx); err != nil {
				return nil //nolint:nilerr // a stop that was asked for: the server is stopped after its clients
			}
			return errors.New("the embedded nats server stopped by itself: see its messages above")
		})
	}
}

func (d *daemon) ready(c Cmd, a *base.App) Ready {
	r := Ready{Fleet: a.Fleet, Name: c.Name, Folding: !c.NoFold, URL: d.target.Address(), Context: d.target.Context}
	if d.server != nil {
		end := d.server.Endpoint()
		r.URL, r.Context, r.Embedded = end.URL, end.Context, true
	}
	return r
}

// daemonName makes a unique name from the name of the host.
func daemonName() string {
	id := rand.Text()
	return base.Host() + "-" + id[len(id)-6:]
}
