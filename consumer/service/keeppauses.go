package service

import (
	"context"
	"slices"
	"time"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// keepEvery is how often the pauses are compared with the time.
const keepEvery = time.Second

// keepPauses ends the fleet's pauses that are over, until ctx ends. Only the daemon that folds shard 0 does so, and only by
// the server's clock: a pause that ends late only makes runs wait.
func (s *Service) keepPauses(ctx context.Context) {
	clock := liveness.NewServerClock(s.js, s.routing.shards[0].Store, s.now)
	for pause.For(ctx, keepEvery) == nil {
		timed := slices.ContainsFunc(s.cfg.Settings().Pauses, func(p schema.Pause) bool { return p.Until != "" })
		if !timed || !s.leads(0) {
			continue
		}
		within, cancel := context.WithTimeout(ctx, pauseWithin)
		err := s.endPauses(within, clock)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("pauses that may be over are not ended, trying again")
		}
	}
}

// endPauses ends the pauses that are over.
func (s *Service) endPauses(ctx context.Context, clock *liveness.ServerClock) error {
	served, err := clock.Now(ctx)
	if err != nil {
		return err
	}
	over := func(p schema.Pause) bool { return p.Over(served) }
	if !slices.ContainsFunc(s.cfg.Settings().Pauses, over) {
		return nil
	}
	changed, err := kvstore.NewFleets(s.js).KeepPauses(ctx, s.cfg.Fleet, func(f *schema.FleetSettings) []schema.Pause {
		return slices.DeleteFunc(slices.Clone(f.Pauses), over)
	})
	if err != nil || !changed {
		return err
	}
	s.log.Info().Msg("pauses ended at their time")
	return s.settingsChanged(ctx)
}
