package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

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

// longTail reads a tail again that was too long to keep. A server that has less than before is asked again. If its
// beginning was sealed and purged between the two reads, the client repeats the request, which finds the new segments.
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
				return fmt.Errorf("run %s: its events at %d were sealed during the read: %w", r.Run, r.tail.first, eventlog.ErrStale)
			}
			return out.add(&rec)
		})
		switch {
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
