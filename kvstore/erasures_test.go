package kvstore_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func receiptOf(id string) *schema.Erasure {
	return &schema.Erasure{Fleet: "alpha", Run: "run-1", ID: id, By: "tester", RemovedAt: "2026-01-01T00:00:00Z"}
}

func TestErasures_TwoFinishAtOnce_FirstReceiptStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var once sync.Once
	js := natstest.Between(t, b.nc, func(m *nats.Msg, subject string) {
		if !strings.HasPrefix(subject, "$JS.API.STREAM.MSG.GET.KV_") || !strings.Contains(string(m.Data), schema.ErasedKeyPrefix+"run-1\"") {
			natstest.Forward(b.nc, m, subject)
			return
		}
		answer, err := b.nc.RequestWithContext(t.Context(), subject, m.Data)
		if err != nil {
			t.Error(err)
			return
		}
		once.Do(func() {
			if err := b.shard.Erasures.Finish(t.Context(), receiptOf("first")); err != nil {
				t.Error(err)
			}
		})
		if err := m.Respond(answer.Data); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, openShard(t, js, "alpha").Erasures.Finish(t.Context(), receiptOf("second")))
	receipt, _, done, err := b.shard.Erasures.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, "first", receipt.ID)
}

func TestErasures_UnsettledSinceTheLook_IsNotSettled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	e := b.shard.Erasures
	require.NoError(t, e.Finish(t.Context(), receiptOf("first")))
	_, rev, err := e.Settling(t.Context(), "run-1")
	require.NoError(t, err)
	const later = "2026-01-01T00:10:00Z"
	require.NoError(t, e.Unsettle(t.Context(), "run-1", later))
	require.NoError(t, e.Settled(t.Context(), "run-1", rev))
	require.NoError(t, e.Settled(t.Context(), "run-1", 0), "there was none")
	record, rev, err := e.Settling(t.Context(), "run-1")
	require.NoError(t, err, "something came since the look")
	require.Equal(t, later, record.RemovedAt)
	require.NoError(t, e.Settled(t.Context(), "run-1", rev))
	_, _, err = e.Settling(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}
