package eventlog_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

func logOf(t *testing.T, config jetstream.StreamConfig) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	config.Name, config.Subjects, config.AllowDirect = names.EventStream(), []string{names.EventSubjects()}, true
	_, err := js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	return js.Conn(), js
}

func event(id string) *schema.Event {
	return &schema.Event{ID: id, Source: schema.Source("f", "e"), Type: schema.TypeOf(schema.Barrier), Subject: "r1", Time: schema.FormatTime(time.Now())}
}

func TestAppend_LastMessage_IsCompared(t *testing.T) {
	t.Parallel()
	nc, _ := logOf(t, jetstream.StreamConfig{})
	request := nc.RequestMsgWithContext
	first := eventlog.Append(t.Context(), request, eventlog.Message(names, event("a")), 0)
	require.Equal(t, eventlog.Appended{Outcome: eventlog.Stored, Stream: 1}, first)

	again := eventlog.Append(t.Context(), request, eventlog.Message(names, event("a")), 1)
	require.Equal(t, eventlog.Appended{Outcome: eventlog.Stored, Stream: 1, Duplicate: true}, again)

	behind := eventlog.Append(t.Context(), request, eventlog.Message(names, event("b")), 0)
	require.Equal(t, eventlog.Outdated, behind.Outcome)
	require.EqualValues(t, 1, behind.Stream, "the answer names the run's last message")
	require.Error(t, behind.Err)

	require.Equal(t, eventlog.Appended{Outcome: eventlog.Stored, Stream: 2}, eventlog.Append(t.Context(), request, eventlog.Message(names, event("b")), 1))
}

func TestAppend_EachRefusal_HasItsOutcome(t *testing.T) {
	t.Parallel()
	nc, _ := logOf(t, jetstream.StreamConfig{MaxMsgSize: 1 << 10, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	large := eventlog.Message(names, event("large"))
	large.Data = make([]byte, 2<<10)
	require.Equal(t, eventlog.Oversized, eventlog.Append(t.Context(), nc.RequestMsgWithContext, large, 0).Outcome)
	require.Equal(t, eventlog.Stored, eventlog.Append(t.Context(), nc.RequestMsgWithContext, eventlog.Message(names, event("a")), 0).Outcome)
	full := eventlog.Append(t.Context(), nc.RequestMsgWithContext, eventlog.Message(names, event("b")), 1)
	require.Equal(t, eventlog.Full, full.Outcome)
	require.True(t, eventlog.ResourcesExhausted(full.Err))
	elsewhere := eventlog.Message(schema.NamesOf("none", 0), event("a"))
	require.Equal(t, eventlog.Unsent, eventlog.Append(t.Context(), nc.RequestMsgWithContext, elsewhere, 0).Outcome)
	silent := func(context.Context, *nats.Msg) (*nats.Msg, error) { return nil, context.DeadlineExceeded }
	require.Equal(t, eventlog.Unanswered, eventlog.Append(t.Context(), silent, eventlog.Message(names, event("c")), 1).Outcome)
}
