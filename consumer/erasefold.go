package consumer

import (
	"context"
	"errors"
	"strings"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// erase makes a run one that was removed, when the mark that was folded last belongs to a record of its removal. Who may
// publish events could forge a mark, and does nothing with it: the records are the daemon's own.
//
// The checkpoint that says so is put with the batch; what there is of the run is taken out behind that, see [eraser].
func (s *reignState) erase(ctx context.Context, b *batch, r *run, mark *schema.Event) error {
	was := r.head.Status
	record, err := s.erasure(ctx, r.id, mark.ID)
	if record == nil || err != nil {
		return err
	}
	r.erase(s.cfg.Fleet, mark.Time)
	b.erased = append(b.erased, r.id)
	s.log.Info().Str(keyRun, r.id).Str("was", string(was)).Str("by", record.By).Str("erasure", record.ID).Msg("run is being removed")
	return nil
}

// erasure returns the record of a run's removal that a mark belongs to, nil for none.
func (s *reignState) erasure(ctx context.Context, run, mark string) (*schema.Erasure, error) {
	record, _, done, err := s.shard.Erasures.Get(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
	case err != nil:
		return nil, err
	case done || strings.HasPrefix(mark, markID(record)):
		return record, nil
	}
	s.log.Warn().Str(keyRun, run).Str("id", mark).Str("hint", "somebody published it who may publish events: the run is what it was").
		Msg("mark of a removal that nobody ordered")
	return nil, nil
}

// markID begins the ids of the marks of a removal.
func markID(record *schema.Erasure) string { return record.Run + ".erased." + record.ID }

// eraseRefolded looks for the removal of a run that was folded anew, from a log that has a mark.
func (s *reignState) eraseRefolded(ctx context.Context, r *run) error {
	if r.mark == "" {
		return nil
	}
	record, err := s.erasure(ctx, r.id, r.mark)
	if record == nil || err != nil {
		return err
	}
	r.erase(s.cfg.Fleet, record.AskedAt)
	s.eraser.add(r.id)
	return nil
}
