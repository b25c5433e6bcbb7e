package fleettest

import (
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Letters reads all dead letters of a fleet, oldest first.
func Letters(tb testing.TB, js jetstream.JetStream, fleet string) (list []kvstore.DeadLetter) {
	tb.Helper()
	stream, err := js.Stream(tb.Context(), schema.DeadLetterStream(fleet))
	require.NoError(tb, err)
	for number := stream.CachedInfo().State.FirstSeq; number <= stream.CachedInfo().State.LastSeq; number++ {
		m, err := stream.GetMsg(tb.Context(), number)
		require.NoError(tb, err)
		count := func(name string) int {
			if m.Header.Get(name) == "" {
				return 0
			}
			n, err := strconv.Atoi(m.Header.Get(name))
			require.NoError(tb, err, name)
			return n
		}
		stored, err := time.Parse(time.RFC3339Nano, m.Header.Get("Waymark-Stored"))
		require.NoError(tb, err)
		block := count("Waymark-Header-Bytes")
		l := kvstore.DeadLetter{
			Reason: schema.Reason(m.Header.Get("Waymark-Reason")), Detail: m.Header.Get("Waymark-Detail"), Run: m.Header.Get("Waymark-Run"),
			EventStream: m.Header.Get("Waymark-Stream"), Stream: schema.StreamSequence(count("Waymark-Stream-Sequence")), //nolint:gosec // a sequence
			Incarnation: m.Header.Get("Waymark-Incarnation"), Subject: m.Header.Get("Waymark-Subject"), Stored: stored, Body: m.Data[block:], Cut: count("Waymark-Cut-Bytes"),
		}
		if block > 0 {
			l.Header, err = nats.DecodeHeadersMsg(m.Data[:block])
			require.NoError(tb, err)
		}
		list = append(list, l)
	}
	return list
}
