package service_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// However rarely checkpoints are put, an answer and a takeover have every event, because they read the log. A worker
// that ends puts its checkpoints.
func TestRecover_CheckpointsAreRare_HasEveryEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	worker, stop := w.Fold(fold.Config{Linger: time.Hour})
	x := w.writer("r1")
	x.Start()
	for i := range 20 {
		x.Publish(&schema.StateSetData{Key: "step", Value: []byte{byte('0' + i%10)}}, 0)
	}
	checkpoints := w.shards[0].Checkpoints
	_, _, err := checkpoints.Get(t.Context(), "r1")
	require.ErrorIs(t, err, kvstore.ErrNotFound, "no checkpoint is put before its time")
	reply, _ := w.get("r1", schema.ViewHead)
	require.EqualValues(t, 21, reply.Head.Counts.Events)
	taken, _ := w.recover("r1", schema.RecoverRequest{Executor: "ex-2", RequestID: "q1", View: schema.ViewHead})
	require.True(t, taken.Complete)
	require.EqualValues(t, 2, taken.Epoch)
	require.EqualValues(t, 22, taken.Head.Counts.Events)
	require.Zero(t, worker.Stats().Checkpoints.Load())
	// The answers came from the log. The worker reads the log by itself, and stores at its end what it has read until then.
	require.Eventually(t, func() bool { return worker.Stats().Applied.Load() == 22 }, time.Minute, time.Millisecond, "the worker has folded every event")
	require.Zero(t, worker.Stats().Checkpoints.Load(), "folded and not yet stored")
	stop()
	c, _, err := checkpoints.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, taken.Head.Digest, c.Digest)
	require.EqualValues(t, 1, worker.Stats().Checkpoints.Load(), "one checkpoint for all events")
}
