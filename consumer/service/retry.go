package service

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// retry has the shard's fold worker fold a parked run now, and answers with the result. Replicas that do not fold the
// shard do not answer.
func (s *Service) retry(ctx context.Context, t *task) error {
	sources := s.routing.of(t.run)
	for _, src := range sources {
		f := s.foldsHere(src)
		if f == nil || !f.Parked(t.run) {
			continue
		}
		s.log.Info().Str(logkey.Run, t.run).Str("by", t.proven).Msg("parked run folded again on request")
		parked, err := f.Retry(ctx, t.run)
		if err != nil {
			return schema.Fail(schema.CodeUnavailable, "Ask again, or look at waymark doctor.", "run %s was not folded in time", t.run)
		}
		return t.whole(schema.RetryReply{Run: t.run, Tried: true, Parked: parked})
	}
	if s.foldsHere(sources[0]) == nil {
		return nil // one replica answers that no work is to do
	}
	for _, src := range sources {
		mark, _, err := src.Store.Checkpoints.Watermark(ctx)
		switch {
		case err != nil && !errors.Is(err, kvstore.ErrNotFound):
			return err
		case slices.ContainsFunc(mark.Parked, func(p schema.ParkedRun) bool { return p.Run == t.run }):
			return nil // the replica that folds this shard answers
		}
	}
	if _, err := s.routing.proven(ctx, t.run, reader.Head); err != nil {
		return err // the run may not exist
	}
	return t.whole(schema.RetryReply{Run: t.run})
}

// folds reports whether this process folds a shard that can hold the run.
func (s *Service) folds(run string) bool {
	return slices.ContainsFunc(s.routing.of(run), func(src *reader.Source) bool { return s.foldsHere(src) != nil })
}

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
