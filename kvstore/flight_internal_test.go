package kvstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

// newBucketOf returns a bucket without a stream, and its connection.
func newBucketOf(t *testing.T) (*bucket, *nats.Conn) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	b := newBucket(js, "none")
	return &b, nc
}

func toX(int) (*nats.Msg, error) { return nats.NewMsg("x"), nil }

func ack(seq int) []byte { return fmt.Appendf(nil, `{"stream":"S","seq":%d}`, seq) }

func TestFly_AnswersOutOfOrder_Matched(t *testing.T) {
	t.Parallel()
	b, nc := newBucketOf(t)
	puts := make(chan *nats.Msg, 3)
	_, err := nc.ChanSubscribe("x", puts)
	require.NoError(t, err)
	done := make(chan []Result)
	go func() { done <- b.fly(t.Context(), 3, toX) }()
	first, second, third := <-puts, <-puts, <-puts
	require.NoError(t, third.Respond(ack(3)))
	require.NoError(t, first.Respond(ack(1)))
	require.NoError(t, first.Respond(ack(9)), "a second answer changes nothing")
	require.NoError(t, second.Respond(ack(2)))
	for i, r := range <-done {
		require.NoError(t, r.Err)
		require.EqualValues(t, i+1, r.Revision)
		require.NotZero(t, r.Bytes)
	}
}

func TestFly_MorePutsThanWindow_AllStored(t *testing.T) {
	t.Parallel()
	const items = 3*flightMessages + 1
	b, nc := newBucketOf(t)
	var waiting []*nats.Msg
	var answered atomic.Int64
	n := 0
	_, err := nc.Subscribe("x", func(m *nats.Msg) {
		n++
		if waiting = append(waiting, m); len(waiting) < flightMessages && n < items {
			return
		}
		for _, m := range waiting {
			_ = m.Respond(ack(int(answered.Add(1))))
		}
		waiting = nil
	})
	require.NoError(t, err)
	results := b.fly(t.Context(), items, func(i int) (*nats.Msg, error) {
		require.LessOrEqual(t, int64(i)-answered.Load(), int64(flightMessages))
		return nats.NewMsg("x"), nil
	})
	require.Len(t, results, items)
	for i, r := range results {
		require.NoError(t, r.Err)
		require.EqualValues(t, i+1, r.Revision)
	}
}

func TestFly_ConnectionClosed_PutsAbandoned(t *testing.T) {
	t.Parallel()
	b, nc := newBucketOf(t)
	puts := make(chan *nats.Msg, 2)
	_, err := nc.ChanSubscribe("x", puts)
	require.NoError(t, err)
	for _, r := range b.fly(t.Context(), 3, func(i int) (*nats.Msg, error) {
		if i == 2 {
			<-puts
			<-puts
			nc.Close()
		}
		return nats.NewMsg("x"), nil
	}) {
		require.ErrorIs(t, r.Err, ErrUnavailable)
		require.ErrorIs(t, r.Err, nats.ErrConnectionClosed, "not because of a timeout")
	}
}

func TestFly_NoResponders_StreamMissing(t *testing.T) {
	t.Parallel()
	b, _ := newBucketOf(t)
	require.ErrorIs(t, b.fly(t.Context(), 1, toX)[0].Err, ErrStreamMissing)
}

func TestFly_WrongMessage_OthersSent(t *testing.T) {
	t.Parallel()
	b, nc := newBucketOf(t)
	_, err := nc.Subscribe("x", func(m *nats.Msg) { _ = m.Respond(ack(7)) })
	require.NoError(t, err)
	results := b.fly(t.Context(), 2, func(i int) (*nats.Msg, error) {
		if i == 0 {
			return nil, ErrTooLarge
		}
		return nats.NewMsg("x"), nil
	})
	require.ErrorIs(t, results[0].Err, ErrTooLarge)
	require.NoError(t, results[1].Err)
}

func TestFly_AnotherFlight_SameInboxAndNoOldAnswer(t *testing.T) {
	t.Parallel()
	b, nc := newBucketOf(t)
	puts := make(chan *nats.Msg, 1)
	_, err := nc.ChanSubscribe("x", puts)
	require.NoError(t, err)
	fly := func(ctx context.Context) <-chan Result {
		done := make(chan Result, 1)
		go func() { done <- b.fly(ctx, 1, toX)[0] }()
		return done
	}
	before := nc.NumSubscriptions()
	first := fly(t.Context())
	old := <-puts
	require.NoError(t, old.Respond(ack(1)))
	require.EqualValues(t, 1, (<-first).Revision)
	require.Equal(t, before+1, nc.NumSubscriptions())
	second := fly(t.Context())
	put := <-puts
	require.NoError(t, old.Respond(ack(9)), "a second answer to the first flight")
	require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: old.Reply, Header: nats.Header{"Status": {"503"}}}), "another one")
	require.NoError(t, put.Respond(ack(2)))
	require.EqualValues(t, 2, (<-second).Revision)
	require.Equal(t, before+1, nc.NumSubscriptions())
	ctx, cancel := context.WithCancel(t.Context())
	third := fly(ctx)
	<-puts
	cancel()
	require.ErrorIs(t, (<-third).Err, ErrUnavailable)
	require.Equal(t, before, nc.NumSubscriptions(), "answers of an abandoned flight may still come")
}
