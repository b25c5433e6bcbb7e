package fold

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// load returns the run from memory, from its checkpoint, or folded again if the checkpoint cannot be trusted.
func (s *term) load(ctx context.Context, id string, a *eventlog.Arrived) (*run, error) {
	if r := s.cache.get(id); r != nil {
		return r, nil
	}
	r := &run{id: id, head: schema.NewHead(s.cfg.Fleet, id), tail: tailbuffer{room: &s.room}}
	c, rev, err := s.shard.Checkpoints.GetFresh(ctx, id)
	r.revision = rev
	trusted := err == nil && s.mark.RebuildTo == 0 && c.Incarnation == s.incarnation
	if trusted && c.Position.Stream >= a.Record.Stream {
		if trusted, err = s.stands(ctx, id, c.Position); err != nil {
			return nil, fmt.Errorf("load run %s: %w", id, err)
		}
	}
	if trusted && c.Position.Stream < a.Record.Stream && a.Record.Behind != c.Position.Stream {
		if trusted, err = s.adjoins(ctx, c, a.Record.Stream); err != nil {
			return nil, fmt.Errorf("load run %s: %w", id, err)
		}
	}
	switch {
	case trusted && c.TailBytes < s.cfg.SealMaxBytes && c.TailEvents < s.cfg.SealMaxEvents:
		s.resume(r, c)
	case err == nil, errors.Is(err, kvstore.ErrCorrupt):
		// Only the fold of a long tail shows where its segments end: its bucket was full before.
		if !trusted {
			s.log.Warn().Str(logkey.Run, id).Err(err).Msg("checkpoint not trusted, folding the run again")
		}
		if c != nil {
			r.lost = c.Lost
		}
		err = s.refold(ctx, r, a.Record.Stream)
	case errors.Is(err, kvstore.ErrNotFound):
		// A run without a checkpoint is new, or has no accepted event yet, or its checkpoint is lost.
		err = nil
		again := s.distrust || !a.First
		if !again && s.purger.PurgedBefore() {
			// A crash may have brought the first message back, but not the purged ones after it.
			again, err = s.sealer.sealedBeyond(ctx, id, 0)
		}
		if err == nil && again {
			err = s.refold(ctx, r, a.Record.Stream)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load run %s: %w", id, err)
	}
	if r.refolded && c != nil {
		// The log may still deliver the events of that checkpoint; until then they are missing.
		r.noteLost(&c.Head)
	}
	s.cache.add(r)
	return r, nil
}

// resume continues a run from its checkpoint.
func (s *term) resume(r *run, c *schema.Checkpoint) {
	r.head, r.overview, r.segments, r.lost = c.Head, c.Overview, c.Segments, c.Lost
	r.enter(s.cfg.MaxClaims)
	r.quarantined = r.head.Quarantined(s.cfg.MaxClaims)
	r.tailBytes, r.tailEvents = c.TailBytes, c.TailEvents
}
