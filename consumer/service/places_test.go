package service_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// senderHeader names a sender to bySender, as the NATS server names it to the daemon.
const senderHeader = "Test-Sender"

func bySender(_ string, m *nats.Msg) (string, error) {
	if name := m.Header.Get(senderHeader); name != "" {
		return name, nil
	}
	return "", errors.New("no sender")
}

// A sender whose reads do not end leaves places, of workers and in the queue, for others' reads, and all for requests
// that change something.
func TestPlaces_OneSenderReadsAtItsWorst_OthersAreAnswered(t *testing.T) {
	t.Parallel()
	g := newGated(t, serviceConfig{Workers: 4, Queue: 16, QueueBytes: 1 << 20, Proof: bySender, Timeout: time.Minute})
	g.aRun("held", 1, 10)
	g.aRun("run-1", 1, 10)
	release := make(chan struct{})
	g.arm(func(request string, _ int) {
		if strings.Contains(request, ".held") {
			<-release
		}
	})
	send := func(sender, verb, run string, body []byte) *nats.Subscription {
		sub, err := g.client.SubscribeSync(g.client.NewRespInbox())
		require.NoError(t, err)
		require.NoError(t, g.client.PublishMsg(&nats.Msg{
			Subject: schema.ServiceSubject(verb, "default", run), Reply: sub.Subject, Header: nats.Header{senderHeader: {sender}}, Data: body,
		}))
		return sub
	}
	code := func(sub *nats.Subscription) schema.Code {
		m, err := sub.NextMsg(testTimeout)
		require.NoError(t, err)
		if m.Header.Get(schema.HeaderErrorCode) == "" {
			return ""
		}
		return decodeAs[schema.ServiceError](t, m.Data).Code
	}
	reads := []*nats.Subscription{send("observer", schema.VerbGet, "held", []byte(`{}`))}
	require.Eventually(t, func() bool { return g.svc.Stats().Working.Load() == 1 }, time.Minute, time.Millisecond)
	for range 19 {
		reads = append(reads, send("observer", schema.VerbGet, "held", []byte(`{}`)))
	}
	require.Eventually(t, func() bool { return g.svc.Stats().Errors()[schema.CodeOverloaded] == 15 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 1, g.svc.Stats().Working.Load(), "one of the two workers for reads")
	require.EqualValues(t, 4, g.svc.Stats().Queued.Load(), "half of their queue of eight")
	padded := append([]byte(`{}`), make([]byte, 200<<10)...)
	for i := range padded[2:] {
		padded[2+i] = ' '
	}
	for sender, want := range map[string]schema.Code{"observer": schema.CodeOverloaded, "other": ""} {
		require.Equal(t, want, code(send(sender, schema.VerbGet, "run-1", padded)), "a read of "+sender)
	}
	takeover, err := json.Marshal(takeover("executor-2", "req-1"))
	require.NoError(t, err)
	for _, sender := range []string{"observer", "other"} {
		require.Empty(t, code(send(sender, schema.VerbRecover, "run-1", takeover)), "a takeover of "+sender)
		require.Empty(t, code(send(sender, schema.VerbMark, "run-1", []byte(`{"name":"m-`+sender+`"}`))), "a mark of "+sender)
		require.Empty(t, code(send(sender, schema.VerbClaim, "", []byte(`{"executor":"executor-2","request_id":"q"}`))), "a claim of "+sender)
	}
	require.Equal(t, schema.CodeForbidden, code(send("", schema.VerbMark, "run-1", []byte(`{"name":"m"}`))))
	require.Equal(t, schema.CodeForbidden, code(send("", schema.VerbGet, "run-1", nil)), "a read without a proof would have a share of its own")
	close(release)
	answered := 0
	for _, sub := range reads {
		if code(sub) == "" {
			answered++
		}
	}
	require.Equal(t, 5, answered, "those that had a place were answered")
}
