package kvstore

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Shard is one shard of a fleet: the state of its event stream, its checkpoints and its segments.
type Shard struct {
	// Names of the shard's resources.
	Names schema.Names
	// Checkpoints of the shard's runs.
	Checkpoints *Checkpoints
	// Segments of the shard's runs.
	Segments *Segments
	// Removals of the shard's runs that are not finished.
	Removals *Removals

	js       jetstream.JetStream
	settings *atomic.Pointer[schema.FleetSettings]
	// closed: the log takes no events of executors; see [Shard.Throttle].
	closed *atomic.Bool
}

// OpenShard returns a shard of a provisioned fleet. daemon names the replica in the source of checkpoint
// events. It does no I/O.
func OpenShard(js jetstream.JetStream, settings schema.FleetSettings, shard int, daemon string) (*Shard, error) {
	if err := CheckSettings(&settings); err != nil {
		return nil, err
	}
	if shard < 0 || shard >= settings.Shards {
		return nil, fmt.Errorf("%w: fleet %s has no shard %d, it has %d", ErrSettings, settings.Fleet, shard, settings.Shards)
	}
	if err := schema.CheckName("daemon", daemon); err != nil {
		return nil, err
	}
	names := schema.NamesOf(settings.Fleet, shard)
	current := new(atomic.Pointer[schema.FleetSettings])
	current.Store(&settings)
	segments := &Segments{bucket: newBucket(js, names.SegmentBucket())}
	segments.room.Store(math.MaxInt64)
	return &Shard{
		Names:       names,
		Checkpoints: &Checkpoints{newBucket(js, names.CheckpointBucket()), names, daemon},
		Segments:    segments,
		Removals:    &Removals{newBucket(js, names.SegmentBucket())},
		js:          js,
		settings:    current,
		closed:      new(atomic.Bool),
	}, nil
}

// Update applies changed settings of the fleet to the shard, such as its quota.
func (s *Shard) Update(settings schema.FleetSettings) { s.settings.Store(&settings) }

// Usage is the state of a shard's event stream.
type Usage struct {
	// Bytes and Messages stored, as JetStream counts them.
	Bytes    int64
	Messages uint64
	// Last stream sequence; 0 when nothing was ever stored.
	Last schema.StreamSequence
	// Limit in bytes; [UnlimitedQuota] for none.
	Limit int64
	// Incarnation from [Shard.Incarnation].
	Incarnation string
}

// Incarnation returns the creation time of the event stream, as text. If it changes, the stream was restored or
// created again, and stream sequences are no longer valid. It returns [ErrStreamMissing].
func (s *Shard) Incarnation(ctx context.Context) (string, error) {
	u, err := s.Usage(ctx)
	return u.Incarnation, err
}

// Usage asks the leader for the state of the event stream. It returns [ErrStreamMissing].
func (s *Shard) Usage(ctx context.Context) (Usage, error) {
	info, err := s.info(ctx)
	if err != nil {
		return Usage{}, err
	}
	return UsageOf(info), nil
}

// UsageOf is the state of an event stream in the report of its server.
func UsageOf(info *jetstream.StreamInfo) Usage {
	return Usage{
		Bytes:       int64(info.State.Bytes), //nolint:gosec // a size on disk
		Messages:    info.State.Msgs,
		Last:        schema.StreamSequence(info.State.LastSeq),
		Limit:       info.Config.MaxBytes,
		Incarnation: schema.FormatTime(info.Created),
	}
}

func (s *Shard) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	return streamInfo(ctx, s.js, s.Names.EventStream())
}

// PurgeRun permanently removes a run's events below a stream sequence from the log, and returns their number. Purge
// only events that are proven to be in segments of the run's checkpoint, and never the run's last event:
// compare-and-set on an empty subject starts from nothing. Missing events are no error, so a purge with an unknown
// outcome may be repeated. It returns [ErrUnavailable] (outcome unknown) or [ErrStreamMissing].
func (s *Shard) PurgeRun(ctx context.Context, run string, below schema.StreamSequence) (int64, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return 0, err
	}
	if below <= 1 {
		return 0, nil // the server takes 0 as everything
	}
	n, err := purge(ctx, s.js, s.Names.EventStream(), jsapi.PurgeRequest{Filter: s.Names.EventSubject(run), Below: uint64(below)})
	if err != nil {
		return 0, fmt.Errorf("purge run %s below %d from %s: %w", run, below, s.Names.EventStream(), err)
	}
	return int64(n), nil //nolint:gosec // a number of messages
}

// PositionAt returns the stream sequence of the first event that the server stored at or after a time, or the one
// after the last event. It costs the same wherever that is.
func (s *Shard) PositionAt(ctx context.Context, at time.Time) (schema.StreamSequence, error) {
	b := &bucket{js: s.js, stream: s.Names.EventStream()}
	var first schema.Revision
	_, err := b.direct(ctx, jsapi.GetRequest{Start: at.UTC(), Batch: 1}, func(e entry) { first = e.rev })
	if err != nil {
		return 0, fmt.Errorf("first event of %s at %s: %w", b.stream, at.Format(time.RFC3339), err)
	}
	if first != 0 {
		return schema.StreamSequence(first), nil
	}
	u, err := s.Usage(ctx)
	return u.Last + 1, err
}
