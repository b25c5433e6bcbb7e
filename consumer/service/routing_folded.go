package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// undoubted reads a run to write into it. If the log misses events of it after the checkpoint, the fold worker may
// have folded them before they were lost. It would then refuse a control event based on the log alone, and all that
// follow. So this waits for the fold, and reads the run again. Without a fold worker, there is only the log.
func (rt *routing) undoubted(ctx context.Context, run string, read func() (*reader.Snapshot, error)) (*reader.Snapshot, error) {
	r, err := read()
	if err != nil || !r.Doubtful {
		return r, err
	}
	err = reader.Insist(ctx, "run "+run+" misses events", func() error {
		worker, err := kvstore.Holder(ctx, rt.js, kvstore.FoldLease(r.Source.Store.Names))
		if err != nil || worker == "" {
			return err
		}
		return rt.awaitFolded(ctx, r.Source, r.LogLast)
	}, func(error) {})
	if err != nil {
		return nil, err
	}
	return read()
}

// awaitFolded waits until a shard is folded up to an event of a run.
func (rt *routing) awaitFolded(ctx context.Context, src *reader.Source, upTo schema.StreamSequence) error {
	return awaitMark(ctx, src, func(mark *kvstore.Watermark, _ schema.Revision) bool { return mark.Position.Stream >= upTo }, func(err error) error {
		return fmt.Errorf("shard %d is not folded up to %d: %w: %w", src.Store.Names.Shard, upTo, eventlog.ErrStale, err)
	})
}

// awaitIndexed waits until the index of a shard's runs is complete. That takes a moment in a new fleet, and as long
// as folding the shard after an upgrade or damage: then a request is refused in time for its answer.
func (rt *routing) awaitIndexed(ctx context.Context, src *reader.Source) error {
	patience, cancel := context.WithTimeout(ctx, rt.timeout/4) // a cleanup needs the remaining time
	defer cancel()
	return awaitMark(patience, src, func(mark *kvstore.Watermark, _ schema.Revision) bool { return mark.RebuildTo == 0 }, func(error) error {
		return schema.Fail(schema.CodeUnavailable, "Ask again when waymark runs ls no longer says that runs may be missing.",
			"the index of the runs of shard %d is being built", src.Store.Names.Shard)
	})
}

// awaitEnd waits until a shard is folded up to the end that its log has now, and its index is complete. It returns the
// revision of a watermark that says so: later reads of the bucket have all of that.
func (rt *routing) awaitEnd(ctx context.Context, src *reader.Source) (rev schema.Revision, err error) {
	end, err := src.Barrier.Wait(ctx)
	if err != nil {
		return 0, err
	}
	log, err := src.Store.Usage(ctx)
	if err != nil {
		return 0, err
	}
	names := src.Store.Names
	folded := func(mark *kvstore.Watermark) bool {
		at := mark.Position.Stream
		for mark.RebuildTo == 0 && at < end.At {
			// Barriers do not move the watermark, and the last event may be gone.
			next, found, err := eventlog.Next(ctx, rt.js, names, "*", at+1)
			if err != nil || !found || next.Stream > end.At {
				return err == nil
			}
			barrier, found, err := eventlog.Next(ctx, rt.js, names, schema.BarrierRun, at+1)
			if err != nil || !found || barrier.Stream > next.Stream {
				return false
			}
			at = barrier.Stream
		}
		return mark.RebuildTo == 0
	}
	err = awaitMark(ctx, src, func(mark *kvstore.Watermark, at schema.Revision) bool {
		rev = at
		return mark.Incarnation == log.Incarnation && folded(mark)
	}, func(err error) error {
		return fmt.Errorf("shard %d is not folded up to %d: %w: %w", names.Shard, end.At, eventlog.ErrStale, err)
	})
	return rev, err
}

// awaitMark waits until a shard has a watermark that is done; late makes the error when ctx ends before.
func awaitMark(ctx context.Context, src *reader.Source, done func(*kvstore.Watermark, schema.Revision) bool, late func(error) error) error {
	for {
		mark, rev, err := src.Store.Checkpoints.Watermark(ctx)
		if err == nil && done(&mark, rev) {
			return nil
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
			return err
		}
		if err := pause.For(ctx, foldLook); err != nil {
			return late(err)
		}
	}
}
