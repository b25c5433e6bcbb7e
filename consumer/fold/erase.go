package fold

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/retention"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// erase makes a run one that was removed, when the mark that was folded last belongs to a record of its removal. Who may
// publish events could forge a mark, and does nothing with it: the records are the daemon's own.
//
// The checkpoint that says so is put with the batch; what there is of the run is taken out behind that, see package retention.
func (s *term) erase(ctx context.Context, b *batch, r *run, mark *schema.Event) error {
	was := r.head.Status
	record, err := s.erasure(ctx, r.id, mark.ID)
	if record == nil || err != nil {
		return err
	}
	r.erase(s.cfg.Fleet, mark.Time)
	b.erased = append(b.erased, r.id)
	s.log.Info().Str(logkey.Run, r.id).Str("was", string(was)).Str("by", record.By).Str("erasure", record.ID).Msg("run is being removed")
	return nil
}

// erasure returns the record of a run's removal that a mark belongs to, nil for none.
func (s *term) erasure(ctx context.Context, run, mark string) (*schema.Erasure, error) {
	record, _, done, err := s.shard.Erasures.Get(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
	case err != nil:
		return nil, err
	case done || record.Decided() && record.Marks(mark):
		return record, nil
	}
	s.log.Warn().Str(logkey.Run, run).Str("id", mark).Str("hint", "somebody published it who may publish events: the run is what it was").
		Msg("mark of a removal that nobody ordered")
	return nil, nil
}

// eraseRefolded looks for the removal of a run that was folded again, from a log that has a mark.
func (s *term) eraseRefolded(ctx context.Context, r *run) error {
	if r.mark == "" {
		return nil
	}
	record, err := s.erasure(ctx, r.id, r.mark)
	if record == nil || err != nil {
		return err
	}
	r.erase(s.cfg.Fleet, record.AskedAt)
	s.remover.Add(r.id)
	return nil
}

// lookErased looks at a run whose checkpoint and the records of its removal may not agree: the fold passed the mark when the order was
// not decided yet, or the checkpoint says that the run was removed and nobody ordered that.
func (s *term) lookErased(ctx context.Context, id string) error {
	record, _, done, err := s.shard.Erasures.Get(ctx, id)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	if err != nil {
		return s.disown(ctx, id)
	}
	folded := max(s.passed, s.mark.Position.Stream)
	switch {
	case done:
		last, err := s.shard.LastOfRun(ctx, id)
		if err != nil || last == nil || last.Stream > folded || !schema.IsErasedMark(last) {
			return err
		}
	case !record.Decided():
		return nil
	default:
		at, marked, err := retention.MarkOf(ctx, s.js, s.names, record)
		if err != nil || !marked || at > folded {
			return err // the fold comes to it
		}
	}
	s.parked.try(id, s.now()) // what is left of it fits
	r := s.cache.peek(id)
	if r == nil {
		if r, err = s.load(ctx, id, &eventlog.Arrived{Record: schema.Record{Stream: folded + 1}}); err != nil {
			return err
		}
	}
	if r.head.Status != schema.StatusErased {
		r.erase(s.cfg.Fleet, record.AskedAt)
		if err := s.store(ctx, map[string]*run{id: r}); err != nil {
			return err
		}
	}
	s.remover.Add(id)
	return nil
}

// disown folds a run again whose checkpoint says that it was removed, when there is no record of that: a checkpoint alone removes nothing.
func (s *term) disown(ctx context.Context, id string) error {
	c, _, err := s.shard.Checkpoints.GetFresh(ctx, id)
	if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrCorrupt) || err == nil && c.Status != schema.StatusErased {
		return nil
	}
	if err == nil {
		_, err = s.restore(ctx, id)
	}
	return err
}

// unordered reports whether a checkpoint says that its run was removed, and there is no record of that.
func (s *term) unordered(ctx context.Context, c *schema.Checkpoint) (bool, error) {
	if c.Status != schema.StatusErased {
		return false, nil
	}
	_, _, _, err := s.shard.Erasures.Get(ctx, c.Run)
	if errors.Is(err, kvstore.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// unsettle notes durably that runs which were removed have got something since. Behind the watermark nobody would come by it.
func (s *term) unsettle(ctx context.Context, b *batch) error {
	slices.Sort(b.late)
	for _, run := range slices.Compact(b.late) {
		if _, err := s.spare(run, s.shard.Erasures.Unsettle(ctx, run, schema.FormatTime(s.now()))); err != nil {
			return err
		}
		b.erased = append(b.erased, run)
	}
	return nil
}
