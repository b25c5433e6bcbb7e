package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// checkPosition compares the watermark with the log: what stands there must be what was folded, and the log must not
// end before it.
func (s *reignState) checkPosition(ctx context.Context) error {
	return s.checkLog(ctx, s.mark.Position)
}

// checkLog compares a position that was folded with the log.
func (s *reignState) checkLog(ctx context.Context, at schema.Position) error {
	stream, err := s.js.Stream(ctx, s.names.EventStream())
	if err != nil {
		return fmt.Errorf("event stream %s: %w", s.names.EventStream(), err)
	}
	info := stream.CachedInfo()
	s.copies = info.Config.Replicas
	if info.State.LastSeq < uint64(at.Stream) {
		return fmt.Errorf("%w: it ends at %d, folded up to %d", errRegressed, info.State.LastSeq, at.Stream)
	}
	rec, found, err := runlog.At(ctx, s.js, s.names, at.Stream)
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

// regressionTrust is how long the log of a replicated shard must seem shorter before it is believed: an isolated old leader answers so
// for nearly as long.
const regressionTrust = 10 * time.Second

// checkFolded compares the log with what this folder itself has folded before, when the watermark is behind that. A server that was put
// back to an older copy of its store has older checkpoints, too, and nothing there says that anything is missing. A watermark that went
// back alone is lawful: a bucket that is not written through loses its end.
func (s *reignState) checkFolded(ctx context.Context) error {
	was := s.folded.Position
	if s.rebuild || s.folded.Incarnation != s.incarnation || s.mark.Position.Stream >= was.Stream && (s.mark.Position.Stream > was.Stream || s.mark.Position.ID == was.ID) {
		s.shorter = time.Time{}
		return nil
	}
	err := s.checkLog(ctx, was)
	if !errors.Is(err, errRegressed) {
		s.shorter = time.Time{}
		return err
	}
	if s.copies > 1 {
		if s.shorter.IsZero() {
			s.shorter = s.now()
		}
		if seems := s.now().Sub(s.shorter); seems < regressionTrust {
			return fmt.Errorf("the log seems to have gone back, for %s so far; a leader that is isolated may say so: %s", seems.Round(time.Millisecond), err) //nolint:errorlint // it is not known to have
		}
	}
	s.folded, s.shorter = kvstore.Watermark{}, time.Time{}
	return fmt.Errorf("the server's store is an older one: %w", err)
}
