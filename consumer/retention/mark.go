package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Mark stores the tombstone of a decided removal after the run's last event, unless it is already there. It reports
// false if the run changed, so that the tombstone can never be stored.
func Mark(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, daemon string, record *schema.Erasure, now time.Time) (bool, error) {
	mark := schema.NewErased(record.Fleet, daemon, record.Run, record.ID, now)
	_, err := control.Publish(ctx, js, shard, mark, record.Position.Stream)
	if !errors.Is(err, control.ErrRefused) {
		return err == nil, err
	}
	if _, marked, err := MarkOf(ctx, js, shard.Names, record); err != nil || marked {
		return marked, err
	}
	last, err := shard.LastOfRun(ctx, record.Run)
	if err == nil && last != nil && last.Stream == record.Position.Stream {
		err = fmt.Errorf("run %s: the log refuses an event after %d, but has none there: %w", record.Run, record.Position.Stream, eventlog.ErrStale)
	}
	return false, err
}

// MarkOf returns the position of a removal's tombstone, and whether it is in the log. It is stored by compare-and-set
// on the run's last event, so it is the first message after that: the original, or a later one of the same removal if
// that was purged.
func MarkOf(ctx context.Context, js jetstream.JetStream, names schema.Names, record *schema.Erasure) (schema.StreamSequence, bool, error) {
	next, found, err := eventlog.Next(ctx, js, names, record.Run, record.Position.Stream+1)
	if err != nil || !found {
		return 0, false, err
	}
	return next.Stream, record.Marks(schema.PositionOf(&next).ID), nil
}
