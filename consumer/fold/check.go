package fold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// checkPosition compares the watermark with the log: the event at the position must be the folded one, and the log
// must not end before it.
func (s *term) checkPosition(ctx context.Context) error {
	return s.checkLog(ctx, s.mark.Position)
}

// errSeemsShorter says that the log of a replicated shard ends before the folded position, but not for long enough to
// be sure.
var errSeemsShorter = errors.New("the log seems to have gone back; a leader that is isolated may say so")

// checkLog compares a folded position with the log. A log that ends before it counts under the rules of
// eventlog.Shorter.
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
	s.losses.see(&info.State, s.stats.Purge.Events.Load(), s.now())
	rec, found, err := eventlog.At(ctx, s.js, s.names, at.Stream)
	if err != nil {
		return err
	}
	if !found {
		return nil // purged: the following events are still in order
	}
	if got := schema.PositionOf(&rec); got.ID != at.ID {
		return fmt.Errorf("%w: %s is at %d, but %s was folded", errRegressed, got.ID, at.Stream, at.ID)
	}
	return nil
}

// checkFolded compares the log with the position that this worker itself has folded, if the watermark is behind it. A
// server with an older copy of its store has older checkpoints, too, and nothing in them shows that anything is
// missing. A watermark alone may go back: a bucket that is not synced can lose its end.
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
