package kvstore

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Settings are the fleet's, as the shard knows them. They are not to be changed.
func (s *Shard) Settings() *schema.FleetSettings { return s.settings.Load() }

// LiftQuota makes room for need bytes of the daemon's own control events in a full event stream. It raises the
// stream's limit by exactly that above the stored size, at most to quota and reserve, so that executors can use
// little of the room; need is the event's [StoredSize]. With enough room below the quota, or with need 0 once usage
// has fallen, the limit returns to the quota, unless [Shard.Throttle] has closed the log; it is never set below the
// stored size. It returns the limit in force.
//
// It returns [ErrFull] if the reserve is used up: seal and purge, or raise the quota. Executors publish into the same
// room, so a control event may still find the stream full: lift again.
func (s *Shard) LiftQuota(ctx context.Context, need int64) (limit int64, err error) {
	if need < 0 {
		return 0, fmt.Errorf("lift quota of %s: need is %d bytes: use 0 or more", s.Names.EventStream(), need)
	}
	return s.setLog(ctx, func(settings *schema.FleetSettings, info *jetstream.StreamInfo) (int64, error) {
		return s.liftTo(settings, info, need)
	})
}

// setLog gives the event stream the limit that target derives from the settings and the stream's state, and returns
// the limit in force.
func (s *Shard) setLog(ctx context.Context, target func(*schema.FleetSettings, *jetstream.StreamInfo) (int64, error)) (limit int64, err error) {
	err = s.adjust(ctx, func(next, old *schema.FleetSettings) resource {
		was := eventStream(s.Names, old)
		return resource{
			want: eventStream(s.Names, next), old: &was, truth: true, existed: true,
			reserve: next.ReserveBytes, oldReserve: old.ReserveBytes,
		}
	}, func(settings *schema.FleetSettings, info *jetstream.StreamInfo) (jetstream.StreamConfig, error) {
		limit = info.Config.MaxBytes
		to, err := target(settings, info)
		config := info.Config
		if err == nil {
			limit, config.MaxBytes = to, to
		}
		return config, err
	})
	return limit, err
}

// adjust gives a stream of the shard the configuration that set derives from the settings and the stream's state.
//
// The server replaces the whole configuration of a stream without a comparison. So a write uses settings that were
// read from the leader just before, and is repeated if they have changed after it. [Change] verifies the streams
// again after it stored the settings. Whichever of the two writes last, the other checks after it.
func (s *Shard) adjust(ctx context.Context, of func(next, old *schema.FleetSettings) resource,
	set func(*schema.FleetSettings, *jetstream.StreamInfo) (jetstream.StreamConfig, error),
) error {
	known := s.settings.Load()
	stream := of(known, known).want.Name
	fail := func(err error) error { return fmt.Errorf("adjust limits of %s: %w", stream, err) }
	// The known settings show whether a write is needed, which is rare.
	info, err := streamInfo(ctx, s.js, stream)
	if err != nil {
		return err
	}
	same := func(c *jetstream.StreamConfig) bool {
		return c.MaxBytes == info.Config.MaxBytes && c.MaxMsgsPerSubject == info.Config.MaxMsgsPerSubject
	}
	if config, err := set(known, info); err == nil && same(&config) {
		return nil
	}
	p := provisioner{js: s.js, fleets: NewFleets(s.js)}
	settings, rev, err := p.fleets.Get(ctx, s.Names.Fleet)
	if err != nil {
		return fail(err)
	}
	for range provisionTries {
		s.Update(settings)
		if info, err = streamInfo(ctx, s.js, stream); err != nil {
			return err
		}
		config, err := set(&settings, info)
		if err != nil || same(&config) {
			return err
		}
		if err := s.update(ctx, config); err != nil {
			return err
		}
		before, seen := settings, rev
		if settings, rev, err = p.fleets.Get(ctx, s.Names.Fleet); err != nil {
			return fail(err)
		}
		if rev == seen {
			return nil
		}
		if err := p.ensure(ctx, of(&settings, &before)); err != nil {
			return fail(err)
		}
	}
	return fail(fmt.Errorf("the settings of fleet %s keep changing: %w", s.Names.Fleet, ErrConflict))
}

// liftTo is the limit that a stream needs under the fleet's settings. With [ErrFull] it has it already.
func (s *Shard) liftTo(settings *schema.FleetSettings, info *jetstream.StreamInfo, need int64) (int64, error) {
	quota, most, usage := settings.QuotaBytes, settings.QuotaBytes+settings.ReserveBytes, UsageOf(info)
	open := quota // what executors may use
	if s.closed.Load() || usage.Limit < quota {
		open = 1 // this or another daemon has closed the log
	}
	switch {
	case quota == UnlimitedQuota:
		return usage.Limit, nil
	case need == 0:
		return max(open, usage.Bytes), nil
	case need > most || usage.Bytes > most-need:
		return usage.Limit, fmt.Errorf("lift quota of %s: %d bytes stored of %d and a reserve of %d: %w",
			s.Names.EventStream(), usage.Bytes, quota, settings.ReserveBytes, ErrFull)
	default:
		return max(open, min(usage.Bytes+need, most)), nil
	}
}

func (s *Shard) update(ctx context.Context, config jetstream.StreamConfig) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	if _, err := s.js.UpdateStream(ctx, config); err != nil {
		return fmt.Errorf("set limits of %s to %d bytes: %w", config.Name, config.MaxBytes, translate(err))
	}
	return nil
}

const (
	// growth is how many bytes of checkpoints an event may cause beyond its own size: a short run has a checkpoint and
	// index entries larger than its events.
	growth = 4 << 10
	// growthRate is the assumed maximal rate at which checkpoints grow, in bytes a second: it determines the next look.
	growthRate = 200 << 20
	// throttleMin and throttleMax bound the pauses between two looks; a closed log is looked at after throttleClosed.
	throttleMin, throttleMax, throttleClosed = 50 * time.Millisecond, 5 * time.Second, time.Second
)

// Throttle keeps room for the daemon in the shard's buckets. Executors cannot write there, but their events let both
// grow, and the verdict about an event must not depend on room. So while the checkpoints have used up the quota, or with
// those that the events after folded may still cause half of the reserve, the log is closed: its limit is what it has
// stored, publishers wait as for a full log, and control events come in by [Shard.LiftQuota]. A bucket above the quota keeps the last
// checkpoint of each run. Segments are refused from the quota on ([ErrFull]): their events stay in the log.
//
// Only the holder of the shard's lease calls it, again after the returned pause.
func (s *Shard) Throttle(ctx context.Context, folded schema.StreamSequence) (time.Duration, error) {
	settings := s.settings.Load()
	quota := settings.QuotaBytes
	if quota == UnlimitedQuota {
		s.closed.Store(false)
		s.Segments.room.Store(math.MaxInt64)
		return throttleMax, nil
	}
	segments, err := streamInfo(ctx, s.js, s.Segments.bucket.stream)
	if err != nil {
		return 0, err
	}
	checkpoints, err := streamInfo(ctx, s.js, s.Checkpoints.bucket.stream)
	if err != nil {
		return 0, err
	}
	log, err := s.Usage(ctx)
	if err != nil {
		return 0, err
	}
	s.Segments.room.Store(quota - UsageOf(segments).Bytes)
	waiting := min(max(log.Last, folded)-folded, schema.StreamSequence(log.Messages))
	share := float64(waiting) / float64(max(log.Messages, 1))
	used := UsageOf(checkpoints).Bytes
	room := min(quota-used, quota+settings.ReserveBytes/2-used-int64(share*float64(log.Bytes))-growth*int64(waiting)) //nolint:gosec // a number of messages
	s.closed.Store(room <= 0)
	if err := s.keepHistory(ctx, used); err != nil {
		return 0, err
	}
	if _, err := s.setLog(ctx, s.throttled); err != nil {
		return 0, err
	}
	if room <= 0 {
		return throttleClosed, nil
	}
	return max(throttleMin, min(throttleMax, time.Duration(float64(room)/growthRate*float64(time.Second)))), nil
}

// throttled is the limit of an event stream after a look of [Shard.Throttle].
func (s *Shard) throttled(settings *schema.FleetSettings, info *jetstream.StreamInfo) (int64, error) {
	limit, used := info.Config.MaxBytes, max(int64(info.State.Bytes), 1) //nolint:gosec // a size on disk
	switch closed := s.closed.Load(); {
	case closed && limit > used+closedSlack:
		return used, nil
	case !closed && limit < settings.QuotaBytes:
		return max(settings.QuotaBytes, used), nil
	}
	return limit, nil
}

// closedSlack is how much of a closed log may be free: room that was made for a control event.
const closedSlack = 64 << 10

// Closed reports whether the shard's log is closed for lack of room for checkpoints, as far as this process knows.
func (s *Shard) Closed() bool { return s.closed.Load() }

// keepHistory lets a bucket with so many bytes of checkpoints keep only the last of each run, until it is half empty.
func (s *Shard) keepHistory(ctx context.Context, used int64) error {
	return s.adjust(ctx, func(next, old *schema.FleetSettings) resource {
		was := checkpointStream(s.Names, old)
		return resource{want: checkpointStream(s.Names, next), old: &was, existed: true}
	}, func(settings *schema.FleetSettings, info *jetstream.StreamInfo) (jetstream.StreamConfig, error) {
		config := info.Config
		switch {
		case used >= settings.QuotaBytes:
			config.MaxMsgsPerSubject = 1
		case used < settings.QuotaBytes/2:
			config.MaxMsgsPerSubject = int64(settings.CheckpointsPerRun)
		}
		return config, nil
	})
}
