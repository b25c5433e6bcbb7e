package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// settingsEvery is the interval at which a daemon reads its fleet's settings without an announcement.
	settingsEvery = 2 * time.Second
	// settingsPatience bounds one read.
	settingsPatience = 5 * time.Second
)

// Settings keeps a daemon up to date with the settings of its fleet, without a restart. It reads them from the leader
// every two seconds, and at once after an announcement on schema.SettingsSubject; it needs no consumer. If the silence
// changed, and when the daemon starts, it publishes an announcement.
type Settings struct {
	fleet  string
	fleets *kvstore.Fleets
	nc     *nats.Conn
	log    zerolog.Logger
	apply  func(schema.FleetSettings) error
	// refreshing: one version is applied after the other.
	refreshing sync.Mutex

	mu      sync.Mutex
	current schema.FleetSettings
	err     error
}

// ErrOtherShards is returned by a daemon whose fleet was replaced by one with another number of shards. Start it again.
var ErrOtherShards = errors.New("fleet has another number of shards than when the daemon started: start the daemon again")

// NewSettings follows the settings of a fleet from those that the daemon began with. apply is called with each new
// version, one after the other; if it fails, the same version is applied again later.
func NewSettings(current schema.FleetSettings, nc *nats.Conn, js jetstream.JetStream, log zerolog.Logger,
	apply func(schema.FleetSettings) error,
) *Settings {
	return &Settings{
		fleet: current.Fleet, fleets: kvstore.NewFleets(js), nc: nc, log: log.With().Str(logkey.Fleet, current.Fleet).Logger(),
		apply: apply, current: current,
	}
}

// Current returns the settings that were applied last.
func (s *Settings) Current() schema.FleetSettings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Err is the error of the last Refresh.
func (s *Settings) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Refresh reads the settings and applies changes.
func (s *Settings) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	err := s.refresh(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	return err
}

func (s *Settings) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settingsPatience)
	defer cancel()
	next, _, err := s.fleets.Get(ctx, s.fleet)
	if err != nil {
		return err
	}
	was := s.Current()
	if next.Shards != was.Shards {
		return fmt.Errorf("fleet %s: %w", s.fleet, ErrOtherShards)
	}
	if !reflect.DeepEqual(&next, &was) {
		if err := s.apply(next); err != nil {
			return fmt.Errorf("settings of fleet %s: %w", s.fleet, err)
		}
	}
	s.mu.Lock()
	s.current = next
	s.mu.Unlock()
	if next.SilenceMS != was.SilenceMS {
		s.log.Info().Dur("silence", next.Silence()).Msg("silence of executors changed")
		s.tell()
	}
	return nil
}

// tell announces that the settings changed.
func (s *Settings) tell() {
	if err := s.nc.Publish(schema.SettingsSubject(s.fleet), nil); err != nil {
		s.log.Debug().Err(err).Msg("settings change not announced; clients read it later")
	}
}

// Run follows the settings until ctx ends, and returns nil then, or [ErrOtherShards].
func (s *Settings) Run(ctx context.Context) error {
	told := make(chan struct{}, 1) // one pending announcement is enough
	sub, err := s.nc.Subscribe(schema.SettingsSubject(s.fleet), func(*nats.Msg) {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return fmt.Errorf("listen to %s: %w", schema.SettingsSubject(s.fleet), err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	s.tell()                                 // they may have changed while no daemon ran
	tick := time.NewTicker(settingsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-told:
		}
		err := s.Refresh(ctx)
		if errors.Is(err, ErrOtherShards) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("could not read settings of the fleet, trying again")
		}
	}
}
