package kvstore

import (
	"context"
	"fmt"
)

// liftSlack is added to what is asked for: the server counts subject and record overhead of each message.
const liftSlack = 4 << 10

// Quota is the limit that the fleet's settings give to the event stream, in bytes; [UnlimitedQuota] for none.
func (s *Shard) Quota() int64 { return s.settings.Load().QuotaBytes }

// LiftQuota makes room for need bytes of the daemon's own control events in a full event stream: it raises
// the stream's limit to just above what is stored, at most to quota and reserve, so that executors find
// little of the room. With room enough below the quota, or with need 0 once usage has fallen, the limit goes
// back to the quota; it is never set below what is stored. It returns the limit in force.
//
// It returns [ErrFull] when the reserve is used up: seal and purge, or raise the quota. Executors publish
// into the same room, so a control event may still find the stream full: lift again.
func (s *Shard) LiftQuota(ctx context.Context, need int64) (limit int64, err error) {
	if need < 0 {
		return 0, fmt.Errorf("lift quota of %s: need is %d bytes: use 0 or more", s.Names.EventStream(), need)
	}
	info, err := s.info(ctx)
	if err != nil {
		return 0, err
	}
	settings := s.settings.Load()
	quota, most := settings.QuotaBytes, settings.QuotaBytes+settings.ReserveBytes
	usage := usageOf(info)
	if quota == UnlimitedQuota {
		return usage.Limit, nil
	}
	target := max(quota, usage.Bytes)
	if need > 0 {
		if need > most || usage.Bytes > most-need {
			return usage.Limit, fmt.Errorf("lift quota of %s: %d bytes stored of %d and a reserve of %d: %w",
				s.Names.EventStream(), usage.Bytes, quota, settings.ReserveBytes, ErrFull)
		}
		target = max(quota, min(usage.Bytes+need+liftSlack, most))
	}
	if target == usage.Limit {
		return target, nil
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	cfg := info.Config
	cfg.MaxBytes = target
	if _, err := s.js.UpdateStream(ctx, cfg); err != nil {
		return usage.Limit, fmt.Errorf("set limit of %s to %d bytes: %w", s.Names.EventStream(), target, translate(err))
	}
	return target, nil
}
