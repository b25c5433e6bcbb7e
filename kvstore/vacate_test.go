package kvstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// racing is a JetStream on which other clients act right before a log is changed or deleted.
type racing struct {
	jetstream.JetStream
	change, delete func()
}

func (m racing) UpdateStream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	if cfg.Name == eventStream && m.change != nil {
		m.change()
	}
	return m.JetStream.UpdateStream(ctx, cfg)
}

func (m racing) DeleteStream(ctx context.Context, name string) error {
	if name == eventStream && m.delete != nil {
		m.delete()
	}
	return m.JetStream.DeleteStream(ctx, name)
}

func TestVacate_EventStoredAfterTheCheck_DeletesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	settings, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	subject, stored := schema.NamesOf("alpha", 0).EventSubject("r1"), uint64(0)
	change := func() {
		if stored == 0 {
			ack, err := b.js.Publish(t.Context(), subject, []byte("acknowledged"))
			require.NoError(t, err)
			stored = ack.Sequence
		}
	}
	require.ErrorIs(t, kvstore.Vacate(t.Context(), racing{JetStream: b.js, change: change}, settings), kvstore.ErrExists)
	log, err := b.js.Stream(t.Context(), eventStream)
	require.NoError(t, err)
	m, err := log.GetMsg(t.Context(), stored)
	require.NoError(t, err)
	require.Equal(t, "acknowledged", string(m.Data))
	_, err = b.js.Publish(t.Context(), subject, []byte("later"))
	require.NoError(t, err, "the fleet works as before")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
}

func TestVacate_EventPublishedBeforeTheDeletion_IsNotAcknowledged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	settings, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	asked := false
	deletes := func() {
		asked = true
		_, err := b.js.Publish(t.Context(), schema.NamesOf("alpha", 0).EventSubject("r1"), []byte("x"))
		require.ErrorIs(t, err, jetstream.ErrNoStreamResponse)
	}
	require.NoError(t, kvstore.Vacate(t.Context(), racing{JetStream: b.js, delete: deletes}, settings))
	require.True(t, asked)
	_, _, err = kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestVacate_HolderOfLeaseCrashed_Deletes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	settings, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	crashed, err := kvstore.NewLease(b.js, kvstore.LeaseConfig{Name: kvstore.FoldLease(schema.NamesOf("alpha", 0)), Holder: "one", TTL: kvstore.MinLeaseTTL})
	require.NoError(t, err)
	require.NoError(t, crashed.Acquire(t.Context(), time.Now(), 0))
	require.NoError(t, kvstore.Vacate(t.Context(), b.js, settings))
}
