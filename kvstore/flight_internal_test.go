package kvstore

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

// newFlightTo returns a flight whose puts go to subject x, and the connection.
func newFlightTo(t *testing.T, items int) (*flight, []Result, *nats.Conn) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	results := make([]Result, items)
	f, err := (&bucket{js: js, stream: "NONE"}).newFlight(results)
	require.NoError(t, err)
	return f, results, nc
}

// heard forwards the messages on subject x.
func heard(t *testing.T, nc *nats.Conn, room int) <-chan *nats.Msg {
	t.Helper()
	puts := make(chan *nats.Msg, room)
	_, err := nc.ChanSubscribe("x", puts)
	require.NoError(t, err)
	return puts
}

func ack(seq int) []byte { return fmt.Appendf(nil, `{"stream":"S","seq":%d}`, seq) }

func TestFlight_AnswersOutOfOrder_Matched(t *testing.T) {
	t.Parallel()
	f, results, nc := newFlightTo(t, 3)
	defer f.end()
	puts := heard(t, nc, 3)
	for i := range results {
		f.publish(t.Context(), i, nats.NewMsg("x"))
	}
	first, second, third := <-puts, <-puts, <-puts
	require.NoError(t, third.Respond(ack(3)))
	require.NoError(t, first.Respond(ack(1)))
	require.NoError(t, first.Respond(ack(9)), "a second answer changes nothing")
	require.NoError(t, second.Respond(ack(2)))
	f.land(t.Context())
	for i, r := range results {
		require.NoError(t, r.Err)
		require.EqualValues(t, i+1, r.Revision)
	}
}

func TestFlight_MorePutsThanWindow_AllStored(t *testing.T) {
	t.Parallel()
	const items = 3*flightMessages + 1
	f, results, nc := newFlightTo(t, items)
	defer f.end()
	var n int
	_, err := nc.Subscribe("x", func(m *nats.Msg) {
		n++
		_ = m.Respond(ack(n))
	})
	require.NoError(t, err)
	for i := range results {
		f.publish(t.Context(), i, nats.NewMsg("x"))
		require.LessOrEqual(t, len(f.sizes), flightMessages)
	}
	f.land(t.Context())
	for i, r := range results {
		require.NoError(t, r.Err)
		require.EqualValues(t, i+1, r.Revision)
	}
	require.Zero(t, f.bytes)
}

func TestFlight_ConnectionClosed_PutsAbandoned(t *testing.T) {
	t.Parallel()
	f, results, nc := newFlightTo(t, 3)
	defer f.end()
	puts := heard(t, nc, 2)
	f.publish(t.Context(), 0, nats.NewMsg("x"))
	f.publish(t.Context(), 1, nats.NewMsg("x"))
	<-puts
	<-puts
	nc.Close()
	f.land(t.Context())
	f.publish(t.Context(), 2, nats.NewMsg("x"))
	for _, r := range results {
		require.ErrorIs(t, r.Err, ErrUnavailable)
		require.ErrorIs(t, r.Err, nats.ErrConnectionClosed, "not because of a timeout")
	}
}

func TestFlight_NoResponders_StreamMissing(t *testing.T) {
	t.Parallel()
	f, results, _ := newFlightTo(t, 1)
	defer f.end()
	f.publish(t.Context(), 0, nats.NewMsg("x"))
	f.land(t.Context())
	require.ErrorIs(t, results[0].Err, ErrStreamMissing)
}

func TestFlight_Ended_NoSubscription(t *testing.T) {
	t.Parallel()
	f, _, nc := newFlightTo(t, 1)
	before := nc.NumSubscriptions()
	f.end()
	require.Equal(t, before-1, nc.NumSubscriptions())
	_, open := <-f.closed
	require.False(t, open, "its listener is gone")
}
