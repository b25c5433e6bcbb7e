package reader

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// segmentsAhead bounds the segments of one answer that are fetched before they can be sent: at most 2 MiB.
const segmentsAhead = 4

// Cursor is how far the segments of a run have been sent, in order.
type Cursor struct {
	// Next is the number of the next segment.
	Next int
	// digest is the run's digest after the previous segment, if follows says that it was sent.
	digest  string
	follows bool
	// whole: a missing segment is an error, not a gap.
	whole bool
	// missing are segments that are counted but not stored.
	missing []int
}

// ErrDoesNotFollow says that a segment belongs to another run, or does not continue the one before it.
var ErrDoesNotFollow = errors.New("segment does not follow")

// sendError distinguishes a sink's error from those of reading.
type sendError struct{ err error }

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

// fetched is a segment as stored, or the error.
type fetched struct {
	stored []byte
	info   schema.SegmentInfo
	err    error
}

// segments sends the counted segments from p.next on to the sink, each checked by its sum and by the digest that it
// continues, while the next ones are fetched. p moves past each that was sent or is missing. A segment that is
// corrupt or does not follow is a *Damaged error; an error of the sink is a *sendError.
func (rd *Reader) segments(ctx context.Context, src *Source, run string, index *schema.SegmentIndex, p *Cursor, to Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	var fetchers sync.WaitGroup
	defer fetchers.Wait()
	defer cancel()
	var ahead []chan fetched
	asked, room := p.Next, 1 // the first alone, so that it is sent soon
	for p.Next <= index.Count {
		for ; asked <= index.Count && len(ahead) < room; asked++ {
			n, ch := asked, make(chan fetched, 1)
			ahead = append(ahead, ch)
			fetchers.Go(func() { ch <- fetchSegment(ctx, src, run, n) })
		}
		got := <-ahead[0]
		ahead, room = ahead[1:], segmentsAhead
		n, err := p.Next, got.err
		switch {
		case errors.Is(err, kvstore.ErrNotFound) && p.whole:
			return &Damaged{Segment: n, Err: err}
		case errors.Is(err, kvstore.ErrNotFound):
			p.Next, p.follows = n+1, false
			p.missing = append(p.missing, n)
			continue
		case err == nil:
			err = p.continuedBy(&got.info, run, index)
		}
		if err != nil {
			return err
		}
		p.Next, p.digest, p.follows = n+1, got.info.DigestAfter, true
		if err := to.Segment(n, got.stored); err != nil {
			return &sendError{err}
		}
	}
	return nil
}

// fetchSegment reads a segment and its description. The error of a damaged one is a *Damaged.
func fetchSegment(ctx context.Context, src *Source, run string, n int) fetched {
	stored, err := src.Store.Segments.Get(ctx, run, n)
	if err != nil {
		return fetched{err: fmt.Errorf("segment %d of run %s: %w", n, run, err)}
	}
	info, err := schema.DecodeSegmentInfo(stored)
	if err != nil {
		return fetched{err: &Damaged{Segment: n, Err: err}}
	}
	return fetched{stored: stored, info: info}
}

// continuedBy checks that a segment is the next one. The last counted one must end where the index says.
func (p *Cursor) continuedBy(info *schema.SegmentInfo, run string, index *schema.SegmentIndex) error {
	before := p.digest
	if !p.follows {
		before = info.DigestBefore
	}
	err := replay.Continues(info, run, p.Next, before)
	if err == nil && p.Next == index.Count && info.DigestAfter != index.Digest {
		err = fmt.Errorf("ends with digest %.16s…, the checkpoint counts %.16s…: %w", info.DigestAfter, index.Digest, schema.ErrCorrupt)
	}
	if err != nil {
		return &Damaged{Segment: p.Next, Err: fmt.Errorf("%w: %w", ErrDoesNotFollow, err)}
	}
	return nil
}

// noteMissing turns counted but missing segments into gaps: the answer continues after them.
func (rd *Reader) noteMissing(ctx context.Context, r *Snapshot, p *Cursor) error {
	for _, n := range p.missing {
		gap, err := rd.gapOfSegment(ctx, r, n)
		if err != nil {
			return err
		}
		r.Lost = append(r.Lost, gap)
		rd.stats.CorruptSegments.Add(1)
		rd.log.Error().Str(logkey.Run, r.Run).Int(logkey.Segment, n).Msg("segment is missing")
	}
	p.missing = nil
	return nil
}
