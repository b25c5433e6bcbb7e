package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestReader_RunOfAnExecutor_IsReadWithoutOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	openTurn(t, start(t, w.fleet(), "r1"))
	w.serve()
	nc := w.server.Conn(t)
	beats, err := w.nc.SubscribeSync(schema.HeartbeatSubject("default", "reader"))
	require.NoError(t, err)
	reader, err := publisher.NewReader(t.Context(), publisher.Config{Conn: nc})
	require.NoError(t, err, "a reader publishes nothing: its connection may have a reconnect buffer")
	state, err := reader.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, w.fold("r1").Head.Digest, state.Head.Digest)
	var seen []schema.Record
	require.NoError(t, reader.Events(t.Context(), "r1", func(rec schema.Record) error { seen = append(seen, rec); return nil }))
	require.Len(t, seen, len(w.log("r1")))
	require.LessOrEqual(t, nc.NumSubscriptions(), 1, "it listens for the answers to its requests, and for no notices")
	waiting, _, err := beats.Pending()
	require.NoError(t, err)
	require.Zero(t, waiting)
	require.NoError(t, reader.Close(t.Context()))
	require.False(t, nc.IsClosed(), "the connection is the caller's")
}

func TestReader_NoFleet_IsNotProvisioned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := publisher.NewReader(t.Context(), publisher.Config{Conn: w.nc, Fleet: "other"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
	_, err = publisher.NewReader(t.Context(), publisher.Config{Conn: w.nc, Fleet: "no/name"})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = publisher.NewReader(t.Context(), publisher.Config{Conn: w.nc, URL: "nats://127.0.0.1:1"})
	require.ErrorIs(t, err, publisher.ErrConfig)
}
