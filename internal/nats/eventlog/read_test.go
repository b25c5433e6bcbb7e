package eventlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

var names = schema.NamesOf("acme", 0)

func start(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).JetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: names.EventStream(), Subjects: []string{names.EventSubjects()}, AllowDirect: true,
	})
	require.NoError(t, err)
	return js
}

func publish(t *testing.T, js jetstream.JetStream, run string, header nats.Header, body []byte) schema.StreamSequence {
	t.Helper()
	ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: names.EventSubject(run), Header: header, Data: body})
	require.NoError(t, err)
	return schema.StreamSequence(ack.Sequence)
}

func read(t *testing.T, js jetstream.JetStream, run string, from schema.StreamSequence) []schema.Record {
	t.Helper()
	var got []schema.Record
	require.NoError(t, eventlog.Read(t.Context(), js, names, run, from, func(r schema.Record) error {
		got = append(got, r)
		return nil
	}))
	return got
}

// A replica has lost a message: the next one, whose compare-and-set saw it, reveals that. Messages that the leader
// has lost, too, are left out.
func TestRead_ReplicaLostMessages_AsksLeader(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t)
	js := server.JetStream(t)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: names.EventStream(), Subjects: []string{names.EventSubjects()}, AllowDirect: true,
	})
	require.NoError(t, err)
	last, want := schema.StreamSequence(0), []schema.StreamSequence(nil)
	for range 6 {
		publish(t, js, "other", nil, nil)
		last = publish(t, js, "a", nats.Header{nats.ExpectedLastSubjSeqHdr: {fmt.Sprint(last)}}, []byte("x"))
		want = append(want, last)
	}
	for i, lost := range want[:5] {
		replica := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
			if strings.Contains(subject, ".DIRECT.") {
				natstest.ForwardWithout(nc, m, subject, uint64(lost))
				return
			}
			natstest.Forward(nc, m, subject)
		})
		places := func() (at []schema.StreamSequence) {
			for _, rec := range read(t, replica, "a", 1) {
				at = append(at, rec.Stream)
			}
			return at
		}
		require.Equal(t, want, places())
		require.Equal(t, want[i:], positions(read(t, replica, "a", lost)), "the first one of a tail, too")
		if lost == want[4] {
			require.NoError(t, stream.DeleteMsg(t.Context(), uint64(lost)))
			require.Equal(t, slices.Delete(slices.Clone(want), 4, 5), places())
		}
	}
}

func TestRead_ManyBatches_OneRunInOrder(t *testing.T) {
	t.Parallel()
	js := start(t)
	var want []schema.StreamSequence
	for i := range 1300 {
		seq := publish(t, js, "a", nats.Header{"ce-id": {fmt.Sprint(i)}, "Nats-Msg-Id": {fmt.Sprint(i)}}, bytes.Repeat([]byte{'x'}, i))
		want = append(want, seq)
		publish(t, js, "b", nil, []byte("other"))
	}
	got := read(t, js, "a", 0)
	require.Len(t, got, len(want))
	for i, rec := range got {
		require.Equal(t, want[i], rec.Stream)
		require.Equal(t, map[string][]string{"ce-id": {fmt.Sprint(i)}}, rec.Header, "headers of NATS are no part of the event")
		require.Len(t, rec.Body, i)
	}
	require.Equal(t, want[700:], positions(read(t, js, "a", want[700])), "from is inclusive")
	require.Empty(t, read(t, js, "a", want[len(want)-1]+1))
	require.Empty(t, read(t, js, "unknown", 0))
}

func positions(records []schema.Record) (at []schema.StreamSequence) {
	for _, r := range records {
		at = append(at, r.Stream)
	}
	return at
}

func TestRead_DeletedMessages_Skipped(t *testing.T) {
	t.Parallel()
	js := start(t)
	for range 5 {
		publish(t, js, "a", nil, []byte("x"))
	}
	s, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.NoError(t, s.DeleteMsg(t.Context(), 3))
	require.Equal(t, []schema.StreamSequence{1, 2, 4, 5}, positions(read(t, js, "a", 0)))
}

func TestRead_CallbackError_Returned(t *testing.T) {
	t.Parallel()
	js := start(t)
	publish(t, js, "a", nil, []byte("x"))
	stop := errors.New("enough")
	require.Equal(t, stop, eventlog.Read(t.Context(), js, names, "a", 0, func(schema.Record) error { return stop }))
}

// A publisher may write any header block. None of these may look like a status message of the server, or the reader
// would end too early and lose events.
func TestRead_ForgedServerHeaders_Ignored(t *testing.T) {
	t.Parallel()
	js := start(t)
	raw := rawClient(t, js)
	subject := names.EventSubject("a")
	blocks := []string{
		"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
		"NATS/1.0 404 Message Not Found\r\n\r\n",
		"NATS/1.0 503\r\n\r\n",
		"NATS/1.0\r\nStatus: 204\r\nDescription: EOB\r\nNats-Num-Pending: 0\r\n\r\n",
		"NATS/1.0\r\nNats-Sequence: 99\r\nNats-Subject: waymark.events.acme.0.b\r\n\r\n",
		"NATS/1.0\r\nno colon in this line\r\n\r\n",
		// An empty line of LF hides what the server appends: sequence, subject and time.
		"NATS/1.0\r\nStatus: 404\n\n\r\n\r\n",
		"NATS/1.0\r\nStatus: 204\nNats-Num-Pending: 5\n\n\r\n\r\n",
		"NATS/1.0\r\nNats-Sequence: 99\nNats-Subject: waymark.events.acme.0.b\nNats-Time-Stamp: 2026-01-31T03:00:00Z\n\n\r\n\r\n",
		"NATS/1.0 404 Message Not Found\n" + strings.Repeat("a:b\n", 30) + "\n\r\n\r\n",
		"NATS/1.0\r\nStatus: 404\n" + strings.Repeat("a:b\n", 64) + "\n\r\n\r\n",
	}
	for i, block := range blocks {
		body := ""
		raw(subject, block, body)
		seq := publish(t, js, "a", nil, []byte("good"))
		require.EqualValues(t, 2*i+2, seq, "the odd message was stored")
	}
	got := read(t, js, "a", 0)
	require.Len(t, got, 2*len(blocks))
	for i, rec := range got {
		require.EqualValues(t, i+1, rec.Stream)
		if i%2 == 1 {
			require.Equal(t, "good", string(rec.Body))
		}
	}
	rec, found, err := eventlog.Next(t.Context(), js, names, "a", 11)
	require.NoError(t, err)
	require.True(t, found)
	require.EqualValues(t, 11, rec.Stream)
	require.Empty(t, rec.Header)
}

func TestLast_UnreadableHeaders_Found(t *testing.T) {
	t.Parallel()
	js := start(t)
	raw := rawClient(t, js)
	publish(t, js, "a", nil, []byte("good"))
	raw(names.EventSubject("a"), "NATS/1.0\r\nStatus: 404\n\n\r\n\r\n", "bad")
	for _, barrier := range []schema.StreamSequence{3, 4} {
		publish(t, js, schema.BarrierRun, nil, nil)
		if barrier == 4 { // now the odd message comes last in the answer
			raw(names.EventSubject("a"), "NATS/1.0\r\nno colon in this line\r\n\r\n", "worse")
		}
		got, err := eventlog.LastOf(t.Context(), js, names, "a", schema.BarrierRun)
		require.NoError(t, err)
		require.Equal(t, barrier, got.Records[schema.BarrierRun].Stream)
		want := schema.Record{Stream: 2, Body: []byte("bad")}
		if barrier == 4 {
			want = schema.Record{Stream: 5, Body: []byte("worse")}
		}
		require.Equal(t, want, got.Records["a"])
	}
	publish(t, js, schema.BarrierRun, nil, nil)
	_, err := eventlog.LastOf(t.Context(), js, names, "a", "unknown", schema.BarrierRun)
	require.ErrorIs(t, err, eventlog.ErrAnswer, "of no run or of a: it is not guessed")
}

// rawClient writes header blocks that the client library would refuse, and waits until each is stored, because the
// server answers the sender before that.
func rawClient(t *testing.T, js jetstream.JetStream) func(subject, header, body string) {
	t.Helper()
	nc := js.Conn()
	conn, err := net.Dial("tcp", nc.ConnectedAddr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	user, password := nc.Opts.User, nc.Opts.Password
	_, err = fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nPING\r\n", user, password)
	require.NoError(t, err)
	sync := func() {
		var seen []byte
		buf := make([]byte, 8<<10)
		for !bytes.Contains(seen, []byte("PONG\r\n")) {
			n, err := conn.Read(buf)
			require.NoError(t, err)
			seen = append(seen, buf[:n]...)
			require.NotContains(t, string(seen), "-ERR")
		}
	}
	sync()
	last := func() uint64 {
		stream, err := js.Stream(t.Context(), names.EventStream())
		require.NoError(t, err)
		return stream.CachedInfo().State.LastSeq
	}
	return func(subject, header, body string) {
		before := last()
		_, err := io.WriteString(conn, fmt.Sprintf("HPUB %s %d %d\r\n%s%s\r\nPING\r\n", subject, len(header), len(header)+len(body), header, body))
		require.NoError(t, err)
		sync()
		require.Eventually(t, func() bool { return last() > before }, 10*time.Second, time.Millisecond)
	}
}

func TestLastOf_SeveralRuns_OneMoment(t *testing.T) {
	t.Parallel()
	js := start(t)
	publish(t, js, "a", nil, []byte("1"))
	publish(t, js, "a", nil, []byte("2"))
	publish(t, js, schema.BarrierRun, nil, []byte("3"))
	publish(t, js, "b", nil, []byte("4"))
	got, err := eventlog.LastOf(t.Context(), js, names, "a", schema.BarrierRun, "unknown")
	require.NoError(t, err)
	require.Len(t, got.Records, 2)
	require.EqualValues(t, 2, got.Records["a"].Stream)
	require.EqualValues(t, 3, got.Records[schema.BarrierRun].Stream)
	require.EqualValues(t, 4, got.UpTo)

	got, err = eventlog.LastOf(t.Context(), js, names, "unknown")
	require.NoError(t, err)
	require.Empty(t, got.Records)
}

func TestFirstLast_Replicas_AnsweredByLeader(t *testing.T) {
	t.Parallel()
	js := start(t)
	publish(t, js, "a", nats.Header{"ce-id": {"one"}}, []byte("1"))
	publish(t, js, "b", nil, []byte("2"))
	publish(t, js, "a", nats.Header{"ce-id": {"two"}, "Nats-Msg-Id": {"two"}}, []byte("3"))

	rec, found, err := eventlog.Last(t.Context(), js, names, "a")
	require.NoError(t, err)
	require.True(t, found)
	require.WithinDuration(t, time.Now(), time.Unix(0, rec.Stored), time.Minute)
	require.Equal(t, schema.Record{Stream: 3, Stored: rec.Stored, Header: map[string][]string{"ce-id": {"two"}}, Body: []byte("3")}, rec)

	rec, found, err = eventlog.Next(t.Context(), js, names, "a", 2)
	require.NoError(t, err)
	require.True(t, found)
	require.EqualValues(t, 3, rec.Stream)

	_, found, err = eventlog.Last(t.Context(), js, names, "unknown")
	require.NoError(t, err)
	require.False(t, found)
}

func TestRead_MissingStream_Named(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	err := eventlog.Read(t.Context(), js, names, "a", 0, func(schema.Record) error { return nil })
	require.ErrorIs(t, err, eventlog.ErrNoStream)
	require.ErrorContains(t, err, names.EventStream())
	_, err = eventlog.LastOf(t.Context(), js, names, "a")
	require.ErrorIs(t, err, eventlog.ErrNoStream)
	_, _, err = eventlog.Last(t.Context(), js, names, "a")
	require.ErrorIs(t, err, eventlog.ErrNoStream)
}

// An answer that breaks off must not look like the end of the log.
func TestRead_ReplyInterrupted_Error(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: names.EventStream(), Subjects: []string{names.EventSubjects()}, AllowDirect: true,
	})
	require.NoError(t, err)
	for range 600 {
		publish(t, js, "a", nil, bytes.Repeat([]byte{'x'}, 100))
	}
	seen := 0
	err = eventlog.Read(t.Context(), js, names, "a", 0, func(schema.Record) error {
		if seen++; seen == 1 {
			server.Stop(t)
		}
		return nil
	})
	require.ErrorIs(t, err, eventlog.ErrNoAnswer)
	require.ErrorIs(t, err, nats.ErrConnectionReconnecting, "at once: the rest of the answer never comes")
	require.Less(t, seen, 600)
	server.Resume(t)
	require.Len(t, read(t, js, "a", 0), 600)
}

// Every way to read a message returns the time at which the server stored it.
func TestRecords_AnyReader_SameStored(t *testing.T) {
	js := start(t)
	at := publish(t, js, "a", nil, []byte("1"))
	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), uint64(at))
	require.NoError(t, err)
	want := msg.Time.UnixNano()

	require.NoError(t, eventlog.Read(t.Context(), js, names, "a", 1, func(rec schema.Record) error {
		require.Equal(t, want, rec.Stored)
		return nil
	}))
	last, err := eventlog.LastOf(t.Context(), js, names, "a")
	require.NoError(t, err)
	require.Equal(t, want, last.Records["a"].Stored)
	rec, found, err := eventlog.Last(t.Context(), js, names, "a")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, want, rec.Stored)
	follower, err := eventlog.Follow(t.Context(), js.Conn(), js, names, eventlog.FollowFrom{})
	require.NoError(t, err)
	defer follower.Close(t.Context(), js)
	arrived, err := follower.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, arrived.Record.Stored)
	_, err = eventlog.Scan(t.Context(), js, names, eventlog.FollowFrom{}, func(a eventlog.Arrived) error {
		require.Equal(t, want, a.Record.Stored)
		return nil
	})
	require.NoError(t, err)
}
