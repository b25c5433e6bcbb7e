package natstest

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// ForwardWithout answers a direct get, which came as m, from a subject of the JetStream API as a replica would that has lost the message at
// a place of the stream. A mirror cannot stand for one: the server takes from what it mirrors what it compared the messages with.
func ForwardWithout(nc *nats.Conn, m *nats.Msg, subject string, lost uint64) {
	const place, before = "Nats-Sequence", "Nats-Last-Sequence"
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Header: m.Header, Data: m.Data})
	gone, left := strconv.FormatUint(lost, 10), ""
	for {
		got, err := sub.NextMsg(time.Second)
		switch {
		case err != nil:
			return
		case got.Header.Get(place) == gone:
			left = got.Header.Get(before)
			continue
		case left != "" && got.Header.Get(before) == gone:
			got.Header.Set(before, left)
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: got.Header, Data: got.Data})
		if got.Header.Get("Status") != "" {
			return
		}
	}
}
