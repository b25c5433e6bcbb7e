package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// retryPoll is how often a retry looks whether the folder is done with the run.
const retryPoll = 10 * time.Millisecond

// retry has the folder of a parked run's shard fold it now, and answers with what came of it. A replica that does not fold the shard does not
// answer.
func (s *Service) retry(ctx context.Context, t *task) error {
	sources := s.places.Load().of(t.run)
	for _, src := range sources {
		before, err := parkedAs(ctx, src, t.run)
		if err != nil {
			return err
		}
		if before == nil {
			continue
		}
		parked := s.parkedHere(src)
		if parked == nil {
			return nil
		}
		s.log.Info().Str(keyRun, t.run).Str("by", t.proven).Msg("parked run is to be folded again")
		parked.hurry(t.run)
		now := before
		for now != nil && *now == *before {
			if pause(ctx, retryPoll) != nil {
				return fail(schema.CodeUnavailable, "Ask again, or look at waymark doctor.", "run %s was not folded within %s", t.run, s.cfg.Timeout)
			}
			if now, err = parkedAs(ctx, src, t.run); err != nil {
				return err
			}
		}
		return t.whole(schema.RetryReply{Run: t.run, Tried: true, Parked: now})
	}
	if s.parkedHere(sources[0]) == nil {
		return nil // one replica says that there is nothing to do
	}
	return t.whole(schema.RetryReply{Run: t.run})
}

// parkedHere has the parked runs of a shard that this process folds; nil for another shard.
func (s *Service) parkedHere(src *shardSource) *parking {
	if s.cfg.Folder == nil {
		return nil
	}
	f := s.cfg.Folder(src.store.Names.Shard)
	if f == nil {
		return nil
	}
	return f.parkedNow.Load()
}

// parkedAs is how a shard's watermark names a parked run; nil when it does not.
func parkedAs(ctx context.Context, src *shardSource, run string) (*schema.ParkedRun, error) {
	mark, _, err := src.store.Checkpoints.Watermark(ctx)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	if i := slices.IndexFunc(mark.Parked, func(p schema.ParkedRun) bool { return p.Run == run }); i >= 0 {
		return &mark.Parked[i], nil
	}
	return nil, nil //nolint:nilnil // it is not parked
}
