package permissions_test

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

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/permissions"
)

func TestMain(m *testing.M) { natstest.Main(m) }

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

func take(t *testing.T, tail *permissions.Tail) *permissions.Error {
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
	w := permissions.New()
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
	w := permissions.New()
	nc := connect(t, narrow(t), nats.ErrorHandler(w.Handler(nil)), nats.CustomInboxPrefix("b"))
	ctx, done := w.Context(t.Context(), "c.")
	defer done()
	<-ctxAfter(ctx, func() { _ = nc.Publish("other", nil); _ = nc.Publish("c.1", nil) })
	refusal := permissions.Cause(ctx, ctx.Err())
	var e *permissions.Error
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
	w := permissions.Of(nc)
	require.Same(t, w, permissions.Of(nc), "one connection has one watch")
	tail := w.Tail()
	require.NoError(t, nc.Publish("c", nil))
	require.Equal(t, "c", take(t, &tail).Subject)
	require.Eventually(t, func() bool { return calls.Load() == 1 }, time.Minute, time.Millisecond)
}

func TestWatch_OtherErrors_NotRefusals(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, nats.ErrSlowConsumer, nats.ErrAuthorization} {
		_, ok := permissions.From(err)
		require.False(t, ok, "%v", err)
	}
}
