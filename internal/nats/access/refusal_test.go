package access_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

// narrow starts a server whose only user may publish to a and subscribe to b.
func narrow(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte(`
host: 127.0.0.1, port: -1
authorization { users: [ { user: u, password: p, permissions: { publish: "a", subscribe: "b" } } ] }`), 0o600))
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return s.ClientURL()
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.UserInfo("u", "p"), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

func take(t *testing.T, tail *access.Tail) *access.Refusal {
	t.Helper()
	select {
	case <-tail.Heard():
		return tail.Take()
	case <-time.After(time.Minute):
		require.Fail(t, "nothing was refused")
		return nil
	}
}

func TestWatch_Refusal_Named(t *testing.T) {
	t.Parallel()
	w := access.NewWatch()
	nc := connect(t, narrow(t), nats.ErrorHandler(w.Handler(nil)))
	tail := w.Tail()
	require.NoError(t, nc.Publish("a", nil))
	require.NoError(t, nc.Publish(`c."d`, nil))
	e := take(t, &tail)
	require.True(t, e.Publish)
	require.Equal(t, `c."d`, e.Subject)
	require.ErrorIs(t, e, nats.ErrPermissionViolation)
	require.ErrorContains(t, e, "does not permit this user to publish to")

	_, err := nc.QueueSubscribeSync("e", "workers")
	require.NoError(t, err)
	e = take(t, &tail)
	require.False(t, e.Publish)
	require.Equal(t, "e", e.Subject)

	_, err = nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	e = take(t, &tail)
	require.Contains(t, e.Subject, "_INBOX.")
	require.ErrorContains(t, e, "CustomInboxPrefix")
}

func TestWatch_LibraryCall_EndsWithRefusal(t *testing.T) {
	t.Parallel()
	w := access.NewWatch()
	nc := connect(t, narrow(t), nats.ErrorHandler(w.Handler(nil)), nats.CustomInboxPrefix("b"))
	ctx, done := w.Context(t.Context(), "c.")
	defer done()
	<-ctxAfter(ctx, func() { _ = nc.Publish("other", nil); _ = nc.Publish("c.1", nil) })
	refusal := access.Cause(ctx, ctx.Err())
	var e *access.Refusal
	require.ErrorAs(t, refusal, &e)
	require.Equal(t, "c.1", e.Subject)
}

func ctxAfter(ctx context.Context, do func()) <-chan struct{} {
	do()
	return ctx.Done()
}

func TestWatch_OwnHandler_StillCalled(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	nc := connect(t, narrow(t), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { calls.Add(1) }))
	w := access.WatchOf(nc)
	require.Same(t, w, access.WatchOf(nc), "one connection has one watch")
	tail := w.Tail()
	require.NoError(t, nc.Publish("c", nil))
	require.Equal(t, "c", take(t, &tail).Subject)
	require.Eventually(t, func() bool { return calls.Load() == 1 }, time.Minute, time.Millisecond)
}

func TestWatch_OtherErrors_NotRefusals(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, nats.ErrSlowConsumer, nats.ErrAuthorization} {
		_, ok := access.RefusalIn(err)
		require.False(t, ok, "%v", err)
	}
}

func TestRefusal_Hint_NamesTheRolesThatMay(t *testing.T) {
	t.Parallel()
	names := schema.NamesOf("f_2", 3)
	for subject, want := range map[string]string{
		schema.ServiceSubject(schema.VerbGet, "f", "r"):               "one of these roles: observer, executor, operator ",
		schema.ServiceSubject(schema.VerbRecover, "f", "r"):           "one of these roles: executor, operator ",
		schema.ServiceSubject(schema.VerbSettle, "f", "r"):            "one of these roles: operator ",
		"$JS.API.STREAM.SNAPSHOT." + names.EventStream():              "one of these roles: daemon ", // backup
		"$JS.waymark.API.STREAM.SNAPSHOT.KV_" + names.SegmentBucket(): "one of these roles: daemon ",
		"waymark.refused.events.f_2.3._barrier":                       "one of these roles: daemon ", // backup
		names.EventSubject("r1"):                                      "one of these roles: executor, operator ",
		"waymark.checkpoints.f_2.3.r1":                                "a role that may; docs/security.md",
		"elsewhere":                                                   "a role that may; docs/security.md",
	} {
		require.ErrorContains(t, &access.Refusal{Publish: true, Subject: subject}, want, subject)
	}
}
