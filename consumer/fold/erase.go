package fold

import (
	"context"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/schema"
)

// removed notes that a record of a batch has removed its run, or came after the removal.
func (s *term) removed(b *batch, r *run, was schema.Status, at schema.StreamSequence) {
	b.erased[r.id] = at
	if removal := r.head.Erased; was != schema.StatusErased {
		b.removals = append(b.removals, removal)
		s.log.Info().Str(logkey.Run, r.id).Str("was", string(was)).Str("by", removal.By).Str("removal", removal.ID).Msg("run is being removed")
	}
}

// listRemoved lists the removed runs of a batch durably: once their checkpoints are put, no worker would find them.
func (s *term) listRemoved(ctx context.Context, b *batch) error {
	for run, at := range b.erased {
		if err := s.shard.Removals.Add(ctx, run, at); err != nil {
			return err
		}
	}
	return nil
}
