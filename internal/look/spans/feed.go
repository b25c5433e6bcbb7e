package spans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// batchSpans and batchBytes bound one request, and historySpans the spans of one run's history in memory.
	batchSpans   = 512
	batchBytes   = 1 << 20
	historySpans = 4 * batchSpans
	// lingers is how long an ended span waits for others.
	lingers = time.Second
	// lookEvery is the poll interval at the end of the log, and retryEvery the wait after a failed read.
	lookEvery  = 500 * time.Millisecond
	retryEvery = time.Second
)

// FeedConfig configures a feed.
type FeedConfig struct {
	Names schema.Names
	// JetStream reads the log by direct gets: an observer's permissions are enough.
	JetStream jetstream.JetStream
	// History calls yield for all records of a run, including those in segments; see publisher.Reader.Events. Its error
	// wraps [ErrNoRun] for a run that does not exist, and [ErrIncomplete] if events are lost.
	History func(ctx context.Context, run string, yield func(schema.Record) error) error
	// Keys returns the keys that verify the fleet's control events. Required.
	Keys func(ctx context.Context) (*schema.Keys, error)
	// Export returns when the spans are accepted.
	Export func(ctx context.Context, spans []*tracepb.Span) error
	// Positions stores the progress.
	Positions *Positions
	// All begins with the log's first event instead of its end, if there is no position yet.
	All bool
	// NoFollow ends the feed at the end of the log.
	NoFollow bool
	Options  Options
	// Removed, if not nil, is called for each run that no longer exists: its unexported spans are omitted.
	Removed func(run string)
	// MaxRuns bounds the runs that are followed at once; 0 means [DefaultMaxRuns]. Other runs are read again when they
	// continue.
	MaxRuns int
}

// DefaultMaxRuns is how many runs of a shard are followed at once.
const DefaultMaxRuns = 8192

// Feed follows the log of one shard.
type Feed struct {
	FeedConfig
	log zerolog.Logger
	at  Position
	// trackers are those of live runs, done the positions up to which the spans of other runs were made. A run in neither is
	// exported again from the feed's floor on.
	trackers map[string]*Tracker
	done     map[string]schema.StreamSequence
	// batch are ended, unsent spans of so many bytes; since is the time of the first one.
	batch []*tracepb.Span
	bytes int
	since time.Time
	// stored is the last stored position.
	stored Position
}

// NewFeed returns a feed.
func NewFeed(config FeedConfig, log zerolog.Logger) *Feed {
	if config.MaxRuns == 0 {
		config.MaxRuns = DefaultMaxRuns
	}
	return &Feed{FeedConfig: config, log: log.With().Int("shard", config.Names.Shard).Logger(), trackers: make(map[string]*Tracker), done: make(map[string]schema.StreamSequence)}
}

// Run follows the log until ctx ends, or to its end with NoFollow. It returns an error only if it cannot continue.
func (f *Feed) Run(ctx context.Context) error {
	begun := false
	for {
		err := f.begin(ctx)
		if err == nil {
			begun = true
			err = f.follow(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case errors.Is(err, ErrPosition), errors.Is(err, ErrCollector):
			return err
		case !begun && f.NoFollow:
			return err
		}
		f.log.Warn().Err(err).Msg("reading the log failed; retrying")
		if err := pause.For(ctx, retryEvery); err != nil {
			return err
		}
	}
}

// begin finds where to continue.
func (f *Feed) begin(ctx context.Context) error {
	if f.at != (Position{}) {
		return nil // the read failed
	}
	at, ok := f.Positions.Get(f.Names.Shard)
	stream, err := f.JetStream.Stream(ctx, f.Names.EventStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", f.Names.EventStream(), err)
	}
	last := schema.StreamSequence(stream.CachedInfo().State.LastSeq)
	switch {
	case ok && at.Cursor > last:
		return fmt.Errorf("%w: stream %s ends at %d, but %d was exported: it was damaged, restored or recreated", ErrPosition, f.Names.EventStream(), last, at.Cursor)
	case !ok && !f.All:
		at = Position{Cursor: last, Floor: last}
	}
	f.at, f.stored = at, at
	return f.Positions.Put(f.Names.Shard, at)
}

// follow reads from the cursor on.
func (f *Feed) follow(ctx context.Context) error {
	for {
		_, err := eventlog.Scan(ctx, f.JetStream, f.Names, eventlog.FollowFrom{Stream: f.at.Cursor + 1}, func(a eventlog.Arrived) error {
			if err := f.take(ctx, &a); err != nil {
				return err
			}
			f.at.Cursor = a.Record.Stream
			if len(f.batch) >= batchSpans || f.bytes >= batchBytes || time.Since(f.since) >= lingers {
				return f.flush(ctx)
			}
			return nil
		})
		if err != nil {
			return err
		}
		// Every run's last event stays in the log. When it arrived, events that had left the log unread were read from
		// the daemon.
		f.at.Floor = f.at.Cursor
		if f.NoFollow || len(f.batch) == 0 || time.Since(f.since) >= lingers {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
		if f.NoFollow {
			return nil
		}
		if err := pause.For(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// take converts one message to spans.
func (f *Feed) take(ctx context.Context, a *eventlog.Arrived) error {
	run := f.Names.RunOfSubject(a.Subject)
	if run == "" || run == schema.BarrierRun {
		return nil
	}
	keys, err := f.Keys(ctx)
	if err != nil {
		return err
	}
	tracker, done := f.trackers[run], f.done[run]
	if tracker == nil && done == 0 && isFirst(&a.Record) {
		tracker = NewTracker(f.Names.Fleet, run, f.Options)
	}
	if tracker != nil {
		done = tracker.Last()
		if a.Record.Behind <= done {
			if ended, missing := tracker.Apply(keys, &a.Record); !missing {
				f.seen(run, tracker)
				f.add(ended)
				return nil
			}
		}
		delete(f.trackers, run)
		f.done[run] = done
	}
	return f.rebuild(ctx, keys, run, done, a)
}

// rememberedRuns is how many times more runs are remembered only by their position.
const rememberedRuns = 16

// seen keeps the tracker of a live run, and the position of one that has ended: few events follow an end, and the run is
// read again for one. Beyond MaxRuns it forgets half of the trackers.
func (f *Feed) seen(run string, t *Tracker) {
	if len(f.done) >= rememberedRuns*f.MaxRuns {
		clear(f.done)
	}
	if t.Ended() {
		delete(f.trackers, run)
		f.done[run] = t.Last()
		return
	}
	if len(f.trackers) >= f.MaxRuns {
		for other, kept := range f.trackers {
			f.done[other] = kept.Last()
			if delete(f.trackers, other); len(f.trackers) <= f.MaxRuns/2 {
				break
			}
		}
	}
	f.trackers[run] = t
	delete(f.done, run)
}

// rebuild folds a run from its first event, and adds the spans that ended after the exported ones.
func (f *Feed) rebuild(ctx context.Context, keys *schema.Keys, run string, done schema.StreamSequence, a *eventlog.Arrived) error {
	if done == 0 {
		done = f.at.Floor
	}
	for {
		tracker := NewTracker(f.Names.Fleet, run, f.Options)
		var ended []*tracepb.Span
		errEnough := errors.New("enough")
		err := f.History(ctx, run, func(rec schema.Record) error {
			if rec.Stream > a.Record.Stream {
				return errEnough
			}
			spans, _ := tracker.Apply(keys, &rec)
			if rec.Stream <= done {
				return nil
			}
			ended = append(ended, spans...)
			if len(ended) < historySpans {
				return nil
			}
			out := ended
			ended = nil
			return f.Export(ctx, out)
		})
		switch {
		case err == nil, errors.Is(err, errEnough):
		case errors.Is(err, ErrNoRun):
			f.log.Warn().Str("run", run).Msg("run was removed; its unexported spans are omitted")
			if f.Removed != nil {
				f.Removed(run)
			}
		case errors.Is(err, ErrIncomplete):
			f.log.Warn().Str("run", run).Err(err).Msg("spans of lost events are missing")
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrCollector):
			return err
		default:
			f.log.Warn().Str("run", run).Err(err).Msg("could not read run; retrying")
			if err := pause.For(ctx, retryEvery); err != nil {
				return err
			}
			continue
		}
		if tracker.Last() < a.Record.Stream { // erased meanwhile, or never known
			spans, _ := tracker.Apply(keys, &a.Record)
			ended = append(ended, spans...)
		}
		f.seen(run, tracker)
		f.add(ended)
		return nil
	}
}

// isFirst reports whether an event is its run's first.
func isFirst(rec *schema.Record) bool {
	e, err := schema.Decode(rec.Header, rec.Body)
	return err == nil && e.Name() == schema.RunStarted && e.Epoch <= 1 && e.Sequence <= 1
}

func (f *Feed) add(ended []*tracepb.Span) {
	if len(f.batch) == 0 {
		f.since = time.Now()
	}
	for _, s := range ended {
		f.bytes += proto.Size(s)
	}
	f.batch = append(f.batch, ended...)
}

// flush exports the ended spans, and then stores the position.
func (f *Feed) flush(ctx context.Context) error {
	for len(f.batch) > 0 {
		n := min(len(f.batch), batchSpans)
		if err := f.Export(ctx, f.batch[:n]); err != nil {
			return err
		}
		f.batch = f.batch[n:]
	}
	f.batch, f.bytes, f.since = nil, 0, time.Now()
	if f.at == f.stored {
		return nil
	}
	if err := f.Positions.Put(f.Names.Shard, f.at); err != nil {
		return err
	}
	f.stored = f.at
	return nil
}
