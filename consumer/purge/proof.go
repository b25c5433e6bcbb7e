package purge

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// provenAtOnce bounds the events of one proof, whose sums are in memory.
const provenAtOnce = 1 << 15

// proof is the part of a run's log that may be purged.
type proof struct {
	// last is the stream sequence of the last event that may be purged; events and bytes are the amount.
	last   schema.StreamSequence
	events int64
	bytes  int64
	// more: the log has more to prove after it.
	more bool
	// ended: the run has ended, all of it is sealed, and this is its last part.
	ended bool
	// purged counts the purged events.
	purged int64
	// sealed is the position up to which the checkpoint counts the run's events as sealed.
	sealed schema.StreamSequence
}

// unproven is the reason why sealed events of a run must not be purged.
type unproven struct {
	run, why string
	// segment at fault, 0 for none.
	segment int
	err     error
}

func (e *unproven) Error() string {
	s := fmt.Sprintf("run %s: %s", e.run, e.why)
	if e.segment != 0 {
		s = fmt.Sprintf("run %s, segment %d: %s", e.run, e.segment, e.why)
	}
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s
}

func (e *unproven) Unwrap() error { return e.err }

// hint is the next step.
func (e *unproven) hint(run string) string {
	if e.segment != 0 {
		return fmt.Sprintf("the log still has what it held: keep it, restore the segment bucket from a backup, and look with: waymark events %s --all --no-follow", run)
	}
	return "look what is missing with: waymark get " + run
}

// prove shows that every event of the run in the log up to a position is in a segment of the run's checkpoint, byte
// for byte. It reads everything from the leaders now, and uses nothing from memory.
//
//   - The stored checkpoint names the number of segments and the digest at their end.
//   - Each segment, from the last one down, has the right sum, and ends where the next one begins.
//   - Each event of the log in question is equal to one in a segment.
//   - The event at the checkpoint's position is in the log and stays: it is the run's last, or has later ones after it.
func (p *Purger) prove(ctx context.Context, run string, upTo schema.StreamSequence, piece int64) (proof, error) {
	c, _, err := p.deps.Shard.Checkpoints.GetFresh(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return proof{}, nil // nothing is counted yet
	case err != nil:
		return proof{}, err
	case c.Status == schema.StatusErased:
		p.deps.Erased(run) // a crash brought purged events back
		return proof{}, nil
	case c.Incarnation != p.incarnation || c.Segments.Count == 0 || c.Position.Stream == 0:
		return proof{}, nil
	}
	if !c.Complete() || len(c.Lost) > 0 {
		// A replica with a damaged copy may have shown the fold less than the others have: events missing in the
		// segments may be in the log, and are found there as long as they are not purged.
		return proof{}, &unproven{run: run, why: "its events have gaps, and what is missing may be in the log of another replica"}
	}
	upTo = min(upTo, c.Segments.Last.Stream, c.Position.Stream-1)
	if upTo == 0 {
		return proof{sealed: c.Segments.Last.Stream}, nil // its last event is the log's first, and stays
	}
	rec, found, err := eventlog.Next(ctx, p.deps.JS, p.deps.Shard.Names, run, c.Position.Stream)
	if err != nil {
		return proof{}, err
	}
	if !found || schema.PositionOf(&rec) != c.Position {
		if now, _, err := p.deps.Shard.Checkpoints.GetFresh(ctx, run); err != nil || now.Position != c.Position {
			// The run changed, and another fold worker purged the events that this one looked for.
			return proof{}, errors.Join(fmt.Errorf("run %s: folded on while it was proven: %w", run, eventlog.ErrStale), err)
		}
		return proof{}, &unproven{run: run, why: fmt.Sprintf("the checkpoint's event %s is not at %d in the log", c.Position.ID, c.Position.Stream)}
	}
	is, sums, first, err := p.stretch(ctx, run, upTo, piece)
	if err == nil {
		err = p.match(ctx, c, sums, first)
	}
	if err != nil {
		return proof{}, err
	}
	is.sealed = c.Segments.Last.Stream
	is.ended = !is.more && c.Status.Terminal() && c.Segments.Last == c.Position
	return is, nil
}

// stretch reads the run's events in the log up to a position, about piece bytes of them, and returns where they
// begin.
func (p *Purger) stretch(ctx context.Context, run string, upTo schema.StreamSequence, piece int64) (is proof, sums map[schema.StreamSequence]replay.Sum, first schema.StreamSequence, err error) {
	sums = make(map[schema.StreamSequence]replay.Sum)
	var scratch []byte
	beyond := false
	err = eventlog.Read(ctx, p.deps.JS, p.deps.Shard.Names, run, 1, func(rec schema.Record) error {
		if rec.Stream > upTo {
			beyond = true
			return eventlog.ErrStop
		}
		if is.events == provenAtOnce || is.bytes >= piece {
			beyond, is.more = true, true
			return eventlog.ErrStop
		}
		if first == 0 {
			first = rec.Stream
		}
		sums[rec.Stream], scratch = replay.SumOf(scratch, &rec)
		is.events++
		is.bytes += int64(rec.Size())
		is.last = rec.Stream
		return nil
	})
	if err != nil && !errors.Is(err, eventlog.ErrStop) {
		return proof{}, nil, 0, err
	}
	if !beyond {
		// The leader said that the run has an event after it: this replica lags, and may also hide one before it.
		return proof{}, nil, 0, fmt.Errorf("run %s: a replica shows nothing behind %d: %w", run, upTo, eventlog.ErrStale)
	}
	return is, sums, first, nil
}

// match finds each of the sums in a segment of the checkpoint.
func (p *Purger) match(ctx context.Context, c *schema.Checkpoint, sums map[schema.StreamSequence]replay.Sum, first schema.StreamSequence) error {
	last := schema.StreamSequence(0) // the last one to find
	for at := range sums {
		last = max(last, at)
	}
	digest := c.Segments.Digest
	var scratch []byte
	for n := c.Segments.Count; len(sums) > 0; n-- {
		bad := func(why string, err error) error {
			return &unproven{run: c.Run, why: why, segment: max(n, 1), err: err}
		}
		if n == 0 {
			return bad(fmt.Sprintf("%d events of the log from %d on are in no segment", len(sums), first), nil)
		}
		stored, err := p.deps.Shard.Segments.GetFresh(ctx, c.Run, n)
		if errors.Is(err, kvstore.ErrNotFound) {
			return bad("it is counted and not there", err)
		}
		if err != nil {
			return err
		}
		info, err := schema.DecodeSegmentInfo(stored)
		switch {
		case err != nil:
			return bad("it cannot be read", err)
		case info.Fleet != p.deps.Shard.Names.Fleet || info.Run != c.Run || info.Number != n:
			return bad(fmt.Sprintf("it is segment %d of run %.64s of fleet %.64s", info.Number, info.Run, info.Fleet), nil)
		case info.DigestAfter != digest:
			return bad(fmt.Sprintf("it ends with digest %.16s…, what follows it with %.16s…", info.DigestAfter, digest), nil)
		case n == c.Segments.Count && info.Last != c.Segments.Last:
			return bad(fmt.Sprintf("it ends with %s at %d, the checkpoint counts up to %s at %d", info.Last.ID, info.Last.Stream, c.Segments.Last.ID, c.Segments.Last.Stream), nil)
		}
		digest = info.DigestBefore
		if info.First.Stream > last {
			continue // all of it is newer than the events to purge
		}
		_, frames, err := schema.DecodeSegment(stored)
		if err != nil {
			return bad("it cannot be read", err)
		}
		events, differs := 0, schema.StreamSequence(0)
		if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
			events++
			if want, ok := sums[rec.Stream]; ok {
				var got replay.Sum
				if got, scratch = replay.SumOf(scratch, &rec); got != want {
					differs = rec.Stream
					return false
				}
				delete(sums, rec.Stream)
			}
			return true
		}); err != nil {
			return bad("its events cannot be read", err)
		}
		if differs != 0 {
			return bad(fmt.Sprintf("the event at %d is not the one in the log", differs), nil)
		}
		if events != info.Events {
			return bad(fmt.Sprintf("it holds %d events and says %d", events, info.Events), nil)
		}
	}
	return nil
}
