package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// The daemon publishes its answers with its own permissions: in an account that it shares with readers, a reader
// could make it purge the log.
func TestService_ReplySubjectIsNoInbox_NothingIsPublishedThere(t *testing.T) {
	t.Parallel()
	// Nothing folds here, so a list waits for its time to end.
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) { c.Timeout = 2 * time.Second })
	x := w.writer("run-1")
	x.Start()
	x.TurnOf(100)
	stored := w.Log("run-1")
	require.NotEmpty(t, stored)

	listener := w.Server.Conn(t)
	heard := make(chan *nats.Msg, 1<<10)
	replies := []string{
		"$JS.API.STREAM.PURGE." + w.Names.EventStream(), "$KV." + w.Names.SegmentBucket() + ".run-1.1", "$SRV.PING",
		w.Names.EventSubject("run-1"), schema.ServiceSubject(schema.VerbCleanup, "default", ""), "waymark.other", "elsewhere", "_INBOX", "_INBOXES.x",
	}
	asked := map[string]int{}
	for _, reply := range replies {
		if !strings.HasPrefix(reply, "$SRV") && !strings.Contains(reply, "cleanup") {
			_, err := listener.ChanSubscribe(reply, heard)
			require.NoError(t, err)
		}
	}
	require.NoError(t, listener.Flush())
	m, err := w.client.RequestWithContext(t.Context(), "$SRV.INFO.waymark", nil)
	require.NoError(t, err)
	for _, e := range decodeAs[micro.Info](t, m.Data).Endpoints {
		asked[strings.Replace(e.Subject, "*", "run-1", 1)]++
	}
	require.Greater(t, len(asked), 10)
	for _, verb := range []string{"PING", "INFO", "STATS"} {
		asked["$SRV."+verb]++
		asked["$SRV."+verb+".waymark"]++
	}
	for subject := range asked {
		for _, reply := range replies {
			require.NoError(t, w.client.PublishRequest(subject, reply, nil))
		}
	}
	// Each subject answers an inbox, after the earlier ones.
	for subject := range asked {
		_, err := w.client.RequestWithContext(t.Context(), subject, nil)
		require.NoError(t, err, subject)
	}
	require.NoError(t, listener.Flush())
	select {
	case m := <-heard:
		require.Failf(t, "the daemon published to a subject that is no inbox", "%s: %s", m.Subject, m.Data)
	default:
	}
	require.Equal(t, stored, w.Log("run-1"), "the log is as before")
	require.GreaterOrEqual(t, w.svc.Stats().Errors()[schema.CodeForbidden], int64(100))
}

// An answer that crosses accounts enters its client's account, and may come back as a request. A long answer is sent
// in pieces: if the run's state has a request at the beginning of a piece, that would be
// executed as an operator's.
func TestService_RequestIsAReplyOfADaemon_NothingIsDone(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.TurnOf(100)
	stored := w.Log("run-1")
	request := func(header nats.Header) *nats.Msg {
		return &nats.Msg{Subject: schema.ServiceSubject(schema.VerbCancel, "default", "run-1"), Header: header, Data: []byte(`{"by":"me"}`)}
	}
	// A piece of a real answer, as the daemon sends it.
	inbox := w.client.NewInbox()
	sub, err := w.client.SubscribeSync(inbox)
	require.NoError(t, err)
	require.NoError(t, w.client.PublishRequest(schema.ServiceSubject(schema.VerbGet, "default", "run-1"), inbox, []byte(`{"view":"events"}`)))
	piece, err := sub.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, piece.Header.Get(schema.HeaderKind), "%v", piece.Header)

	before := w.svc.Stats().Errors()[schema.CodeForbidden]
	back := request(piece.Header)
	back.Reply = inbox
	require.NoError(t, w.client.PublishMsg(back))
	require.Eventually(t, func() bool { return w.svc.Stats().Errors()[schema.CodeForbidden] == before+1 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, stored, w.Log("run-1"))
	answer, err := w.client.RequestMsgWithContext(t.Context(), request(nil))
	require.NoError(t, err)
	require.Empty(t, answer.Header.Get(schema.HeaderErrorCode), "%s", answer.Data)
	require.Greater(t, len(w.Log("run-1")), len(stored), "the same request of a client is carried out")
}
