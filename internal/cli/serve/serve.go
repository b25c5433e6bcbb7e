package serve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark serve.
type Cmd struct {
	HTTP        string         `default:"${http}" placeholder:"ADDR" environ:"WAYMARK_HTTP" help:"Address of health checks and metrics; port 0: a free one; off: none (WAYMARK_HTTP; default: ${http})."`
	Port        int            `placeholder:"PORT" environ:"WAYMARK_PORT" help:"Port of the embedded server (WAYMARK_PORT; default: that of the last start)."`
	Embedded    bool           `help:"Run the embedded server, whatever the environment names."`
	NoFold      bool           `help:"Only answer requests: another process folds."`
	Quota       base.QuotaSize `default:"0" placeholder:"SIZE" environ:"WAYMARK_QUOTA" help:"Size of log, segments, checkpoints and blobs, of each, per shard (WAYMARK_QUOTA; default: 4GiB, less on a small disk)."`
	Checkpoints base.Positive  `placeholder:"N" environ:"WAYMARK_CHECKPOINTS" help:"Checkpoints kept of each run, 1 to 64 (WAYMARK_CHECKPOINTS; default: 5)."`
	Interval    time.Duration  `name:"checkpoint-interval" default:"20ms" placeholder:"TIME" environ:"WAYMARK_CHECKPOINT_INTERVAL" help:"At most one checkpoint of a run in this time, 1ms to 1s (WAYMARK_CHECKPOINT_INTERVAL; default: 20ms)."`
	Shards      base.Positive  `placeholder:"N" environ:"WAYMARK_SHARDS" help:"Shards of a new fleet (WAYMARK_SHARDS; default: 8 on the embedded server, 1 on an external one)."`
	Replicas    base.Positive  `placeholder:"N" environ:"WAYMARK_REPLICAS" help:"Replicas of every stream on a cluster (WAYMARK_REPLICAS; default: 1)."`
	Name        string         `placeholder:"NAME" environ:"WAYMARK_NAME" help:"Name in leases and events (WAYMARK_NAME; default: from the host name)."`
	Grace       time.Duration  `default:"10s" placeholder:"TIME" environ:"WAYMARK_GRACE" help:"Time limit for unfinished work on a stop (WAYMARK_GRACE; default: 10s)."`
	Silence     time.Duration  `placeholder:"TIME" environ:"WAYMARK_SILENCE" help:"Silence after which an executor's runs can be claimed, 2s or more (WAYMARK_SILENCE; default: 10s)."`
	MaxClaims   int            `default:"3" placeholder:"N" environ:"WAYMARK_MAX_CLAIMS" help:"Claims without progress until a quarantine; -1: never (WAYMARK_MAX_CLAIMS; default: 3)."`
	PurgeAfter  purgeTime      `default:"10m" placeholder:"TIME" environ:"WAYMARK_PURGE_AFTER" help:"Purge sealed events after this time, or never (WAYMARK_PURGE_AFTER; default: 10m)."`
	Synced      bool           `environ:"WAYMARK_SYNCED" help:"The external server has sync_interval: always (WAYMARK_SYNCED)."`
	Webhook     string         `placeholder:"URL" environ:"WAYMARK_WEBHOOK" help:"Post inbox entries here until each is accepted (WAYMARK_WEBHOOK)."`
	Secret      string         `name:"webhook-secret" placeholder:"FILE" environ:"WAYMARK_WEBHOOK_SECRET" help:"File with the secret that signs posts (WAYMARK_WEBHOOK_SECRET)."`
	WebhookEnds bool           `environ:"WAYMARK_WEBHOOK_ENDS" help:"Post the ends of runs, too (WAYMARK_WEBHOOK_ENDS)."`
	LogLevel    string         `default:"info" placeholder:"LEVEL" environ:"WAYMARK_LOG_LEVEL" help:"debug, info, warn or error (WAYMARK_LOG_LEVEL; default: info)."`
	LogFormat   string         `default:"auto" enum:"auto,console,json" placeholder:"FORMAT" environ:"WAYMARK_LOG_FORMAT" help:"auto, console or json (WAYMARK_LOG_FORMAT; default: auto)."`
}

// Ready is the output line of a daemon that takes work.
type Ready struct {
	URL      string `json:"url"`
	Context  string `json:"context,omitzero"`
	HTTP     string `json:"http,omitzero"`
	Fleet    string `json:"fleet"`
	Name     string `json:"name"`
	Embedded bool   `json:"embedded"`
	Folding  bool   `json:"folding"`
}

// String is one line of keys and values.
func (r Ready) String() string {
	s := "waymark is ready: url=" + r.URL
	if r.Context != "" {
		s += " context=" + quoted(r.Context)
	}
	if r.HTTP != "" {
		s += " http=" + r.HTTP
	}
	return s + " fleet=" + r.Fleet
}

// quoted puts a path with spaces in quotes; others stay as they are, ready to be copied.
func quoted(path string) string {
	if strings.ContainsAny(path, " \t\"") {
		return strconv.Quote(path)
	}
	return path
}

// Validate is called by kong.
func (c Cmd) Validate() error {
	switch {
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("--port %d: use 1 to 65535, or 0 for the port of the last start", c.Port)
	case c.Grace <= 0:
		return fmt.Errorf("--grace %s: use a time above 0, such as 10s", c.Grace)
	case c.Interval < fold.MinLinger || c.Interval > fold.MaxLinger:
		return fmt.Errorf("--checkpoint-interval %s: use %s to %s", c.Interval, fold.MinLinger, fold.MaxLinger)
	case c.PurgeAfter == 0:
		return errors.New("--purge-after 0s: use a time above 0, such as 10m, or never")
	case c.MaxClaims == 0:
		return errors.New("--max-claims 0: use 1 or more, or -1 for never")
	}
	if (c.Webhook == "") != (c.Secret == "") {
		return errors.New("--webhook and --webhook-secret: set both or none")
	}
	if c.WebhookEnds && c.Webhook == "" {
		return errors.New("--webhook-ends: set --webhook, too")
	}
	if c.Webhook != "" && c.NoFold {
		return errors.New("--webhook and --no-fold: omit one of them: only daemons that fold post inbox entries")
	}
	if err := kvstore.CheckSilence(c.Silence); err != nil {
		return fmt.Errorf("--silence: %w", err)
	}
	return nil
}

// purgeTime is how long events stay in the log after they were sealed; negative means for ever.
type purgeTime time.Duration

// UnmarshalText reads a time, or never.
func (p *purgeTime) UnmarshalText(text []byte) error {
	if string(text) == "never" {
		*p = -1
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < 0 {
		return fmt.Errorf("%.40q is not a time: use one such as 10m, or never", text)
	}
	*p = purgeTime(d)
	return nil
}

// Run serves until ctx ends. A requested stop is no failure.
func (c Cmd) Run(ctx context.Context, a *base.App) error {
	if err := schema.CheckName("fleet", a.Fleet); err != nil {
		return err
	}
	if c.Name == "" {
		c.Name = daemonName()
	}
	if err := schema.CheckName("--name", c.Name); err != nil {
		return err
	}
	log, err := base.NewLogger(a.Stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}

	// Cheap checks, and addresses that may be in use, come first, so that a wrong start fails before anything is opened.
	health, err := listenHealth(ctx, c.HTTP, log)
	if err != nil {
		if used := c.stateInUse(a); used != nil {
			return used
		}
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	group.Go(health.run)
	group.Go(func() error {
		<-ctx.Done()
		notify(systemd.SdNotifyStopping, log)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
		defer cancel()
		return health.shutdown(limit)
	})
	group.Go(func() error {
		watchdog(ctx, health, log)
		return nil
	})
	group.Go(func() error {
		defer done()
		return c.onDisk(ctx, a, health, log)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info().Msg("stopped")
	return nil
}

// onDisk serves until ctx ends or something fails. It waits for room on a full disk and then starts again: a server that ran out of room
// stores nothing until it is restarted, and a daemon that starts on it repairs what the server acknowledged without storing it.
func (c Cmd) onDisk(ctx context.Context, a *base.App, health *healthServer, log zerolog.Logger) error {
	for {
		err := c.serve(ctx, a, health, log)
		full, ok := errors.AsType[*natsd.DiskFullError](err)
		if !ok || ctx.Err() != nil {
			return err
		}
		if !roomAgain(full.Dir) {
			log.Error().Err(err).Str("hint", failure.MakeRoom(full.Dir, full.Total)).Msg("the disk is full: the daemon starts once there is free space")
		}
		if !awaitRoom(ctx, full.Dir) {
			return nil
		}
		log.Warn().Msg("the disk has free space again: starting the nats server and its users")
	}
}

// serve starts a daemon, on its own server or on one that it joins, and runs it until ctx ends or something fails.
func (c Cmd) serve(ctx context.Context, a *base.App, health *healthServer, log zerolog.Logger) (err error) {
	var open closers
	defer func() {
		if closeErr := open.close(ctx); closeErr != nil {
			log.Error().Err(closeErr).Msg("unclean stop")
			err = errors.Join(err, closeErr)
		}
	}()
	registry := newRegistry()
	d, err := c.start(ctx, a, health.waits.Store, registry, &open, log)
	switch {
	case err != nil && ctx.Err() != nil:
		log.Info().Err(err).Msg("start was interrupted")
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	health.shown.Store(&shown{d, a.Now, promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})})
	defer health.shown.Store(nil)
	return d.ranOut(c.run(ctx, a, d, health, log))
}

// stateInUse reports that another daemon uses the state directory. That error is more useful than the one about its port.
func (c Cmd) stateInUse(a *base.App) error {
	if _, named, err := (natsconn.Config{Flags: a.Conn, Getenv: a.Getenv}).Explicit(); err != nil || named && !c.Embedded {
		return nil //nolint:nilerr // the server named is another one
	}
	dir, err := a.StateDirectory()
	if err != nil {
		return nil //nolint:nilerr // no directory is in use
	}
	return natsd.InUse(dir)
}

// run runs everything until ctx ends or something fails.
func (c Cmd) run(ctx context.Context, a *base.App, d *daemon, health *healthServer, log zerolog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	d.run(ctx, group, log)
	group.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-d.waymark.Ready():
		}
		d.refuse.Store(nil)
		line := d.ready(c, a)
		health.ready.Store(true)
		line.HTTP = health.url()
		log.Info().Str("url", line.URL).Str("fleet", line.Fleet).Msg("ready")
		notify(systemd.SdNotifyReady, log)
		return printReady(a, line)
	})
	group.Go(func() error {
		<-ctx.Done()
		health.ready.Store(false)
		return nil
	})
	return group.Wait()
}

func printReady(a *base.App, r Ready) error {
	if a.JSON {
		return output.Line(a.Stdout, r)
	}
	_, err := fmt.Fprintln(a.Stdout, r)
	return err
}
