package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// errSealed says that the beginning of the tail was sealed and purged since it was read.
var errSealed = errors.New("the tail was sealed during the read")

// chunks combines records into replies with frames.
type chunks struct {
	to     Sink
	buf    []byte
	events int64
}

func (c *chunks) add(rec *schema.Record) error {
	if len(c.buf) > 0 && len(c.buf)+rec.Size() > maxFramesReply {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.buf = schema.AppendFrame(c.buf, rec)
	c.events++
	return nil
}

func (c *chunks) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	err := c.to.Frames(c.buf)
	c.buf = nil // the sink may keep it
	return err
}

// longTail reads a tail again that was too long to keep. A server that has less than before is asked again, and
// events that were sealed and purged since come from the new segments.
func (rd *Reader) longTail(ctx context.Context, r *Snapshot, to Sink) error {
	from, out, ended := r.tail.from, &chunks{to: to}, false
	for from <= r.LogLast {
		err := eventlog.Read(ctx, rd.js, r.Source.Store.Names, r.Run, from, func(rec schema.Record) error {
			if ended = rec.Stream > r.LogLast; ended {
				return eventlog.ErrStop
			}
			from = rec.Stream + 1
			if rec.Stream <= r.Segments.Last.Stream {
				return nil
			}
			if out.events == 0 && rec.Stream != r.tail.first {
				return errSealed
			}
			return out.add(&rec)
		})
		switch {
		case errors.Is(err, errSealed):
			if from, err = rd.sealedTail(ctx, r, out); err != nil {
				return err
			}
		case ended && errors.Is(err, eventlog.ErrStop): // the sink may stop, too
			from = r.LogLast + 1
		case err != nil:
			return err
		case from <= r.LogLast:
			if err := pause.For(ctx, staleBackoff); err != nil {
				return err
			}
		}
	}
	if out.events != r.tail.events {
		return fmt.Errorf("run %s: the tail had %d events, %d are left: %w", r.Run, r.tail.events, out.events, eventlog.ErrStale)
	}
	return out.flush()
}

// sealedTail reads the beginning of a tail from its new segments on the leader, and returns where the log continues.
// Events after the snapshot's last event are left out.
func (rd *Reader) sealedTail(ctx context.Context, r *Snapshot, out *chunks) (schema.StreamSequence, error) {
	from, digest := r.tail.from, r.Segments.Digest
	for n := r.Segments.Count + 1; from <= r.LogLast; n++ {
		stored, err := r.Source.Store.Segments.GetFresh(ctx, r.Run, n)
		if errors.Is(err, kvstore.ErrNotFound) {
			if out.events == 0 {
				return 0, fmt.Errorf("run %s: the log begins after %d, and no segment %d has the events before: %w", r.Run, r.tail.first, n, eventlog.ErrStale)
			}
			break
		}
		if err != nil {
			return 0, fmt.Errorf("segment %d of run %s: %w", n, r.Run, err)
		}
		info, frames, err := schema.DecodeSegment(stored)
		if err == nil {
			err = replay.Continues(&info, r.Run, n, digest)
		}
		if err != nil {
			return 0, rd.segmentGone(n, r, err)
		}
		var failed error
		if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
			if rec.Stream > r.LogLast {
				return false
			}
			failed = out.add(&rec)
			return failed == nil
		}); err != nil {
			return 0, rd.segmentGone(n, r, err)
		}
		if failed != nil {
			return 0, failed
		}
		from, digest = info.Last.Stream+1, info.DigestAfter
	}
	return from, nil
}
