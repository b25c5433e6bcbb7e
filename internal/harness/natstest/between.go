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

// Between returns a JetStream on nc whose requests to the API a test sees before the server does. It is given each with the subject that it
// is for, and hands it on with Forward, or ForwardWithout, or not at all. They come one after the other.
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

// ForwardWithout answers a direct get, which came as m, from a subject of the JetStream API as a replica would that has lost the message at
// a place of the stream. A mirror cannot stand for one: the server takes from what it mirrors what it compared the messages with.
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

// ForwardLate answers a direct get of several messages, which came as m, with what a subject of the JetStream API answers now, once until is
// closed: a client that stood still between a look and what it does with it. It does not wait.
func ForwardLate(nc *nats.Conn, m *nats.Msg, subject string, until <-chan struct{}) {
	answer := answerOf(nc, m, subject)
	go func() {
		<-until
		for _, got := range answer {
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: got.Header, Data: got.Data})
		}
	}()
}

// answerOf is what a subject of the JetStream API answers to a direct get, with the message of the server's own that ends it.
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
