package consumer

import (
	"context"
	"fmt"
	"slices"
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
	// settingsEvery is how often a daemon reads its fleet's settings although nobody told it of a change.
	settingsEvery = 2 * time.Second
	// settingsPatience bounds one reading.
	settingsPatience = 5 * time.Second
)

// Settings keeps a daemon up to date with the settings of its fleet: shards that are added come into service without a
// restart. It reads them from the leader every two seconds, and at once when it is told on schema.SettingsSubject or
// somebody must know; it costs no consumer. When the number of shards or the silence was changed, and when the daemon starts, it tells
// everybody.
type Settings struct {
	fleet  string
	fleets *kvstore.Fleets
	nc     *nats.Conn
	now    func() time.Time
	log    zerolog.Logger
	apply  func(schema.FleetSettings) error

	// turn is held by who reads.
	turn chan struct{}

	mu      sync.Mutex
	current schema.FleetSettings
	// read is when the latest reading began.
	read time.Time
}

// NewSettings follows the settings of a fleet from those that the daemon began with. apply is called with each new ones,
// one after the other; when it fails the same are applied again a little later.
func NewSettings(current schema.FleetSettings, nc *nats.Conn, js jetstream.JetStream, now func() time.Time, log zerolog.Logger,
	apply func(schema.FleetSettings) error,
) *Settings {
	return &Settings{
		fleet: current.Fleet, fleets: kvstore.NewFleets(js), nc: nc, now: now, log: log.With().Str(logkey.Fleet, current.Fleet).Logger(),
		apply: apply, turn: make(chan struct{}, 1), current: current,
	}
}

// Current are the settings that were applied last.
func (s *Settings) Current() schema.FleetSettings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Refresh reads the settings, unless a reading began after the time given, and applies what changed.
func (s *Settings) Refresh(ctx context.Context, after time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, settingsPatience)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return fmt.Errorf("settings of fleet %s: %w", s.fleet, context.Cause(ctx))
	}
	if s.readAfter(after) {
		return nil
	}
	began := s.now()
	next, _, err := s.fleets.Get(ctx, s.fleet)
	if err != nil {
		return err
	}
	was := s.Current()
	changed := !slices.Equal(next.Generations, was.Generations)
	silence := next.SilenceMS != was.SilenceMS
	if changed || kvstore.ConfigOf(&next) != kvstore.ConfigOf(&was) || !slices.Equal(next.Keys, was.Keys) {
		if err := s.apply(next); err != nil {
			return fmt.Errorf("settings of fleet %s: %w", s.fleet, err)
		}
	}
	s.mu.Lock()
	s.current, s.read = next, began
	s.mu.Unlock()
	if changed {
		s.log.Info().Ints("generations", next.Generations).Msg("shards of the fleet changed")
	}
	if silence {
		s.log.Info().Dur("silence", next.Silence()).Msg("silence of executors changed")
	}
	if changed || silence {
		s.tell()
	}
	return nil
}

// ShardOf returns the shard that a run belongs to: the one given, if the run begins there by the current number of shards or by an
// earlier one; else the one in which it begins now. Before it names another shard it reads the settings again, unless the latest
// reading began after seen.
func (s *Settings) ShardOf(ctx context.Context, run string, shard int, seen time.Time) (int, error) {
	if current := s.Current(); current.Holds(run, shard) {
		return shard, nil
	}
	if err := s.Refresh(ctx, seen); err != nil {
		return 0, err
	}
	current := s.Current()
	if current.Holds(run, shard) {
		return shard, nil
	}
	return schema.ShardsOf(run, current.Generations)[0], nil
}

func (s *Settings) readAfter(after time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read.After(after)
}

// tell tells everybody that there is something to read.
func (s *Settings) tell() {
	if err := s.nc.Publish(schema.SettingsSubject(s.fleet), nil); err != nil {
		s.log.Debug().Err(err).Msg("change of the fleet not told; who needs to know looks by itself")
	}
}

// Run follows the settings until ctx ends; it returns nil then.
func (s *Settings) Run(ctx context.Context) error {
	told := make(chan struct{}, 1) // more are no more news
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
	s.tell()                                 // they may have been changed while no daemon ran
	tick := time.NewTicker(settingsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-told:
		}
		if err := s.Refresh(ctx, s.now()); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("settings of the fleet not followed, trying again")
		}
	}
}
