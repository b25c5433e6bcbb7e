package service

import (
	"context"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// retry has the shard's fold worker fold a parked run now, and answers with the result. Replicas that do not fold the
// shard do not answer.
func (s *Service) retry(ctx context.Context, t *task) error {
	f := s.foldsHere(s.routing.of(t.run))
	if f == nil {
		return nil
	}
	if f.Parked(t.run) {
		s.log.Info().Str(logkey.Run, t.run).Str("by", t.proven).Msg("parked run folded again on request")
		parked, err := f.Retry(ctx, t.run)
		if err != nil {
			return schema.Fail(schema.CodeUnavailable, "Ask again, or look at waymark doctor.", "run %s was not folded in time", t.run)
		}
		return t.whole(schema.RetryReply{Run: t.run, Tried: true, Parked: parked})
	}
	if _, err := s.routing.proven(ctx, t.run, reader.Head); err != nil {
		return err // the run may not exist
	}
	return t.whole(schema.RetryReply{Run: t.run})
}

// folds reports whether this process folds the shard of the run.
func (s *Service) folds(run string) bool { return s.foldsHere(s.routing.of(run)) != nil }

// foldsHere is the fold worker of a shard in this process; nil for none.
func (s *Service) foldsHere(src *reader.Source) Worker {
	if s.cfg.Worker == nil {
		return nil
	}
	f := s.cfg.Worker(src.Store.Names.Shard)
	if f == nil || !f.Folds() {
		return nil
	}
	return f
}
