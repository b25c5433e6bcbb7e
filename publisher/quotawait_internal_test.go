package publisher

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// The patience is counted from when room was made last, and the wait as a whole is bounded.
func TestQuotaWait_RoomMade_ResetsPatience(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	f, err := Connect(t.Context(), Config{Conn: nc, Executor: "exec-1", FullPatience: time.Hour, FullTimeout: 24 * time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close(t.Context())) }()
	names := schema.NamesOf("default", 0)
	publish := func() {
		_, err := js.Publish(t.Context(), names.EventSubject("other"), []byte("x"))
		require.NoError(t, err)
	}
	refused := errors.New("full")
	var w quotaWait
	try := func() error { return f.quotas.await(t.Context(), &w, names.EventStream(), refused) }
	require.NoError(t, try())
	publish()
	publish()
	require.NoError(t, try())
	require.False(t, w.relieved, "what others publish is no room")

	// Others take at once what becomes free.
	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeKeep(1)))
	publish()
	w.progress = w.progress.Add(-59 * time.Minute)
	before := w.progress
	require.Eventually(t, func() bool { return try() == nil && w.relieved }, time.Minute, time.Millisecond)
	require.Greater(t, w.progress.Sub(before), 59*time.Minute)

	f.quotas.streams[names.EventStream()].freed = time.Time{}
	w.progress = w.progress.Add(-time.Hour)
	var full *FullError
	require.ErrorAs(t, try(), &full)
	require.True(t, full.Relieved, "it was, though not of late")
	require.Less(t, full.Waited, time.Hour)

	w.progress, w.began = time.Now(), w.began.Add(-24*time.Hour)
	require.ErrorAs(t, try(), &full)
	require.GreaterOrEqual(t, full.Waited, 24*time.Hour)
	require.ErrorContains(t, full, "space was freed")
}

// A look that was not answered says nothing of what was taken out before the next one.
func TestQuotaWait_RoomBeforeFirstAnswer_NoProgress(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	f, err := Connect(t.Context(), Config{Conn: nc, Executor: "exec-1"})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close(t.Context())) }()
	require.Zero(t, f.quotas.look(t.Context(), "LATER", 0).freed, "there is no such stream")
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATER", Subjects: []string{"later"}, MaxMsgs: 1})
	require.NoError(t, err)
	for range 3 {
		_, err = js.Publish(t.Context(), "later", []byte("x"))
		require.NoError(t, err)
	}
	require.Zero(t, f.quotas.look(t.Context(), "LATER", 0).freed, "removed before the first wait")
	_, err = js.Publish(t.Context(), "later", []byte("x"))
	require.NoError(t, err)
	require.NotZero(t, f.quotas.look(t.Context(), "LATER", 0).freed)
}
