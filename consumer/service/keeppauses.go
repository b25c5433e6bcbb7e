package service

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// keepEvery is how often the pauses are compared with the time.
const keepEvery = time.Second

// pauseKeeper ends the fleet's pauses that are over, and pauses the shares of budgets that are used up. Only the daemon that
// folds shard 0 does so, and only by the server's clock.
type pauseKeeper struct {
	svc   *Service
	clock *liveness.ServerClock
	// crowded logs budgets that have no room for a pause.
	crowded zerolog.Logger
	changed chan struct{}

	mu sync.Mutex
	// spent are the tokens of each shard.
	spent map[int]kvstore.Spent
}

// keepPauses keeps the pauses until ctx ends.
func (s *Service) keepPauses(ctx context.Context) {
	k := &pauseKeeper{
		svc: s, clock: liveness.NewServerClock(s.js, s.routing.shards[0].Store, s.now), changed: make(chan struct{}, 1),
		spent: make(map[int]kvstore.Spent), crowded: s.log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute}),
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { k.watch(ctx) })
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.changed:
		}
		within, cancel := context.WithTimeout(ctx, pauseWithin)
		err := k.keep(within)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("pauses not compared with time and budgets, trying again")
		}
	}
}

// counts reports whether this daemon adds the tokens of budgets up.
func (k *pauseKeeper) counts() bool { return k.svc.hasBudgets() && k.svc.leads(0) }

// hasBudgets reports whether a limit of the fleet has a budget.
func (s *Service) hasBudgets() bool {
	return slices.ContainsFunc(s.cfg.Settings().Limits, func(l schema.Limit) bool { return l.DayTokens > 0 })
}

// watch follows what the shards have spent until ctx ends.
func (k *pauseKeeper) watch(ctx context.Context) {
	for pause.For(ctx, keepEvery) == nil {
		if !k.counts() {
			continue
		}
		err := kvstore.WatchSpent(ctx, k.svc.js, k.svc.cfg.Fleet, func(shard int, spent *kvstore.Spent) bool {
			if spent != nil {
				k.mu.Lock()
				k.spent[shard] = *spent
				k.mu.Unlock()
				select {
				case k.changed <- struct{}{}:
				default:
				}
			}
			return k.counts()
		})
		if err != nil && ctx.Err() == nil {
			k.svc.log.Warn().Err(err).Msg("tokens of budgets not read, trying again")
		}
	}
}

// keep stores the pauses that are to be in effect now, and stops the runs of new ones.
func (k *pauseKeeper) keep(ctx context.Context) error {
	s := k.svc
	settings := s.cfg.Settings()
	timed := slices.ContainsFunc(settings.Pauses, func(p schema.Pause) bool { return p.Until != "" })
	if !timed && !k.counts() || !s.leads(0) {
		return nil
	}
	served, err := k.clock.Now(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	used := sumSpent(slices.Collect(maps.Values(k.spent)), served)
	k.mu.Unlock()
	next, left := keptPauses(&settings, used, served, s.cfg.Name)
	if left > 0 {
		k.crowded.Error().Int("budgets", left).Str("hint", "give budgets to labels with fewer values: waymark limit ls").
			Msg("budgets are used up, and the fleet has no room to pause their runs")
	}
	if reflect.DeepEqual(next, settings.Pauses) {
		return nil
	}
	changed, err := kvstore.NewFleets(s.js).KeepPauses(ctx, s.cfg.Fleet, func(f *schema.FleetSettings) []schema.Pause {
		next, _ = keptPauses(f, used, served, s.cfg.Name)
		return next
	})
	if err != nil || !changed {
		return err
	}
	s.log.Info().Int("pauses", len(next)).Msg("pauses changed by time and budgets")
	if err := s.settingsChanged(ctx); err != nil {
		return err
	}
	s.stopNow(ctx)
	return nil
}

// stopNow writes the pauses into the logs of the runs that this daemon knows. stopRuns does so for later ones.
func (s *Service) stopNow(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(stopsAtOnce)
	for shard := range s.routing.shards {
		for _, run := range s.liveRuns.Unstopped(shard) {
			group.Go(func() error {
				s.stopRun(ctx, s.refusals, run)
				return nil
			})
		}
	}
	_ = group.Wait() // stopRun logs its errors
}

// sumSpent adds up what shards have spent on the day of a time, by the share.
func sumSpent(list []kvstore.Spent, at time.Time) (sum []kvstore.SpentShare) {
	index, day := make(map[string]int), at.UTC().Format(time.DateOnly)
	for i := range list {
		if list[i].Day != day {
			continue
		}
		for _, share := range list[i].Shares {
			flags := share.Flags()
			if n, ok := index[flags]; ok {
				sum[n].Tokens += share.Tokens
				continue
			}
			index[flags] = len(sum)
			sum = append(sum, share)
		}
	}
	slices.SortFunc(sum, func(a, b kvstore.SpentShare) int {
		return cmp.Or(cmp.Compare(b.Tokens, a.Tokens), cmp.Compare(a.Flags(), b.Flags()))
	})
	return sum
}

// keptPauses are the pauses of a fleet at a time of the server's clock: those that are not over, but for those of a budget that
// was changed or ended, and one for each share of a budget that is used up. A day's tokens only grow: to know too few of them
// delays a pause, and ends none. left counts the used-up shares beyond schema.MaxBudgetPauses.
func keptPauses(f *schema.FleetSettings, used []kvstore.SpentShare, served time.Time, by string) (list []schema.Pause, left int) {
	list = slices.DeleteFunc(slices.Clone(f.Pauses), func(p schema.Pause) bool {
		stands := func(l schema.Limit) bool { return l.DayTokens == p.DayTokens && l.Flags() == p.Limit }
		return p.Over(served) || p.Limit != "" && !slices.ContainsFunc(f.Limits, stands)
	})
	room := schema.MaxBudgetPauses
	for i := range list {
		if list[i].Limit != "" {
			room--
		}
	}
	midnight := served.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	for i := range f.Limits {
		l := &f.Limits[i]
		for j := range used {
			share := &used[j]
			there := func(p schema.Pause) bool { return p.Limit != "" && p.Same(&share.Scope) }
			switch {
			case l.DayTokens == 0 || share.Tokens < l.DayTokens || !l.HasShare(&share.Scope) || slices.ContainsFunc(list, there):
				continue
			case room == 0:
				left++
				continue
			}
			room--
			list = append(list, schema.Pause{
				Scope: share.Scope, Limit: l.Flags(), DayTokens: l.DayTokens, By: by,
				Reason: fmt.Sprintf("its budget of %s tokens a day is used up: %s", grouped(l.DayTokens), grouped(share.Tokens)),
				Since:  schema.FormatTime(served.Truncate(time.Second)), Until: schema.FormatTime(midnight),
			})
		}
	}
	return list, left
}

// grouped writes a number with a comma before each three digits.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
