package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

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

// awaitFolded waits until a shard is folded up to a position in its log.
func (rt *routing) awaitFolded(ctx context.Context, src *reader.Source, upTo schema.StreamSequence) error {
	for {
		if done, err := foldedUpTo(ctx, rt.js, src, upTo); err != nil || done {
			return err
		}
		if err := pause.For(ctx, foldLook); err != nil {
			return fmt.Errorf("shard %d is not folded up to %d: %w: %w", src.Store.Names.Shard, upTo, eventlog.ErrStale, err)
		}
	}
}

// awaitIndexed waits until the index of a shard's runs is complete. That takes a moment in a new fleet, and as long
// as folding the shard after an upgrade or damage: then a request is refused in time for its answer.
func (rt *routing) awaitIndexed(ctx context.Context, src *reader.Source) error {
	patience, cancel := context.WithTimeout(ctx, rt.timeout/4) // a cleanup needs the remaining time
	defer cancel()
	for {
		mark, _, err := src.Store.Checkpoints.Watermark(ctx)
		if err == nil && mark.RebuildTo == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
			return err
		}
		if pause.For(patience, foldLook) != nil {
			return schema.Fail(schema.CodeUnavailable, "Ask again when waymark runs ls no longer says that runs may be missing.",
				"the index of the runs of shard %d is being built", src.Store.Names.Shard)
		}
	}
}

// foldedUpTo reports whether a shard is folded up to a position in its log.
func foldedUpTo(ctx context.Context, js jetstream.JetStream, src *reader.Source, upTo schema.StreamSequence) (bool, error) {
	mark, _, err := src.Store.Checkpoints.Watermark(ctx)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
		return false, err
	}
	if mark.Position.Stream >= upTo {
		return true, nil
	}
	// A lagging replica counts too few events: it can prove that the fold is behind, and not that it is done.
	waiting, err := eventlog.Behind(ctx, js, src.Store.Names, mark.Position.Stream)
	if err != nil || waiting.Events > 0 && waiting.First <= upTo {
		return false, err
	}
	for from := mark.Position.Stream + 1; from <= upTo; {
		// The leader knows. Barriers are not folded, so the watermark does not include them.
		next, found, err := eventlog.Next(ctx, js, src.Store.Names, "*", from)
		if err != nil || !found || next.Stream > upTo {
			return err == nil, err
		}
		if e, err := schema.Decode(next.Header, next.Body); err != nil || e.Subject != schema.BarrierRun {
			return false, nil //nolint:nilerr // not a barrier
		}
		from = next.Stream + 1
	}
	return true, nil
}
