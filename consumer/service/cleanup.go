package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/retention"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// removesAtOnce is the number of runs whose removal is ordered concurrently.
	removesAtOnce = 16
	// notReached is the failure of a run that was not removed in time.
	notReached = "not reached in time"
)

// cleanupPlace is where a page of a cleanup ends: below the entry Before in a shard's index of ended runs, 0 for a
// shard that was not begun. It is opaque to clients.
type cleanupPlace struct {
	Shard  int             `json:"s" check:"min=0"`
	Before schema.Revision `json:"b"`
	// Now is when the first page was planned: ages are computed from it.
	Now string `json:"n" check:"required,time"`
}

// cleanup plans a page of the runs that ended long ago, and removes the runs that the plan removes.
func (s *Service) cleanup(ctx context.Context, t *task, req *schema.CleanupRequest) (reply *schema.CleanupReply, err error) {
	reply = &schema.CleanupReply{Items: []schema.CleanupItem{}}
	if reply.Policy, err = s.cleanupPolicy(ctx, req); err != nil {
		return nil, err
	}
	var who sender
	if !req.DryRun {
		if who, err = t.sender(req.By); err != nil {
			return nil, err
		}
	}
	return reply, s.cleanupPage(ctx, req, who, reply)
}

// fleetPolicy reads the fleet's policy from its leader: no run is removed by a policy that was replaced before the
// request.
func (s *Service) fleetPolicy(ctx context.Context) (schema.RetentionPolicy, error) {
	settings, _, err := kvstore.NewFleets(s.js).Get(ctx, s.cfg.Fleet)
	if err != nil {
		return schema.RetentionPolicy{}, fmt.Errorf("policy of fleet %s: %w: %w", s.cfg.Fleet, eventlog.ErrStale, err)
	}
	return settings.Retention, nil
}

// cleanupPolicy returns the policy of a request, which keeps runs of unnamed statuses.
func (s *Service) cleanupPolicy(ctx context.Context, req *schema.CleanupRequest) (policy schema.RetentionPolicy, err error) {
	if req.Policy != nil {
		policy = *req.Policy
	} else if policy, err = s.fleetPolicy(ctx); err != nil {
		return policy, err
	}
	if len(req.Status) > 0 {
		for status, seconds := range map[schema.Status]*int64{
			schema.StatusCompleted: &policy.CompletedSeconds, schema.StatusFailed: &policy.FailedSeconds, schema.StatusCancelled: &policy.CancelledSeconds,
		} {
			if !slices.Contains(req.Status, status) {
				*seconds = 0
			}
		}
	}
	return policy, nil
}

// cleanupPage reads a page, plans it, and executes the plan.
func (s *Service) cleanupPage(ctx context.Context, req *schema.CleanupRequest, who sender, reply *schema.CleanupReply) error {
	place := cleanupPlace{Now: schema.FormatTime(s.now())}
	if req.After != "" {
		if err := readPlace(req.After, &place); err != nil {
			return err
		}
	}
	shards := s.routing.shards
	if place.Shard >= len(shards) || !reply.Policy.Removes() {
		return nil
	}
	src := shards[place.Shard]
	// Ages use the server's clock, like the times they are compared with: a daemon whose clock is ahead removes no
	// run early.
	now, err := s.noLater(ctx, src, schema.ParseTime(place.Now))
	if err != nil {
		return err
	}
	if place.Before == 0 {
		// Runs that are too young for every limit of the policy are not read.
		young, err := src.Store.PositionAt(ctx, now.Add(-reply.Policy.Least()))
		if err != nil {
			return err
		}
		if place.Before, err = src.Store.Checkpoints.EndedSince(ctx, young); err != nil {
			return err
		}
	}
	page, at, err := s.cleanupRuns(ctx, src, &place, req)
	if err != nil {
		return err
	}
	reply.Items = retention.Plan(page, reply.Policy, now)
	if !req.DryRun {
		s.carryOut(ctx, reply.Items, at, who)
	}
	if place.Before == 0 {
		place.Shard++
	}
	if place.Shard < len(shards) {
		reply.Next = placeText(&place)
	}
	return nil
}

// noLater returns the earlier of a time and the server's present time.
func (s *Service) noLater(ctx context.Context, src *reader.Source, at time.Time) (time.Time, error) {
	// An isolated former leader would answer, too, with its old time and runs.
	if _, err := src.Barrier.Wait(ctx); err != nil {
		return at, err
	}
	log, err := eventlog.AskLone(ctx, s.js, src.Store.Names, "")
	if err != nil {
		return at, fmt.Errorf("the server's time: %w", err)
	}
	if log.Now.Before(at) {
		return log.Now, nil
	}
	return at, nil
}

// cleanupRuns reads the removable runs of a page from the index of ended runs, and advances the place.
func (s *Service) cleanupRuns(ctx context.Context, src *reader.Source, place *cleanupPlace, req *schema.CleanupRequest) ([]retention.Run, map[string]schema.Position, error) {
	cps := src.Store.Checkpoints
	if err := s.routing.awaitIndexed(ctx, src); err != nil {
		return nil, nil, err
	}
	found, err := cps.Ended(ctx, kvstore.EndedQuery{Before: place.Before, Limit: cmp.Or(req.Limit, schema.DefaultList), Match: func(e *schema.Ended) bool {
		return len(req.Status) == 0 || slices.Contains(req.Status, e.Status)
	}})
	if err != nil {
		return nil, nil, err
	}
	place.Before = found.Next
	ids := make([]string, 0, len(found.Runs))
	for i := range found.Runs {
		if id := found.Runs[i].Run; !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return s.storedRuns(ctx, src, ids)
}

// storedRuns reads the facts about runs that a plan needs.
func (s *Service) storedRuns(ctx context.Context, src *reader.Source, ids []string) ([]retention.Run, map[string]schema.Position, error) {
	runs, at := make([]retention.Run, 0, len(ids)), make(map[string]schema.Position, len(ids))
	for len(ids) > 0 {
		list, _, err := src.Store.Checkpoints.Of(ctx, ids)
		if err != nil {
			return nil, nil, err
		}
		lasts, err := src.Store.LastStored(ctx, ids[:len(list)])
		if err != nil {
			return nil, nil, err
		}
		ids = ids[len(list):]
		for i := range list {
			stored := &list[i]
			if errors.Is(stored.Err, kvstore.ErrNotFound) || stored.Err == nil && stored.Checkpoint.Status == schema.StatusErased {
				continue // the index may have extra names
			}
			if stored.Err != nil {
				runs = append(runs, retention.Run{ID: stored.Run, Unreadable: true})
				continue
			}
			c := stored.Checkpoint
			run := retention.RunOf(c, c.Segments.Bytes+c.TailBytes)
			if run.Forks, _, err = s.forksOf(ctx, &c.Head); err != nil {
				return nil, nil, err
			}
			// An executor's clock may be wrong: the time at which the server stored the run's last event is used.
			last, ok := lasts[c.Run]
			run.Last = last.Stored
			run.Unreadable = run.Unreadable || !ok || last.At != c.Position.Stream
			runs, at[c.Run] = append(runs, run), c.Position
		}
	}
	return runs, at, nil
}

// carryOut executes a plan, and notes failures in it: one run's failure must not block others. Runs that it does not
// reach in time are left to the next cleanup.
func (s *Service) carryOut(ctx context.Context, items []schema.CleanupItem, at map[string]schema.Position, who sender) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout*2/3) // the answer must arrive, too
	defer cancel()
	var group errgroup.Group
	group.SetLimit(removesAtOnce)
	for i := range items {
		if items[i].Remove {
			group.Go(func() error {
				s.removePlanned(ctx, &items[i], at[items[i].Run], who)
				return nil
			})
		}
	}
	_ = group.Wait() // each notes its failure
}

// removePlanned removes a run as planned, and notes a failure.
func (s *Service) removePlanned(ctx context.Context, item *schema.CleanupItem, at schema.Position, who sender) {
	if ctx.Err() != nil {
		item.Failed = notReached
		return
	}
	_, _, err := s.remove(ctx, item.Run, removal{sender: who, reason: string(item.Why), at: at})
	var told *schema.ServiceError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		item.Failed = notReached
	case errors.As(err, &told):
		item.Failed = told.Message
	case errors.Is(err, reader.ErrNoRun):
		item.Failed = "there is no such run"
	default:
		s.log.Warn().Err(err).Str(logkey.Run, item.Run).Msg("run not removed by this cleanup")
		item.Failed = err.Error()
	}
}
