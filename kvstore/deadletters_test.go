package kvstore_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func letter(at schema.StreamSequence, reason schema.Reason, run string) kvstore.DeadLetter {
	return kvstore.DeadLetter{
		Reason: reason, Run: run, EventStream: eventStream, Stream: at, Incarnation: "2026-01-01T00:00:00Z",
		Subject: "waymark.events.alpha.0." + run, Stored: time.Unix(1700000000, 5).UTC(), Body: []byte("{"),
	}
}

func letters(tb testing.TB, b *bench) *kvstore.DeadLetters {
	tb.Helper()
	d, err := kvstore.NewDeadLetters(b.js, "alpha")
	require.NoError(tb, err)
	return d
}

func file(tb testing.TB, d *kvstore.DeadLetters, l kvstore.DeadLetter) error {
	tb.Helper()
	return d.PutBatch(tb.Context(), []kvstore.DeadLetter{l})[0]
}

func TestDeadLetter_Message_KeptWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := letters(t, b)
	// Messages of a hostile or foreign client in the log.
	for i, msg := range []*nats.Msg{
		{Header: nats.Header{
			"Nats-Rollup": {"all"}, "Nats-TTL": {"1s"}, "Nats-Msg-Id": {"mine"}, "ce-id": {"a", "b"}, "CE-ID": {"c"},
			"Nats-Expected-Last-Sequence": {"99"}, "Status": {"404"}, "Waymark-Reason": {"forged"}, "x": {""}, "odd name": {"ü\u202e"},
		}, Data: []byte("\x00\xff\r\n\r\nbody")},
		{Data: []byte("plain")},
		{Header: nats.Header{"a": {"b"}}},
		{Header: nats.Header{"big": {strings.Repeat("h", 100<<10)}}, Data: bytes.Repeat([]byte{7}, 400<<10)},
	} {
		msg.Subject = b.names.EventSubject("run-1")
		l := letter(schema.StreamSequence(i+1), schema.ReasonNotCloudEvent, "run-1") //nolint:gosec // small
		l.Header, l.Body, l.Detail = msg.Header, msg.Data, "line\r\nbreak \x1b[31m"
		require.NoError(t, file(t, d, l))
	}
	list := fleettest.Letters(t, b.js, "alpha")
	require.Len(t, list, 4, "no header of an original had power over the stream")
	first := list[0]
	require.Equal(t, map[string][]string{
		"Nats-Rollup": {"all"}, "Nats-TTL": {"1s"}, "Nats-Msg-Id": {"mine"}, "ce-id": {"a", "b"}, "CE-ID": {"c"},
		"Nats-Expected-Last-Sequence": {"99"}, "Status": {"404"}, "Waymark-Reason": {"forged"}, "x": {""}, "odd name": {"ü\u202e"},
	}, first.Header)
	require.Equal(t, "\x00\xff\r\n\r\nbody", string(first.Body))
	require.Equal(t, schema.ReasonNotCloudEvent, first.Reason)
	require.Equal(t, "line??break ?[31m", first.Detail)
	require.Equal(t, "run-1", first.Run)
	require.Equal(t, eventStream, first.EventStream)
	require.EqualValues(t, 1, first.Stream)
	require.Equal(t, "2026-01-01T00:00:00Z", first.Incarnation)
	require.Equal(t, "waymark.events.alpha.0.run-1", first.Subject)
	require.Equal(t, time.Unix(1700000000, 5).UTC(), first.Stored)
	require.Equal(t, "plain", string(list[1].Body))
	require.Empty(t, list[1].Header)
	require.Empty(t, list[2].Body)
	require.Equal(t, "b", list[2].Header["a"][0])
	require.Len(t, list[3].Body, 400<<10)
}

func TestDeadLetter_LargestMessage_Fits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, header := range map[string]func(n int) nats.Header{
		"short header lines": func(n int) nats.Header {
			h := nats.Header{}
			for i := range n / 12 {
				h[fmt.Sprintf("a%06d", i)] = []string{"b"}
			}
			return h
		},
		"one line": func(n int) nats.Header { return nats.Header{"a": {strings.Repeat("\x01", n)}} },
	} {
		msg := &nats.Msg{Subject: b.names.EventSubject("run-1"), Header: header(63 << 10), Data: make([]byte, 448<<10)}
		_, err := b.js.PublishMsg(t.Context(), msg)
		require.NoError(t, err, name)
		l := letter(1, schema.ReasonInvalidData, strings.ReplaceAll(name, " ", "-"))
		l.Header, l.Body = msg.Header, msg.Data
		l.Detail, l.Subject = strings.Repeat("d", 9000), strings.Repeat("s", 9000)
		l.Incarnation = name
		require.NoError(t, file(t, letters(t, b), l), name)
	}
	list := fleettest.Letters(t, b.js, "alpha")
	require.Len(t, list, 2)
}

func TestDeadLetter_Repeated_FiledOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := letters(t, b)
	l := letter(1, schema.ReasonFenced, "run-1")
	require.NoError(t, file(t, d, l))
	require.NoError(t, file(t, d, l))
	l.Incarnation = "2026-02-02T00:00:00Z"
	require.NoError(t, file(t, d, l), "the same sequence of another incarnation is another message")
	l.Body = []byte("[")
	require.NoError(t, file(t, d, l), "and so is another message at a sequence that damage freed")
	list := fleettest.Letters(t, b.js, "alpha")
	require.Len(t, list, 3)
}

func TestDeadLetter_Incomplete_Refused(t *testing.T) {
	t.Parallel()
	d := letters(t, newBench(t))
	for _, spoil := range []func(*kvstore.DeadLetter){
		func(l *kvstore.DeadLetter) { l.Reason = "" },
		func(l *kvstore.DeadLetter) { l.Reason = "a.b" },
		func(l *kvstore.DeadLetter) { l.Stream = 0 },
		func(l *kvstore.DeadLetter) { l.Incarnation = "" },
		func(l *kvstore.DeadLetter) { l.EventStream = "" },
	} {
		l := letter(1, schema.ReasonGap, "run-1")
		spoil(&l)
		require.Error(t, file(t, d, l))
	}
}

func TestDeadLetters_PutBatch_AreInFlightTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.js.DeleteStream(t.Context(), schema.DeadLetterStream("alpha")))
	const n = 100
	puts := make(chan *nats.Msg, n)
	_, err := b.nc.ChanSubscribe(schema.DeadLetterSubjects("alpha"), puts) // instead of the stream
	require.NoError(t, err)
	require.NoError(t, b.nc.Flush())
	batch := make([]kvstore.DeadLetter, n)
	for i := range batch {
		batch[i] = letter(schema.StreamSequence(i+1), schema.ReasonGap, "run-1") //nolint:gosec // small
	}
	filed := make(chan []error, 1)
	d := letters(t, b)
	go func() { filed <- d.PutBatch(t.Context(), batch) }()
	var waiting []*nats.Msg
	for range n { // none is answered before the last one arrived
		waiting = append(waiting, <-puts)
	}
	for i, m := range waiting[1:] {
		require.NoError(t, m.Respond(fmt.Appendf(nil, `{"stream":"S","seq":%d}`, i+1)))
	}
	require.NoError(t, waiting[0].Respond([]byte(`{"error":{"code":503,"err_code":10077,"description":"no room"}}`)))
	errs := <-filed
	require.ErrorIs(t, errs[0], kvstore.ErrUnavailable)
	require.ErrorContains(t, errs[0], eventStream+" at 1")
	for _, err := range errs[1:] {
		require.NoError(t, err)
	}
}

func TestDeadLetters_TooLargeLetter_IsFiledWithoutItsContent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stream, err := b.js.Stream(t.Context(), schema.DeadLetterStream("alpha"))
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxMsgSize = 2 << 10
	_, err = b.js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	d := letters(t, b)
	large := letter(1, schema.ReasonGap, "run-1")
	large.Header, large.Body, large.Detail = nats.Header{"a": {"b"}}, make([]byte, 4<<10), "the detail stays"
	beyond := letter(2, schema.ReasonGap, "run-1")
	beyond.Body = make([]byte, b.nc.MaxPayload()+1)
	hopeless := letter(3, schema.ReasonGap, "run-1")
	hopeless.Detail, hopeless.Subject = strings.Repeat("d", 1<<10), strings.Repeat("s", 1<<10)
	batch := []kvstore.DeadLetter{large, beyond, hopeless, letter(4, schema.ReasonGap, "run-1")}
	errs := d.PutBatch(t.Context(), batch)
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.ErrorIs(t, errs[2], kvstore.ErrTooLarge)
	require.NoError(t, errs[3])
	list := fleettest.Letters(t, b.js, "alpha")
	require.Len(t, list, 3)
	at := map[schema.StreamSequence]kvstore.DeadLetter{}
	for _, l := range list {
		at[l.Stream] = l
	}
	require.Equal(t, 4<<10+len("NATS/1.0\r\na:b\r\n\r\n"), at[1].Cut)
	require.Equal(t, at[1].Cut, batch[0].Cut)
	require.Empty(t, at[1].Header)
	require.Empty(t, at[1].Body)
	require.Equal(t, "the detail stays", at[1].Detail)
	require.EqualValues(t, b.nc.MaxPayload()+1, at[2].Cut)
	require.Zero(t, at[4].Cut)
	require.Equal(t, "{", string(at[4].Body))
}
