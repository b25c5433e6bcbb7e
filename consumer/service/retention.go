package service

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// DefaultRetainEvery is how often a daemon removes runs that its fleet's policy does not keep.
const DefaultRetainEvery = time.Hour

// retainPause is the pause between two pages, which leaves the server to executors.
const retainPause = 100 * time.Millisecond

// RetentionWorker removes runs that a fleet's policy does not keep, in the shards that its daemon folds. It uses the
// plan of the verb cleanup. A replica that loses a shard leaves the rest to its successor; two at once do no harm.
type RetentionWorker struct {
	svc   *Service
	every time.Duration
	log   zerolog.Logger
}

// NewRetentionWorker returns the worker of a service's fleet. every is the interval.
func NewRetentionWorker(svc *Service, every time.Duration, log zerolog.Logger) *RetentionWorker {
	return &RetentionWorker{svc: svc, every: every, log: log.With().Str(logkey.Fleet, svc.cfg.Fleet).Logger()}
}

// Run removes runs until ctx ends, and then returns nil. The first pass is soon after the start. The service must
// run.
func (r *RetentionWorker) Run(ctx context.Context) error {
	wait := min(r.every, time.Minute)
	for pause.For(ctx, wait) == nil {
		wait = r.every
		for shard := range r.svc.routing.shards {
			if !r.svc.leads(shard) {
				continue
			}
			removed, err := r.shard(ctx, shard)
			if removed > 0 {
				r.log.Info().Int(logkey.Shard, shard).Int("runs", removed).Msg("runs removed by the fleet's policy")
			}
			if err != nil && ctx.Err() == nil {
				r.log.Warn().Err(err).Int(logkey.Shard, shard).Msg("retention policy not applied, trying again later")
				wait = min(r.every, time.Minute)
			}
		}
	}
	return nil
}

// shard reads the runs of a shard that ended long ago, once.
func (r *RetentionWorker) shard(ctx context.Context, shard int) (removed int, err error) {
	place := cleanupPlace{Shard: shard, Now: schema.FormatTime(r.svc.now())}
	for place.Shard == shard && r.svc.leads(shard) {
		req := schema.CleanupRequest{Limit: schema.DefaultList, After: placeText(&place)}
		var reply schema.CleanupReply
		work, cancel := context.WithTimeout(ctx, r.svc.cfg.Timeout)
		if reply.Policy, err = r.svc.fleetPolicy(work); err == nil {
			err = r.svc.cleanupPage(work, &req, sender{by: r.svc.cfg.Name}, &reply)
		}
		cancel()
		for i := range reply.Items {
			switch item := &reply.Items[i]; {
			case item.Remove && item.Failed == "":
				removed++
			case item.Remove:
				r.log.Warn().Int(logkey.Shard, shard).Str(logkey.Run, item.Run).Str("detail", item.Failed).Msg("run not removed by the fleet's policy, trying again later")
			}
		}
		if err != nil || reply.Next == "" {
			return removed, err
		}
		if err := readPlace(reply.Next, &place); err != nil {
			return removed, err
		}
		if err := pause.For(ctx, retainPause); err != nil {
			return removed, err
		}
	}
	return removed, nil
}
