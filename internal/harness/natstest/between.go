package natstest

import (
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// Between returns a JetStream on nc whose API requests a test sees before the server does. The test gets each with
// its subject, and passes it on with Forward, or ForwardWithout, or not at all. They come one after the other.
func Between(tb testing.TB, nc *nats.Conn, seen func(m *nats.Msg, subject string)) jetstream.JetStream {
	tb.Helper()
	prefix := "BETWEEN." + rand.Text()
	sub, err := nc.Subscribe(prefix+".>", func(m *nats.Msg) { seen(m, "$JS.API"+strings.TrimPrefix(m.Subject, prefix)) })
	require.NoError(tb, err, "stand between a client and the JetStream API")
	tb.Cleanup(func() { _ = sub.Unsubscribe() })
	js, err := jetstream.NewWithAPIPrefix(nc, prefix)
	require.NoError(tb, err, "open JetStream behind %s", prefix)
	return js
}

// Forward hands a request that came as m on to a subject of the JetStream API.
func Forward(nc *nats.Conn, m *nats.Msg, subject string) {
	_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
}

// ForwardWithout answers the direct get m, from a subject of the JetStream API, like a replica that has lost one
// message of the stream. A mirror cannot replace one: the server removes the compare-and-set headers of mirrored
// messages.
func ForwardWithout(nc *nats.Conn, m *nats.Msg, subject string, lost uint64) {
	const place, before = "Nats-Sequence", "Nats-Last-Sequence"
	gone, left := strconv.FormatUint(lost, 10), ""
	for _, got := range answerOf(nc, m, subject) {
		switch {
		case got.Header.Get(place) == gone:
			left = got.Header.Get(before)
			continue
		case left != "" && got.Header.Get(before) == gone:
			got.Header.Set(before, left)
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: got.Header, Data: got.Data})
	}
}

// ForwardLate answers the direct get m of several messages with the current answer of a subject of the JetStream API,
// once until is closed: like a client that was paused between a read and its use. It does not wait.
func ForwardLate(nc *nats.Conn, m *nats.Msg, subject string, until <-chan struct{}) {
	answer := answerOf(nc, m, subject)
	go func() {
		<-until
		for _, got := range answer {
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: got.Header, Data: got.Data})
		}
	}()
}

// answerOf is the answer of a subject of the JetStream API to a direct get, with the server's status message at its
// end.
func answerOf(nc *nats.Conn, m *nats.Msg, subject string) (answer []*nats.Msg) {
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return nil
	}
	defer func() { _ = sub.Unsubscribe() }()
	_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Header: m.Header, Data: m.Data})
	for {
		got, err := sub.NextMsg(time.Second)
		if err != nil {
			return answer
		}
		answer = append(answer, got)
		if got.Header.Get("Status") != "" {
			return answer
		}
	}
}
