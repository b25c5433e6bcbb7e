package kvstore_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

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

func TestDeadLetterKeepsTheWholeMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := letters(t, b)
	// What a hostile or foreign client sent, as the log has it.
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
		require.NoError(t, d.Put(t.Context(), l))
	}
	list, next, err := d.List(t.Context(), kvstore.LetterFilter{}, 0, 10)
	require.NoError(t, err)
	require.Zero(t, next)
	require.Len(t, list, 4, "no header of an original had power over the stream")
	first := list[0]
	require.NoError(t, first.Err)
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
	require.False(t, first.Filed.IsZero())
	require.Equal(t, "plain", string(list[1].Body))
	require.Empty(t, list[1].Header)
	require.Empty(t, list[2].Body)
	require.Equal(t, "b", list[2].Header["a"][0])
	require.Len(t, list[3].Body, 400<<10)
}

func TestLargestMessageThatTheLogTakesFitsADeadLetter(t *testing.T) {
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
		require.NoError(t, letters(t, b).Put(t.Context(), l), name)
	}
	list, _, err := letters(t, b).List(t.Context(), kvstore.LetterFilter{}, 0, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, l := range list {
		require.NoError(t, l.Err)
	}
}

func TestSameLetterIsFiledOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := letters(t, b)
	l := letter(1, schema.ReasonFenced, "run-1")
	require.NoError(t, d.Put(t.Context(), l))
	require.NoError(t, d.Put(t.Context(), l))
	l.Incarnation = "2026-02-02T00:00:00Z"
	require.NoError(t, d.Put(t.Context(), l), "the same sequence of another incarnation is another message")
	l.Body = []byte("[")
	require.NoError(t, d.Put(t.Context(), l), "and so is another message at a sequence that damage freed")
	list, _, err := d.List(t.Context(), kvstore.LetterFilter{}, 0, 10)
	require.NoError(t, err)
	require.Len(t, list, 3)
}

func TestDeadLettersAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	d := letters(t, newBench(t))
	list, next, err := d.List(t.Context(), kvstore.LetterFilter{}, 0, 10)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Zero(t, next)
	for i := range 10 {
		reason, run := schema.ReasonFenced, "run-1"
		if i%2 == 1 {
			reason, run = schema.ReasonGap, "not valid"
		}
		require.NoError(t, d.Put(t.Context(), letter(schema.StreamSequence(i+1), reason, run))) //nolint:gosec // small
	}
	var got []schema.StreamSequence
	for pages, after := 0, uint64(0); ; pages++ {
		require.Less(t, pages, 3)
		list, after, err = d.List(t.Context(), kvstore.LetterFilter{Reason: schema.ReasonFenced}, after, 2)
		require.NoError(t, err)
		for _, l := range list {
			got = append(got, l.Stream)
		}
		if after == 0 {
			break
		}
	}
	require.Equal(t, []schema.StreamSequence{1, 3, 5, 7, 9}, got)
	list, _, err = d.List(t.Context(), kvstore.LetterFilter{Run: "_"}, 0, 100)
	require.NoError(t, err)
	require.Len(t, list, 5)
	require.Empty(t, list[0].Run)
	for _, f := range []kvstore.LetterFilter{{Reason: ">"}, {Run: "*"}, {Run: "a.b"}} {
		_, _, err = d.List(t.Context(), f, 0, 1)
		require.Error(t, err)
	}
}

func TestUnreadableLetterDoesNotEndTheList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.js.Publish(t.Context(), schema.DeadLetterSubject("alpha", schema.ReasonGap, "run-1"), []byte("junk"))
	require.NoError(t, err)
	require.NoError(t, letters(t, b).Put(t.Context(), letter(1, schema.ReasonGap, "run-1")))
	list, _, err := letters(t, b).List(t.Context(), kvstore.LetterFilter{}, 0, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.ErrorIs(t, list[0].Err, kvstore.ErrCorrupt)
	require.Equal(t, "junk", string(list[0].Body))
	require.NoError(t, list[1].Err)
}

func TestIncompleteLetterIsRefused(t *testing.T) {
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
		require.Error(t, d.Put(t.Context(), l))
	}
}
