package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Config sets what a daemon does. The zero value of every field that is not required means its default.
type Config struct {
	// Fleet of the daemon. Required; it is provisioned.
	Fleet string
	// Name of this replica in leases, checkpoints and events. Required; the grammar of names. It must be unique among
	// the replicas.
	Name string
	// Service is the connection that answers requests and reads the fleet's settings. Required.
	Service jetstream.JetStream
	// Fold is the connection that folds the shards, best one of its own: a slow reader of one does not delay the
	// other. Nil only answers requests: another replica writes checkpoints and detects dead executors.
	Fold jetstream.JetStream
	// Settings of the fleet that the caller has just read; if nil, New reads them.
	Settings *schema.FleetSettings
	// Alone: no other process folds the fleet, so the shards are not shared. Default false.
	Alone bool
	// MaxClaims is the number of claims in a row without progress after which a run is quarantined. Default
	// schema.DefaultMaxClaims; a negative number means never.
	MaxClaims int
	// Requests and Worker tune the service and the fold of each shard. The daemon sets the names of fleet, replica
	// and shard, MaxClaims, and the shared parts.
	Requests service.Config
	Worker   fold.Config
	// Opened is called for each shard before the daemon folds it. May be nil.
	Opened func(shard int, f *fold.Worker)
	// Changed is called with changed settings of the fleet before they are applied. May be nil.
	Changed func(schema.FleetSettings)
}

// Validate names the first invalid field. The error matches [service.ErrConfig].
func (c *Config) Validate() error {
	if err := schema.CheckName("fleet", c.Fleet); err != nil {
		return fmt.Errorf("%w: Fleet: %w", service.ErrConfig, err)
	}
	if err := schema.CheckName("replica", c.Name); err != nil {
		return fmt.Errorf("%w: Name: %w", service.ErrConfig, err)
	}
	if c.Service == nil {
		return fmt.Errorf("%w: Service is nil", service.ErrConfig)
	}
	return nil
}

// Daemon is one replica of a fleet's daemon: it folds the shards, detects dead executors, removes runs under the
// retention policy, and answers requests.
//
//	New ──Run──▶ serving ──ctx ends──▶ draining ──▶ stopped
type Daemon struct {
	cfg Config
	now func() time.Time
	log zerolog.Logger

	settings   *Settings
	liveRuns   *liveness.LiveRuns
	service    *service.Service
	heartbeats *liveness.Heartbeats
	// retention is nil in a daemon that does not fold, and share also in one that runs alone.
	share     *fold.Share
	retention *service.RetentionWorker
	// activity counts the work of agents; nil in a daemon that does not fold.
	activity *activity.Counters
	// doubted counts the shards that still repair the effects of an unclean start.
	doubted atomic.Int64

	// read are the service's shards, and open the shards of the workers.
	read, open []*kvstore.Shard
	workers    []*fold.Worker
}

// New returns a daemon of a provisioned fleet, whose settings it reads. Call Run to start it. The caller closes the
// connections after Run.
func New(ctx context.Context, cfg Config, now func() time.Time, log zerolog.Logger) (*Daemon, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Settings == nil {
		settings, _, err := kvstore.NewFleets(cfg.Service).Get(ctx, cfg.Fleet)
		if err != nil {
			return nil, err
		}
		cfg.Settings = &settings
	}
	settings := *cfg.Settings
	d := &Daemon{cfg: cfg, now: now, log: log}
	var err error
	if d.read, err = d.openShards(d.cfg.Service, settings); err != nil {
		return nil, err
	}
	nc := cfg.Service.Conn()
	d.settings = NewSettings(settings, nc, cfg.Service, log, d.change)
	d.liveRuns = liveness.NewLiveRuns(d.read, cfg.MaxClaims, now, log)
	d.liveRuns.SetPauses(settings.Pauses)
	d.liveRuns.SetLimits(settings.Limits)
	requests := cfg.Requests
	requests.Fleet, requests.Name, requests.MaxClaims = cfg.Fleet, cfg.Name, cfg.MaxClaims
	requests.Settings, requests.Refresh = d.settings.Current, d.settings.Refresh
	requests.Worker = func(shard int) service.Worker {
		if w := d.worker(shard); w != nil {
			return w
		}
		return nil
	}
	heard := nc
	if cfg.Fold != nil {
		heard = cfg.Fold.Conn()
	}
	d.heartbeats = liveness.NewHeartbeats(cfg.Fleet, heard, d.liveRuns, now, log)
	d.heartbeats.SetSilence(time.Duration(settings.SilenceMS) * time.Millisecond)
	requests.Heartbeats = d.heartbeats
	if d.service, err = service.New(requests, nc, cfg.Service, d.read, d.liveRuns, now, log); err != nil {
		return nil, err
	}
	if cfg.Fold == nil {
		return d, nil
	}
	d.activity = activity.New(cfg.Fleet)
	d.retention = service.NewRetentionWorker(d.service, service.DefaultRetainEvery, log)
	if !cfg.Alone {
		d.share = fold.NewShare(cfg.Name, settings.Shards, cfg.Worker.LeaseTTL, now)
	}
	d.doubted.Store(int64(settings.Shards))
	return d, d.openWorkers(settings)
}

// Run works until ctx ends, then lets active requests finish within the grace, and returns nil. It returns an error
// if a part failed. It may be called once.
func (d *Daemon) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	parts := []func(context.Context) error{d.service.Run, d.liveRuns.Run, d.heartbeats.Run, d.settings.Run}
	if d.retention != nil {
		parts = append(parts, d.retention.Run)
	}
	for _, part := range parts {
		group.Go(func() error { return part(ctx) })
	}
	for _, f := range d.workers {
		group.Go(func() error { return f.Run(ctx) })
	}
	return group.Wait()
}

// Ready is closed once requests are answered.
func (d *Daemon) Ready() <-chan struct{} { return d.service.Ready() }

// Service answers the daemon's requests.
func (d *Daemon) Service() *service.Service { return d.service }

// Settings are the fleet's settings, kept up to date.
func (d *Daemon) Settings() *Settings { return d.settings }

// LiveRuns are the fleet's live runs.
func (d *Daemon) LiveRuns() *liveness.LiveRuns { return d.liveRuns }

// Heartbeats are the executors' heartbeats.
func (d *Daemon) Heartbeats() *liveness.Heartbeats { return d.heartbeats }

// Activity counts the work of agents, from folded events; nil if the daemon does not fold.
func (d *Daemon) Activity() *activity.Counters { return d.activity }

// Workers of the shards, in the order of their numbers; empty if the daemon does not fold.
func (d *Daemon) Workers() []*fold.Worker { return d.workers }

// worker returns the worker of a shard, nil for none.
func (d *Daemon) worker(shard int) *fold.Worker {
	if shard >= len(d.workers) {
		return nil
	}
	return d.workers[shard]
}

// Checkpoints are those of a shard.
func (d *Daemon) Checkpoints(shard int) *kvstore.Checkpoints { return d.read[shard].Checkpoints }

// change applies changed settings while the daemon runs.
func (d *Daemon) change(settings schema.FleetSettings) error {
	if d.cfg.Changed != nil {
		d.cfg.Changed(settings)
	}
	for _, shard := range slices.Concat(d.read, d.open) {
		shard.Update(settings)
	}
	d.heartbeats.SetSilence(time.Duration(settings.SilenceMS) * time.Millisecond)
	d.liveRuns.SetPauses(settings.Pauses)
	d.liveRuns.SetLimits(settings.Limits)
	return nil
}

// openShards opens the shards of a fleet.
func (d *Daemon) openShards(js jetstream.JetStream, settings schema.FleetSettings) ([]*kvstore.Shard, error) {
	shards := make([]*kvstore.Shard, settings.Shards)
	for i := range shards {
		var err error
		if shards[i], err = kvstore.OpenShard(js, settings, i, d.cfg.Name); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// openWorkers creates the workers of the shards.
func (d *Daemon) openWorkers(settings schema.FleetSettings) error {
	var err error
	if d.open, err = d.openShards(d.cfg.Fold, settings); err != nil {
		return err
	}
	for i, shard := range d.open {
		f, err := fold.New(d.workerConfig(i), d.cfg.Fold.Conn(), d.cfg.Fold, shard, d.now, d.log)
		if err != nil {
			return err
		}
		if d.cfg.Opened != nil {
			d.cfg.Opened(i, f)
		}
		d.workers = append(d.workers, f)
	}
	return nil
}

func (d *Daemon) workerConfig(shard int) fold.Config {
	c := d.cfg.Worker
	c.Fleet, c.Shard, c.Holder, c.MaxClaims = d.cfg.Fleet, shard, d.cfg.Name, d.cfg.MaxClaims
	c.Shards, c.LiveRuns, c.Heartbeats, c.Share = len(d.read), d.liveRuns, d.heartbeats, d.share
	c.Limits = func() []schema.Limit { return d.settings.Current().Limits }
	c.AfterUnclean, c.Activity = d.madeGood, d.activity
	if c.Reprovision == nil {
		c.Reprovision = func(ctx context.Context) error {
			_, err := kvstore.Change(ctx, d.cfg.Fold, d.cfg.Fleet, func(c *kvstore.FleetConfig) { c.Shards = len(d.read) })
			return err
		}
	}
	return c
}

// madeGood is called once by each shard after an unclean start.
func (d *Daemon) madeGood() {
	if d.doubted.Add(-1) == 0 && d.cfg.Worker.AfterUnclean != nil {
		d.cfg.Worker.AfterUnclean()
	}
}
