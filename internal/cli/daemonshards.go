package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// daemonShards brings shards into service: those that the fleet has when the daemon starts, and those that are added.
type daemonShards struct {
	serveCmd
	app      *app
	daemon   *daemon
	registry prometheus.Registerer
	log      zerolog.Logger
	// service and fold are the connections of the two roles; fold is nil when the daemon does not fold.
	service jetstream.JetStream
	foldNC  *nats.Conn
	fold    jetstream.JetStream
	// signer is the daemon's key; nil for none.
	signer *keyring.Signer

	mu sync.Mutex
	// open are the shards that the folders write to, and read those that the service reads.
	open, read []*kvstore.Shard
	folders    []*consumer.Folder
	// run runs a folder; nil until the daemon runs.
	run func(*consumer.Folder)
}

// openShards makes everything that goes over all shards, and brings the shards that there are into service.
func (c serveCmd) openShards(a *app, d *daemon, serviceConn, foldConn *nats.Conn, js jetstream.JetStream, settings kvstore.FleetSettings,
	registry prometheus.Registerer, log zerolog.Logger,
) error {
	s := &daemonShards{serveCmd: c, app: a, daemon: d, registry: registry, log: log, service: js}
	d.shards = s
	var err error
	if s.signer, err = keyring.SignerOf(serviceConn); err != nil {
		return err
	}
	added, err := s.openReaders(settings)
	if err != nil {
		return err
	}
	d.roster = consumer.NewRoster(added, c.MaxClaims, a.now, log)
	registerRoster(registry, a.cli.Fleet, d.roster)
	d.settings = consumer.NewSettings(settings, serviceConn, js, a.now, log, s.grow)
	registerSettings(registry, a.cli.Fleet, d.settings)
	d.service, err = consumer.NewService(consumer.ServiceConfig{
		Fleet: a.cli.Fleet, Name: c.Name, Version: serviceVersion(), Generations: settings.Generations, Refresh: d.settings.Refresh,
		Folder: s.folder, Grace: c.Grace, MaxClaims: c.MaxClaims, Proof: d.proof,
		Retention: func() schema.RetentionPolicy { return d.settings.Current().Retention },
	}, serviceConn, js, added, d.roster, a.now, log)
	if err != nil {
		return err
	}
	registerService(registry, a.cli.Fleet, d.service)
	registerFleet(registry, a.cli.Fleet, d.service)
	if c.NoFold {
		return nil
	}
	s.foldNC = foldConn
	if s.fold, err = jetstream.New(foldConn); err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	d.retainer = consumer.NewRetainer(d.service, s.leads, 0, log)
	d.heartbeats = consumer.NewHeartbeats(a.cli.Fleet, foldConn, a.now, log)
	registerHeartbeats(registry, a.cli.Fleet, d.heartbeats, c.Silence)
	if d.server == nil {
		// An embedded server has no other replica.
		d.balance = consumer.NewBalance(a.cli.Fleet, c.Name, settings.Shards(), foldConn, d.heartbeats, a.now, log)
		registerBalance(registry, a.cli.Fleet, d.balance)
	}
	return s.openFolders(settings, newUnclean(d.server, settings.Shards(), log))
}

// leads reports whether this daemon folds a shard now.
func (s *daemonShards) leads(shard int) bool {
	f := s.folder(shard)
	return f != nil && f.Stats().Leading.Load() == 1
}

// folder is this daemon's folder of a shard, nil for none.
func (s *daemonShards) folder(shard int) *consumer.Folder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shard >= len(s.folders) {
		return nil
	}
	return s.folders[shard]
}

// grow takes up changed settings while the daemon runs.
func (s *daemonShards) grow(settings kvstore.FleetSettings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sayUnsigned(settings)
	added, err := s.openReaders(settings)
	if err != nil {
		return err
	}
	s.daemon.roster.Grow(added...)
	if err := s.daemon.service.Place(settings.Generations, added...); err != nil {
		return err
	}
	if s.fold == nil {
		return nil
	}
	if d := s.daemon; d.balance != nil {
		d.balance.Grow(settings.Shards())
	}
	// What was not there when the server started was not lost with it.
	return s.openFolders(settings, nil)
}

// openReaders opens the shards that are not open yet for reading, and tells the others of the settings.
func (s *daemonShards) openReaders(settings kvstore.FleetSettings) ([]*kvstore.Shard, error) {
	for _, shard := range s.read {
		shard.Update(settings)
	}
	var added []*kvstore.Shard
	for i := len(s.read); i < settings.Shards(); i++ {
		shard, err := kvstore.OpenShard(s.service, settings, i, s.Name)
		if err != nil {
			return nil, err
		}
		added = append(added, shard)
	}
	s.read = append(s.read, added...)
	return added, nil
}

// openFolders makes the folders of the shards that have none. undone is nil when nothing is in doubt.
func (s *daemonShards) openFolders(settings kvstore.FleetSettings, undone *unclean) error {
	for _, shard := range s.open {
		shard.Update(settings)
	}
	fleet, d := s.app.cli.Fleet, s.daemon
	for i := len(s.open); i < settings.Shards(); i++ {
		shard, err := kvstore.OpenShard(s.fold, settings, i, s.Name)
		if err != nil {
			return err
		}
		config := consumer.FolderConfig{
			Fleet: fleet, Shard: i, Holder: s.Name,
			Settings: d.settings, Roster: d.roster, Heartbeats: d.heartbeats, Balance: d.balance, Silence: s.Silence, MaxClaims: s.MaxClaims,
			PurgeAfter: time.Duration(s.PurgeAfter), Synced: s.Synced || d.server != nil,
			Reprovision: func(ctx context.Context) error {
				_, err := kvstore.Change(ctx, s.fold, fleet, func(*kvstore.FleetConfig) {})
				return err
			},
		}
		if d.server != nil {
			config.LeaseTTL = embeddedLease
		}
		if undone != nil {
			config.UncleanStart = d.server != nil && d.server.UncleanStart()
			config.AfterUnclean = undone.shardDone
		}
		folder, err := consumer.NewFolder(config, s.foldNC, s.fold, shard, s.app.now, s.log)
		if err != nil {
			return err
		}
		registerFolder(s.registry, fleet, i, folder.Stats())
		s.open, s.folders = append(s.open, shard), append(s.folders, folder)
		if s.run != nil {
			s.run(folder)
		}
	}
	return nil
}

// beats are when each folder last began something new, in nanoseconds since 1970; 0 before it runs.
func (s *daemonShards) beats() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	beats := make([]int64, len(s.folders))
	for i, f := range s.folders {
		beats[i] = f.Stats().Beat.Load()
	}
	return beats
}

// runFolders runs the folders, those that come later included.
func (s *daemonShards) runFolders(run func(*consumer.Folder)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = run
	for _, f := range s.folders {
		run(f)
	}
}
