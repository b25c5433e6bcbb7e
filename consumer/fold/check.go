package fold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// checkPosition compares the watermark with the log: what stands there must be what was folded, and the log must not
// end before it.
func (s *term) checkPosition(ctx context.Context) error {
	return s.checkLog(ctx, s.mark.Position)
}

// errSeemsShorter says that the log of a replicated shard ends before what was folded, and did not for long enough to be believed.
var errSeemsShorter = errors.New("the log seems to have gone back; a leader that is isolated may say so")

// checkLog compares a position that was folded with the log. A log that ends before it is believed as eventlog.Shorter has it.
func (s *term) checkLog(ctx context.Context, at schema.Position) error {
	stream, err := s.js.Stream(ctx, s.names.EventStream())
	if err != nil {
		return fmt.Errorf("event stream %s: %w", s.names.EventStream(), err)
	}
	info := stream.CachedInfo()
	if info.State.LastSeq < uint64(at.Stream) {
		since, believed := s.shorter.Seems(info.Config.Replicas, s.now())
		if !believed {
			return fmt.Errorf("%w: it ends at %d, folded up to %d, for %s so far", errSeemsShorter, info.State.LastSeq, at.Stream, since.Round(time.Millisecond))
		}
		s.shorter.Reaches()
		return fmt.Errorf("%w: it ends at %d, folded up to %d", errRegressed, info.State.LastSeq, at.Stream)
	}
	s.shorter.Reaches()
	rec, found, err := eventlog.At(ctx, s.js, s.names, at.Stream)
	if err != nil {
		return err
	}
	if !found {
		return nil // purged: what follows is still in order
	}
	if got := schema.PositionOf(&rec); got.ID != at.ID {
		return fmt.Errorf("%w: %s stands at %d, folded was %s", errRegressed, got.ID, at.Stream, at.ID)
	}
	return nil
}

// checkFolded compares the log with what this worker itself has folded before, when the watermark is behind that. A server that was put
// back to an older copy of its store has older checkpoints, too, and nothing there says that anything is missing. A watermark that went
// back alone is lawful: a bucket that is not written through loses its end.
func (s *term) checkFolded(ctx context.Context) error {
	if s.rebuild {
		s.shorter.Reaches()
		return nil
	}
	was := s.folded.Position
	if s.folded.Incarnation != s.incarnation || s.mark.Position.Stream >= was.Stream && (s.mark.Position.Stream > was.Stream || s.mark.Position.ID == was.ID) {
		return nil
	}
	err := s.checkLog(ctx, was)
	if !errors.Is(err, errRegressed) {
		return err
	}
	s.folded = kvstore.Watermark{}
	return fmt.Errorf("the server's store is an older one: %w", err)
}
