package spans_test

import (
	"context"
	"encoding/hex"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/spans"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// zero is when the logs of these tests begin; each event comes a second after the one before.
var zero = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// log writes the log of one run.
type log struct {
	t       *testing.T
	run     string
	head    schema.Head
	records []schema.Record
	nonce   int
	turn    int32
}

func newLog(t *testing.T, run string) *log {
	t.Helper()
	return &log{t: t, run: run, head: schema.NewHead("default", run)}
}

// at is the time of the event number n, from 1.
func at(n int) uint64 { return uint64(zero.Add(time.Duration(n) * time.Second).UnixNano()) }

// add appends an executor's event, and control one of the daemon's. The fold must take it.
func (l *log) add(data schema.Data) *log {
	l.t.Helper()
	l.put(data, func(e *schema.Event) {
		e.Source, e.Epoch, e.Sequence, e.Turn = schema.Source("default", "worker-"+strconv.Itoa(int(max(l.head.Epoch, 1)))), max(l.head.Epoch, 1), l.head.Sequence+1, l.turn
		e.ID = schema.EventID(l.run, e.Epoch, e.Sequence, e.ContentHash())
	})
	return l
}

func (l *log) control(data schema.Data) *log {
	l.t.Helper()
	l.put(data, func(e *schema.Event) {
		l.nonce++
		e.Source, e.Epoch = schema.Source("default", "daemon"), l.head.Epoch
		if data.EventName() == schema.RunResumed {
			e.Epoch++
		}
		e.ID = schema.ControlID(l.run, e.Epoch, strconv.Itoa(l.nonce))
	})
	return l
}

func (l *log) takeover(executor, reason string) *log {
	l.t.Helper()
	h := &l.head
	return l.control(&schema.RunResumedData{
		Executor: executor, Reason: reason, RequestID: "request-" + strconv.Itoa(l.nonce),
		From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest},
	})
}

func (l *log) put(data schema.Data, address func(*schema.Event)) {
	l.t.Helper()
	switch d := data.(type) {
	case *schema.TurnStartedData:
		l.turn = d.Turn
	case *schema.TurnAnsweredData:
		l.turn = d.Turn
	case *schema.RunEndedData:
		l.turn = 0
	}
	body, err := schema.MarshalData(data)
	require.NoError(l.t, err)
	e := &schema.Event{
		Type: schema.TypeOf(data.EventName()), Subject: l.run, Data: body, DataContentType: schema.ContentTypeJSON,
		Time: schema.FormatTime(zero.Add(time.Duration(len(l.records)+1) * time.Second)),
	}
	address(e)
	header, raw := e.Encode()
	rec := schema.NewRecord(schema.StreamSequence(len(l.records)+1), header, raw)
	v := l.head.Apply(schema.NoKeys, &rec)
	require.Equal(l.t, schema.Applied, v.Kind, "%s: %s %s", e.Type, v.Reason, v.Detail)
	l.records = append(l.records, rec)
}

// all are the spans of the whole log, in the order in which they end.
func (l *log) all(opts spans.Options) []*tracepb.Span {
	l.t.Helper()
	return track(l.t, "default", l.run, l.records, opts)
}

func track(t *testing.T, fleet, run string, records []schema.Record, opts spans.Options) []*tracepb.Span {
	t.Helper()
	tracker := spans.NewTracker(fleet, run, opts)
	var all []*tracepb.Span
	for i := range records {
		ended, missing := tracker.Apply(schema.NoKeys, &records[i])
		require.False(t, missing)
		all = append(all, ended...)
	}
	return all
}

// get returns an attribute as text, "" when it is not there.
func get(attributes []*commonpb.KeyValue, key string) string {
	for _, a := range attributes {
		if a.GetKey() != key {
			continue
		}
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			return v.StringValue
		case *commonpb.AnyValue_IntValue:
			return strconv.FormatInt(v.IntValue, 10)
		default:
			return a.GetValue().String()
		}
	}
	return ""
}

// named returns the only span with the name.
func named(t *testing.T, all []*tracepb.Span, name string) *tracepb.Span {
	t.Helper()
	var found *tracepb.Span
	for _, s := range all {
		if s.GetName() == name {
			require.Nil(t, found, "%s is there twice", name)
			found = s
		}
	}
	require.NotNil(t, found, "no span %s", name)
	return found
}

// byID requires that every span is there once, and that parents are spans of the trace.
func byID(t *testing.T, all []*tracepb.Span) map[string]*tracepb.Span {
	t.Helper()
	ids := make(map[string]*tracepb.Span)
	for _, s := range all {
		id := hex.EncodeToString(s.GetTraceId()) + hex.EncodeToString(s.GetSpanId())
		require.NotContains(t, ids, id, "span %s is there twice", s.GetName())
		ids[id] = s
		require.LessOrEqual(t, s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano(), s.GetName())
	}
	return ids
}

// collector takes spans in memory, or fails.
type collector struct {
	mu    sync.Mutex
	spans []*tracepb.Span
	// fail is asked first.
	fail func(spans []*tracepb.Span) error
}

func (c *collector) UploadTraces(_ context.Context, resources []*tracepb.ResourceSpans) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range resources {
		for _, s := range r.GetScopeSpans() {
			if c.fail != nil {
				if err := c.fail(s.GetSpans()); err != nil {
					return err
				}
			}
			c.spans = append(c.spans, s.GetSpans()...)
		}
	}
	return nil
}

func (c *collector) all() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tracepb.Span(nil), c.spans...)
}

func key(trace, span []byte) string { return hex.EncodeToString(trace) + hex.EncodeToString(span) }

// keyless are the keys of a fleet that has none.
func keyless(context.Context) (*schema.Keys, error) { return schema.NoKeys, nil }
