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

// erase turns a run into a removed one, if the tombstone that was folded last belongs to a record of its removal. Any
// client that may publish events could forge a tombstone, but a forged one has no effect: only the daemon writes the
// records.
//
// The checkpoint of the removal is put with the batch; package retention deletes the run's data after that.
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

// erasure returns the record of a run's removal that a tombstone belongs to, nil for none.
func (s *term) erasure(ctx context.Context, run, mark string) (*schema.Erasure, error) {
	record, _, done, err := s.shard.Erasures.Get(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
	case errors.Is(err, kvstore.ErrCorrupt):
		s.log.Error().Err(err).Str(logkey.Run, run).Msg("removal record is unreadable: the run stays")
		return nil, nil
	case err != nil:
		return nil, err
	case done || record.Decided() && record.Marks(mark):
		return record, nil
	}
	s.log.Warn().Str(logkey.Run, run).Str("id", mark).Str("hint", "a client that may publish events wrote it: the run is unchanged").
		Msg("tombstone without a removal order")
	return nil, nil
}

// eraseRefolded checks for the removal of a run that was folded again, from a log with a tombstone.
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

// lookErased checks a run whose checkpoint and removal records may not agree: the fold passed the tombstone before
// the order was decided, or the checkpoint shows a removal without an order.
func (s *term) lookErased(ctx context.Context, id string) error {
	record, _, done, err := s.shard.Erasures.Get(ctx, id)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return s.disown(ctx, id)
	case errors.Is(err, kvstore.ErrCorrupt):
		return nil // it neither removes the run nor gives it back
	case err != nil:
		return err
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
			return err // the fold will reach it
		}
	}
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

// disown folds a run again whose checkpoint shows a removal without a record: a checkpoint alone removes nothing.
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

// unordered reports whether a checkpoint shows a removal without a record.
func (s *term) unordered(ctx context.Context, c *schema.Checkpoint) (bool, error) {
	if c.Status != schema.StatusErased {
		return false, nil
	}
	_, _, _, err := s.shard.Erasures.Get(ctx, c.Run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return true, nil
	case errors.Is(err, kvstore.ErrCorrupt):
		return false, nil
	}
	return false, err
}

// unsettle records durably that removed runs have got events since. After the watermark no worker would find them.
func (s *term) unsettle(ctx context.Context, b *batch) error {
	slices.Sort(b.late)
	for _, run := range slices.Compact(b.late) {
		if err := s.shard.Erasures.Unsettle(ctx, run, schema.FormatTime(s.now())); err != nil && !errors.Is(err, kvstore.ErrCorrupt) {
			return err
		}
		b.erased = append(b.erased, run)
	}
	return nil
}
