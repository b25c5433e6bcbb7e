package kvstore

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Quota is the byte limit of the event stream in the fleet's settings; [UnlimitedQuota] for none.
func (s *Shard) Quota() int64 { return s.settings.Load().QuotaBytes }

// LiftQuota makes room for need bytes of the daemon's own control events in a full event stream. It raises the
// stream's limit by exactly that above the stored size, at most to quota and reserve, so that executors can use
// little of the room; need is the event's [StoredSize]. With enough room below the quota, or with need 0 once usage
// has fallen, the limit returns to the quota; it is never set below the stored size. It returns the limit in force.
//
// It returns [ErrFull] if the reserve is used up: seal and purge, or raise the quota. Executors publish into the same
// room, so a control event may still find the stream full: lift again.
//
// The server replaces the whole configuration of a stream without a comparison. So a write uses settings that were
// read from the leader just before, and is repeated if they have changed after it. [Change] verifies the streams
// again after it stored the settings. Whichever of the two writes last, the other checks after it.
func (s *Shard) LiftQuota(ctx context.Context, need int64) (limit int64, err error) {
	if need < 0 {
		return 0, fmt.Errorf("lift quota of %s: need is %d bytes: use 0 or more", s.Names.EventStream(), need)
	}
	// The known settings show whether a write is needed, which is rare.
	info, err := s.info(ctx)
	if err != nil {
		return 0, err
	}
	target, err := s.liftTo(s.settings.Load(), info, need)
	if err == nil && target == info.Config.MaxBytes {
		return target, nil
	}
	p := provisioner{js: s.js, fleets: NewFleets(s.js)}
	settings, rev, err := p.fleets.Get(ctx, s.Names.Fleet)
	if err != nil {
		return info.Config.MaxBytes, fmt.Errorf("lift quota of %s: %w", s.Names.EventStream(), err)
	}
	for range provisionTries {
		s.Update(settings)
		if info, err = s.info(ctx); err != nil {
			return 0, err
		}
		limit = info.Config.MaxBytes
		if target, err = s.liftTo(&settings, info, need); err != nil || target == limit {
			return limit, err
		}
		if err := s.setLimit(ctx, info.Config, target); err != nil {
			return limit, err
		}
		before := settings
		seen := rev
		if settings, rev, err = p.fleets.Get(ctx, s.Names.Fleet); err != nil {
			return target, fmt.Errorf("lift quota of %s: %w", s.Names.EventStream(), err)
		}
		if rev == seen {
			return target, nil
		}
		old := eventStream(s.Names, &before)
		if err := p.ensure(ctx, resource{
			want: eventStream(s.Names, &settings), old: &old, truth: true, existed: true,
			reserve: settings.ReserveBytes, oldReserve: before.ReserveBytes,
		}); err != nil {
			return target, fmt.Errorf("lift quota of %s: %w", s.Names.EventStream(), err)
		}
	}
	return limit, fmt.Errorf("lift quota of %s: the settings of fleet %s keep changing: %w", s.Names.EventStream(), s.Names.Fleet, ErrConflict)
}

// liftTo is the limit that a stream needs under the fleet's settings. With [ErrFull] it has it already.
func (s *Shard) liftTo(settings *schema.FleetSettings, info *jetstream.StreamInfo, need int64) (int64, error) {
	quota, most, usage := settings.QuotaBytes, settings.QuotaBytes+settings.ReserveBytes, usageOf(info)
	switch {
	case quota == UnlimitedQuota:
		return usage.Limit, nil
	case need == 0:
		return max(quota, usage.Bytes), nil
	case need > most || usage.Bytes > most-need:
		return usage.Limit, fmt.Errorf("lift quota of %s: %d bytes stored of %d and a reserve of %d: %w",
			s.Names.EventStream(), usage.Bytes, quota, settings.ReserveBytes, ErrFull)
	default:
		return max(quota, min(usage.Bytes+need, most)), nil
	}
}

func (s *Shard) setLimit(ctx context.Context, cfg jetstream.StreamConfig, limit int64) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	cfg.MaxBytes = limit
	if _, err := s.js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("set limit of %s to %d bytes: %w", cfg.Name, limit, translate(err))
	}
	return nil
}
