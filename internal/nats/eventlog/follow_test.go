package eventlog_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

func TestFollower_OddMessages_EachOnce(t *testing.T) {
	t.Parallel()
	js := start(t)
	for _, header := range []nats.Header{
		nil,
		{"Status": {"100"}},
		{"Status": {"404"}},
		{"Status": {"503"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
	} {
		publish(t, js, "a", header, nil)
	}
	last := publish(t, js, "b", nil, []byte("end"))
	f, err := eventlog.Follow(t.Context(), js.Conn(), js, names, eventlog.FollowFrom{})
	require.NoError(t, err)
	defer f.Close(t.Context(), js)
	require.Equal(t, uint64(last), f.Pending())
	for want := schema.StreamSequence(1); want <= last; want++ {
		m, err := f.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, m.Record.Stream)
		require.Equal(t, uint64(last-want), m.Pending)
	}
}

func TestFollower_Start_AtPosition(t *testing.T) {
	t.Parallel()
	js := start(t)
	publish(t, js, "a", nil, []byte("1"))
	publish(t, js, "b", nil, []byte("2"))
	publish(t, js, "a", nil, []byte("3"))
	next := func(from eventlog.FollowFrom) string {
		f, err := eventlog.Follow(t.Context(), js.Conn(), js, names, from)
		require.NoError(t, err)
		defer f.Close(t.Context(), js)
		if from.New {
			publish(t, js, "a", nil, []byte("new"))
		}
		m, err := f.Next(t.Context())
		require.NoError(t, err)
		return string(m.Record.Body)
	}
	require.Equal(t, "1", next(eventlog.FollowFrom{}))
	require.Equal(t, "2", next(eventlog.FollowFrom{Stream: 2}))
	require.Equal(t, "3", next(eventlog.FollowFrom{Stream: 2, Run: "a"}))
	require.Equal(t, "new", next(eventlog.FollowFrom{New: true}))
}

func TestFollower_ArrivedMessages_WithoutWaiting(t *testing.T) {
	t.Parallel()
	js := start(t)
	f, err := eventlog.Follow(t.Context(), js.Conn(), js, names, eventlog.FollowFrom{})
	require.NoError(t, err)
	defer f.Close(t.Context(), js)
	_, there, err := f.NextIfThere()
	require.NoError(t, err)
	require.False(t, there)
	const all = 5000 // more than one request delivers
	go func() {
		for range all {
			_ = js.Conn().Publish(names.EventSubject("a"), nil)
		}
	}()
	got := schema.StreamSequence(0)
	for got < all {
		a, err := f.Next(t.Context())
		for there = true; there; a, there, err = f.NextIfThere() {
			require.NoError(t, err)
			got++
			require.Equal(t, got, a.Record.Stream)
		}
		require.NoError(t, err)
	}
}
