package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/kvstore"
)

// daemonSilence is how long executors of a measurement may be silent: nothing is to be orphaned because a machine is
// busy measuring.
const daemonSilence = 10 * time.Minute

// daemonConfig says what a daemon of a measurement is.
type daemonConfig struct {
	Fleet, Name string
	// NoFold answers requests and folds nothing.
	NoFold bool
	// LeaseTTL of the folders in ms; 0 means their default.
	LeaseMS int64
	// SilenceMS is how long executors may be silent; 0 means ten minutes.
	SilenceMS int64
	// PurgeMS is how long sealed events stay in the log; 0 means the default, a negative number for ever. Synced says
	// that the server writes each message through.
	PurgeMS int64
	Synced  bool
	// Shared says that there are other daemons to share the shards with.
	Shared bool
}

// foldCounts are what a daemon's folders did.
type foldCounts struct {
	Events, Checkpoints, Segments, SegmentBytes, Batches int64
	// Leading is the number of shards that it folds.
	Leading int64
}

func (c *foldCounts) add(o foldCounts) {
	c.Events += o.Events
	c.Checkpoints += o.Checkpoints
	c.Segments += o.Segments
	c.SegmentBytes += o.SegmentBytes
	c.Batches += o.Batches
	c.Leading += o.Leading
}

// daemon is what "waymark serve --nats" runs, without its HTTP server: a service and a folder a shard.
type daemon struct {
	cancel  context.CancelFunc
	group   *errgroup.Group
	links   []*link
	folders []*consumer.Folder
	service *consumer.Service
	stopped atomic.Bool
}

// connector opens a connection of the given name.
type connector func(name string) (*link, error)

// startDaemon starts a daemon of a provisioned fleet and returns when it answers requests.
func startDaemon(ctx context.Context, cfg daemonConfig, connect connector, log zerolog.Logger) (_ *daemon, err error) {
	d := new(daemon)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	d.group, work = errgroup.WithContext(work)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("daemon %s: %w", cfg.Name, err), d.stop())
		}
	}()
	serviceConn, err := d.connect(connect, cfg.Name+"-service")
	if err != nil {
		return nil, err
	}
	foldConn, err := d.connect(connect, cfg.Name+"-folder")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(serviceConn)
	if err != nil {
		return nil, err
	}
	settings, _, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet)
	if err != nil {
		return nil, err
	}
	shards, err := openShards(js, settings, cfg.Name)
	if err != nil {
		return nil, err
	}
	roster := consumer.NewRoster(shards, 0, time.Now, log)
	d.service, err = consumer.NewService(consumer.ServiceConfig{Fleet: cfg.Fleet, Name: cfg.Name, Generations: settings.Generations},
		serviceConn, js, shards, roster, time.Now, log)
	if err != nil {
		return nil, err
	}
	if !cfg.NoFold {
		if err := d.openFolders(work, cfg, foldConn, settings, roster, log); err != nil {
			return nil, err
		}
	}
	d.group.Go(func() error { return roster.Run(work) })
	d.group.Go(func() error { return d.service.Run(work) })
	for _, f := range d.folders {
		d.group.Go(func() error { return f.Run(work) })
	}
	select {
	case <-d.service.Ready():
		return d, nil
	case <-work.Done():
		return nil, errors.New("it ended before it was ready")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (d *daemon) connect(connect connector, name string) (*nats.Conn, error) {
	l, err := connect(name)
	if err != nil {
		return nil, err
	}
	d.links = append(d.links, l)
	return l.Conn, nil
}

func (d *daemon) openFolders(work context.Context, cfg daemonConfig, nc *nats.Conn, settings kvstore.FleetSettings, roster *consumer.Roster, log zerolog.Logger) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	shards, err := openShards(js, settings, cfg.Name)
	if err != nil {
		return err
	}
	heartbeats := consumer.NewHeartbeats(cfg.Fleet, nc, time.Now, log)
	d.group.Go(func() error { return heartbeats.Run(work) })
	var balance *consumer.Balance
	if cfg.Shared {
		balance = consumer.NewBalance(cfg.Fleet, cfg.Name, len(shards), nc, heartbeats, time.Now, log)
		d.group.Go(func() error { return balance.Run(work) })
	}
	silence := daemonSilence
	if cfg.SilenceMS > 0 {
		silence = time.Duration(cfg.SilenceMS) * time.Millisecond
	}
	for i, shard := range shards {
		f, err := consumer.NewFolder(consumer.FolderConfig{
			Fleet: cfg.Fleet, Shard: i, Holder: cfg.Name, Roster: roster, Heartbeats: heartbeats, Balance: balance, Silence: silence,
			LeaseTTL: time.Duration(cfg.LeaseMS) * time.Millisecond, PurgeAfter: time.Duration(cfg.PurgeMS) * time.Millisecond, Synced: cfg.Synced,
		}, nc, js, shard, time.Now, log)
		if err != nil {
			return err
		}
		d.folders = append(d.folders, f)
	}
	return nil
}

func openShards(js jetstream.JetStream, settings kvstore.FleetSettings, name string) ([]*kvstore.Shard, error) {
	shards := make([]*kvstore.Shard, settings.Shards())
	for i := range shards {
		var err error
		if shards[i], err = kvstore.OpenShard(js, settings, i, name); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// counts are what its folders did so far.
func (d *daemon) counts() foldCounts {
	var c foldCounts
	for _, f := range d.folders {
		s := f.Stats()
		c.add(foldCounts{
			Events: s.Events.Load(), Checkpoints: s.Checkpoints.Load(), Batches: s.Batches.Load(), Leading: s.Leading.Load(),
			Segments: s.Segments.Load(), SegmentBytes: s.SegmentBytes.Load(),
		})
	}
	return c
}

// stop ends the daemon cleanly: it gives its leases up. Called again it does nothing.
func (d *daemon) stop() error {
	if d.stopped.Swap(true) {
		return nil
	}
	d.cancel()
	err := d.group.Wait()
	for _, l := range d.links {
		l.close()
	}
	return err
}
