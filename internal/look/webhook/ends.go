package webhook

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/schema"
)

const (
	// endType is the type of posts about ends.
	endType = "run.finished"
	// endPatience is how long a post about an end is repeated that the receiver refuses.
	endPatience = 72 * time.Hour
)

// Page are ends of a shard's runs, in the order of the log. Accepted records that the receiver has accepted them.
type Page struct {
	Ends     []schema.RunSummary
	Accepted func(ctx context.Context) error
}

// followEnds posts the ends of a shard's runs, a page after the other, while the daemon folds the shard. A page that was
// not recorded is posted again, with the same ids.
func (w *Watch) followEnds(ctx context.Context, shard int) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		page, err := w.deps.Ends(ctx, shard)
		if err == nil && len(page.Ends) > 0 && w.postPage(ctx, shard, page.Ends) {
			err = page.Accepted(ctx)
		}
		if err != nil && ctx.Err() == nil {
			w.deps.Log.Warn().Err(err).Int("shard", shard).Msg("ends of runs not posted, trying again")
		}
	}
}

// postPage posts ends, those of one run in order. It is false if the daemon stops, or does not fold the shard any more.
func (w *Watch) postPage(ctx context.Context, shard int, ends []schema.RunSummary) bool {
	of := make(map[string][]schema.RunSummary)
	for _, e := range ends {
		of[e.Run] = append(of[e.Run], e)
	}
	var group errgroup.Group
	group.SetLimit(postsAtOnce)
	for _, list := range of {
		group.Go(func() error {
			for i := range list {
				if err := w.postEnd(ctx, shard, &list[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait() == nil
}

// postEnd posts an end until the receiver accepts it, or has refused it for endPatience.
func (w *Watch) postEnd(ctx context.Context, shard int, e *schema.RunSummary) error {
	id := schema.FinishedID(e)
	body, err := w.event(id, endType, e.Run, e.UpdatedAt, struct {
		Fleet string `json:"fleet"`
		*schema.RunSummary
	}{w.cfg.Fleet, e})
	if err != nil {
		return err
	}
	log := w.deps.Log.With().Str("run", e.Run).Str("id", id).Logger()
	var again retry
	for began := w.deps.Now(); ; {
		if err = w.post(ctx, id, body); err == nil {
			w.stats.Taken.Add(1)
			w.stats.EndsFailing.Store(nil)
			log.Info().Msg("webhook accepted")
			return nil
		}
		now := w.deps.Now()
		w.stats.Failed.Add(1)
		w.stats.EndsFailing.CompareAndSwap(nil, newFailing(time.Time{}, now, err))
		if now.Sub(began) > endPatience {
			log.Error().Err(err).Msg("webhook given up")
			return nil
		}
		pause := again.failed(now)
		log.Warn().Err(err).Dur("again_in", pause).Msg("webhook not accepted")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if !w.deps.Leads(shard) {
			return errNotLeader
		}
	}
}
