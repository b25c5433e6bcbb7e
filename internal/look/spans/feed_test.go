package spans_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/spans"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fleet is a log on a real server, and all that was ever in it.
type fleet struct {
	t     *testing.T
	js    jetstream.JetStream
	names schema.Names
	path  string

	mu      sync.Mutex
	history map[string][]schema.Record
	// reads counts the runs that were read again.
	reads atomic.Int64
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default"}))
	return &fleet{
		t: t, js: js, names: schema.NamesOf("default", 0), history: make(map[string][]schema.Record),
		path: filepath.Join(t.TempDir(), "state", "otel.json"),
	}
}

// publish puts the records from..to of a log into the stream, as an executor does.
func (f *fleet) publish(l *log, from, to int) {
	f.t.Helper()
	for i := from; i <= to; i++ {
		rec := l.records[i-1]
		msg := nats.NewMsg(f.names.EventSubject(l.run))
		msg.Header, msg.Data = nats.Header(rec.Header), rec.Body
		last := schema.StreamSequence(0)
		f.mu.Lock()
		if h := f.history[l.run]; len(h) > 0 {
			last = h[len(h)-1].Stream
		}
		f.mu.Unlock()
		ack, err := f.js.PublishMsg(f.t.Context(), msg, jetstream.WithExpectLastSequencePerSubject(uint64(last)))
		require.NoError(f.t, err)
		rec.Stream = schema.StreamSequence(ack.Sequence)
		f.mu.Lock()
		f.history[l.run] = append(f.history[l.run], rec)
		f.mu.Unlock()
	}
}

// purge takes all but the run's last message out of the stream, as the purger does.
func (f *fleet) purge(run string) {
	f.t.Helper()
	stream, err := f.js.Stream(f.t.Context(), f.names.EventStream())
	require.NoError(f.t, err)
	require.NoError(f.t, stream.Purge(f.t.Context(), jetstream.WithPurgeSubject(f.names.EventSubject(run)), jetstream.WithPurgeKeep(1)))
}

func (f *fleet) read(_ context.Context, run string, yield func(schema.Record) error) error {
	f.reads.Add(1)
	f.mu.Lock()
	records := append([]schema.Record(nil), f.history[run]...)
	f.mu.Unlock()
	if len(records) == 0 {
		return spans.ErrNoRun
	}
	for _, rec := range records {
		if err := yield(rec); err != nil {
			return err
		}
	}
	return nil
}

// follow runs a feed to the end of the log, as one process after another would.
func (f *fleet) follow(export func(context.Context, []*tracepb.Span) error, change ...func(*spans.FeedConfig)) error {
	f.t.Helper()
	positions, err := spans.OpenPositions(f.path, "default")
	require.NoError(f.t, err)
	defer func() { require.NoError(f.t, positions.Close()) }()
	config := spans.FeedConfig{
		Keys:  keyless,
		Names: f.names, JetStream: f.js, History: f.read, Export: export, Positions: positions, All: true, NoFollow: true,
	}
	for _, c := range change {
		c(&config)
	}
	return spans.NewFeed(config, natstest.Logger(f.t)).Run(f.t.Context())
}

// into is an export that always succeeds.
func (c *collector) into() func(context.Context, []*tracepb.Span) error {
	exporter := spans.NewExporter(c, spans.ExporterConfig{}, zerolog.Nop())
	return exporter.Export
}

// names of all spans, once each.
func requireOnce(t *testing.T, want, got []*tracepb.Span) {
	t.Helper()
	ids := byID(t, got)
	for _, s := range want {
		require.Contains(t, ids, key(s.GetTraceId(), s.GetSpanId()), s.GetName())
	}
	require.Len(t, got, len(want))
}

func TestFeed_Restart_NoLossNoDuplicates(t *testing.T) {
	t.Parallel()
	// The process ends after each number of events, within turns, calls and epochs.
	f, l := newFleet(t), recovered(t)
	got := new(collector)
	for i := range l.records {
		f.publish(l, i+1, i+1)
		require.NoError(t, f.follow(got.into()))
	}
	requireOnce(t, l.all(spans.Options{}), got.all())
	require.Positive(t, f.reads.Load(), "the run was read again where the last process knew it")
}

func TestFeed_FollowedRun_NotReadAgain(t *testing.T) {
	t.Parallel()
	f, l := newFleet(t), recovered(t)
	f.publish(l, 1, len(l.records))
	got := new(collector)
	require.NoError(t, f.follow(got.into()))
	requireOnce(t, l.all(spans.Options{}), got.all())
	require.Zero(t, f.reads.Load())
}

func TestFeed_Position_OnlyAfterExport(t *testing.T) {
	t.Parallel()
	f, l := newFleet(t), recovered(t)
	f.publish(l, 1, 8)
	got := new(collector)
	away := errors.New("away")
	require.ErrorIs(t, f.follow(func(context.Context, []*tracepb.Span) error { return fmt.Errorf("%w: %w", spans.ErrCollector, away) }), away)
	f.publish(l, 9, len(l.records))
	require.NoError(t, f.follow(got.into()))
	requireOnce(t, l.all(spans.Options{}), got.all())
}

func TestFeed_EventsPurgedUnread_ReadFromRun(t *testing.T) {
	t.Parallel()
	f, l, other := newFleet(t), recovered(t), newLog(t, "other")
	other.add(started()).add(&schema.TurnStartedData{Turn: 1}).add(called("o1", "search")).add(&schema.ToolReturnedData{ToolCallID: "o1"})
	other.add(&schema.TurnEndedData{Turn: 1}).add(&schema.RunEndedData{Status: "completed"})
	got := new(collector)
	f.publish(l, 1, 4)
	require.NoError(t, f.follow(got.into()))
	// While no feed reads, one run continues, another one starts and ends, and both are moved to segments.
	f.publish(l, 5, 12)
	f.publish(other, 1, len(other.records))
	f.purge(l.run)
	f.purge(other.run)
	require.NoError(t, f.follow(got.into()))
	f.publish(l, 13, len(l.records))
	require.NoError(t, f.follow(got.into()))
	requireOnce(t, append(l.all(spans.Options{}), other.all(spans.Options{})...), got.all())
}

func TestFeed_MoreRunsThanFollowed_AllExported(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	var want []*tracepb.Span
	var logs []*log
	for i := range 7 {
		l := renamed(t, fmt.Sprintf("run-%d", i))
		logs = append(logs, l)
		want = append(want, l.all(spans.Options{})...)
	}
	for n := range logs[0].records {
		for _, l := range logs {
			f.publish(l, n+1, n+1)
		}
	}
	got := new(collector)
	require.NoError(t, f.follow(got.into(), func(c *spans.FeedConfig) { c.MaxRuns = 2 }))
	requireOnce(t, want, got.all())
	require.Greater(t, f.reads.Load(), int64(10))
}

// renamed is recovered with another run id.
func renamed(t *testing.T, run string) *log {
	t.Helper()
	from, l := recovered(t), newLog(t, run)
	for i := range from.records {
		e, err := schema.Decode(from.records[i].Header, from.records[i].Body)
		require.NoError(t, err)
		data, err := schema.ParseData(e)
		require.NoError(t, err)
		switch d := data.(type) {
		case *schema.RunResumedData:
			l.takeover(d.Executor, d.Reason)
		case *schema.RunOrphanedData:
			l.control(d)
		default:
			l.add(d)
		}
	}
	return l
}

func TestFeed_NewEvents_CloseOpenSpans(t *testing.T) {
	t.Parallel()
	f, l := newFleet(t), recovered(t)
	f.publish(l, 1, 7)
	got := new(collector)
	now := func(c *spans.FeedConfig) { c.All = false }
	require.NoError(t, f.follow(got.into(), now))
	require.Empty(t, got.all(), "it begins at the end of the log")
	f.publish(l, 8, len(l.records))
	require.NoError(t, f.follow(got.into(), now))
	before := len(track(t, "default", l.run, l.records[:7], spans.Options{}))
	want := l.all(spans.Options{})[before:]
	requireOnce(t, want, got.all())
	require.Equal(t, at(1), named(t, want[:4], "invoke_agent fixer").GetStartTimeUnixNano(), "as it was begun, not as it was first seen")
}

func TestFeed_NewEvents_Continues(t *testing.T) {
	t.Parallel()
	f, l := newFleet(t), recovered(t)
	positions, err := spans.OpenPositions(f.path, "default")
	require.NoError(t, err)
	_, err = spans.OpenPositions(f.path, "default")
	require.ErrorIs(t, err, spans.ErrPosition, "one process at a time")
	got := new(collector)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- spans.NewFeed(spans.FeedConfig{
			Keys:  keyless,
			Names: f.names, JetStream: f.js, History: f.read, Export: got.into(), Positions: positions, All: true,
		}, natstest.Logger(t)).Run(ctx)
	}()
	want := l.all(spans.Options{})
	// What is no event, or no header block at all, is passed over.
	_, err = f.js.Publish(t.Context(), f.names.EventSubject("junk"), []byte("junk"))
	require.NoError(t, err)
	for i := range l.records {
		f.publish(l, i+1, i+1)
	}
	require.Eventually(t, func() bool { return len(got.all()) == len(want) }, time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		at, ok := positions.Get(0)
		return ok && int(at.Cursor) == len(l.records)+1 && at.Floor == at.Cursor
	}, time.Minute, 20*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, positions.Close())
	requireOnce(t, want, got.all())
}

func TestFeed_LogEndsBeforePosition_Reported(t *testing.T) {
	t.Parallel()
	f, l := newFleet(t), recovered(t)
	f.publish(l, 1, 3)
	positions, err := spans.OpenPositions(f.path, "default")
	require.NoError(t, err)
	require.NoError(t, positions.Put(0, spans.Position{Cursor: 9, Floor: 9}))
	require.NoError(t, positions.Close())
	err = f.follow(new(collector).into())
	require.ErrorIs(t, err, spans.ErrPosition)
	require.ErrorContains(t, err, "ends at 3, but 9 was exported")
	_, err = spans.OpenPositions(f.path, "another")
	require.ErrorIs(t, err, spans.ErrPosition)
	require.ErrorContains(t, err, "belongs to fleet default")
}
