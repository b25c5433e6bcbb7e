package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A run went on behind an earlier record. waymark replay leaves out the calls that were left behind.
func TestReplay_RunWasRewound_CallsAreWhatTheRecordSays(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	getenv := func(name string) string {
		return map[string]string{"WAYMARK_STATE_DIR": dir, "WAYMARK_HTTP": "127.0.0.1:0", "WAYMARK_QUOTA": "256MiB"}[name]
	}
	_, stop, err := startDaemon([]string{"--json"}, getenv)
	require.NoError(t, err)
	t.Cleanup(func() { stop() })
	end, err := statedir.Discover(t.Context(), dir)
	require.NoError(t, err)
	closed := make(chan struct{})
	nc, err := end.Connect(nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); <-closed })
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "tools-test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) }()
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	for _, id := range []string{"a", "b"} {
		turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		call := publisher.ToolCall{ID: id, Name: "look", Replay: schema.ReplayPure}
		_, err = turn.Answer(t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, "so"), Calls: []publisher.ToolCall{call}})
		require.NoError(t, err)
		_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { return publisher.Result(1) })
		require.NoError(t, err)
	}
	var log []schema.Record
	require.NoError(t, fleet.Events(t.Context(), "r1", func(rec schema.Record) error {
		log = append(log, rec)
		return nil
	}))
	require.Len(t, log, 5)
	head := schema.NewHead(schema.DefaultFleet, "r1")
	for i := range log[:3] {
		head.Apply(schema.NoKeys, &log[i])
	}
	at := head.Clone()
	later := schema.NewLater(&at)
	for i := 3; i < len(log); i++ {
		later.Behind(&head, head.Apply(schema.NoKeys, &log[i]))
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: 3}, &at, later)
	require.NoError(t, err)
	e, err := schema.NewControl(schema.DefaultFleet, "daemon", "r1", 2, "rewind", &schema.RunResumedData{
		Executor: "tools-test", Reason: schema.TakeoverRewind, RequestID: "q", To: to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	}, time.Now())
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	header, body := e.Encode()
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.MappedSubject(schema.DefaultFleet, "r1"), Header: header, Data: body})
	require.NoError(t, err)
	state, err := fleet.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, state.Calls, 1)
	var stdout, stderr lockedBuffer
	code := run(t.Context(), []string{"replay", "r1"}, getenv, strings.NewReader(""), &stdout, &stderr)
	require.Equal(t, int(exitOK), code, "%s%s", stdout.String(), stderr.String())
}
