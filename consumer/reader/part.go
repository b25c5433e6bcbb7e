package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// ToEnd as [Place.Left] means the end of the run.
const ToEnd = -1

// Place is how far a run's content was sent.
type Place struct {
	// Segment is the number of the next segment, and Have how many records from its first one on were sent.
	Segment int
	Have    int64
	// Left are the records from the place to the end of the content, or [ToEnd].
	Left int64
}

// maxPieces bounds the pieces of a part: a client holds those that it has not consumed.
const maxPieces = 1024

// errFull ends a part, errDone the content.
var errFull, errDone = fmt.Errorf("the part is full: %w", eventlog.ErrStop), fmt.Errorf("the content is sent: %w", eventlog.ErrStop)

// Part sends a run's content from a place on, and moves the place. It ends before it exceeds most bytes, 0 for no
// bound, but not before the first piece. more reports whether content is left.
func (rd *Reader) Part(ctx context.Context, r *Snapshot, p *Place, most int, to Sink) (more bool, err error) {
	switch {
	case p.Left == 0:
		return false, nil // the end is before the first event
	case p.Left < ToEnd:
		return false, fmt.Errorf("run %s: the content up to a point that was located by its head alone was asked for", r.Run)
	case p.Segment > r.Segments.Count+1:
		// The snapshot is of an older checkpoint than that of the page before, or the place is invented.
		return false, fmt.Errorf("run %s: it has %d segments, and the place is in segment %d: %w", r.Run, r.Segments.Count, p.Segment, eventlog.ErrStale)
	}
	s := &part{to: to, place: p, most: most}
	err = rd.Content(ctx, r, &Cursor{Next: p.Segment}, s)
	switch {
	case errors.Is(err, errFull):
		return true, nil
	case errors.Is(err, errDone):
		return false, nil
	case err == nil && (p.Left > 0 || s.seen < p.Have):
		err = fmt.Errorf("run %s: events that were there are gone: %w", r.Run, eventlog.ErrStale)
	}
	return false, err
}

// part is a sink that forwards a part of a run's content: whole segments as stored, other records as frames.
type part struct {
	to    Sink
	place *Place
	// seen are the records from the first one of the next segment on.
	seen int64
	// sent counts the bytes that were forwarded, pieces the segments and frames; most bounds sent.
	most, sent, pieces int
}

func (s *part) Segment(n int, stored []byte) error {
	info, err := schema.DecodeSegmentInfo(stored)
	if err != nil {
		return err
	}
	events := int64(info.Events)
	if s.place.Have == 0 && (s.place.Left == ToEnd || events <= s.place.Left) {
		if err := s.room(len(stored)); err != nil {
			return err
		}
		if err := s.to.Segment(n, stored); err != nil {
			return err
		}
		s.place.Segment = n + 1
		return s.passed(events)
	}
	_, frames, err := schema.DecodeSegment(stored)
	if err == nil {
		err = s.Frames(frames)
	}
	if err == nil {
		s.place.Segment, s.place.Have, s.seen = n+1, max(s.place.Have-events, 0), 0
	}
	return err
}

func (s *part) Frames(chunk []byte) error {
	var buf []byte
	held := int64(0)
	flush := func() error {
		if held == 0 {
			return nil
		}
		if err := s.room(len(buf)); err != nil {
			return err
		}
		if err := s.to.Frames(buf); err != nil {
			return err
		}
		events := held
		s.place.Have, buf, held = s.place.Have+events, nil, 0 // the sink may keep it
		return s.passed(events)
	}
	var stop error
	err := schema.ReadFrames(chunk, func(rec schema.Record) bool {
		if s.seen < s.place.Have {
			s.seen++
			return true
		}
		if held > 0 && len(buf)+rec.Size() > maxFramesReply {
			stop = flush()
		}
		if stop == nil {
			s.seen++
			held++
			if buf = schema.AppendFrame(buf, &rec); held == s.place.Left {
				stop = flush()
			}
		}
		return stop == nil
	})
	if err == nil && stop == nil {
		stop = flush()
	}
	return errors.Join(err, stop)
}

// room takes the room of a piece.
func (s *part) room(bytes int) error {
	if s.most > 0 && s.pieces > 0 && (s.sent+bytes > s.most || s.pieces == maxPieces) {
		return errFull
	}
	s.sent += bytes
	s.pieces++
	return nil
}

// passed counts records that were forwarded.
func (s *part) passed(events int64) error {
	if s.place.Left == ToEnd {
		return nil
	}
	if s.place.Left -= events; s.place.Left > 0 {
		return nil
	}
	return errDone // later content may be damaged, and is not needed
}
