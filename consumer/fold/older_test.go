package fold_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// olderCheckpoint is run-1 with two turns that are folded, and a checkpoint that counts the first alone.
func (w *world) olderCheckpoint() *foldtest.Writer {
	w.TB.Helper()
	x, _, _ := w.FoldedTurn(10)
	older, _, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-1")
	require.NoError(w.TB, err)
	_, stop := w.Fold(fold.Config{Holder: "worker-2"})
	at := x.TurnOf(10)
	w.Await("the turn that is lost", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	_, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-1")
	require.NoError(w.TB, err)
	_, err = w.Shard.Checkpoints.Put(w.TB.Context(), older, rev)
	require.NoError(w.TB, err)
	return x
}

// A power cut may undo a checkpoint of an asynchronous bucket and keep a later watermark, and a daemon with an
// external server is not told of the power cut.
func TestWorker_CheckpointOlderThanWatermark_HidesNothing(t *testing.T) {
	t.Parallel()
	for name, cas := range map[string]bool{"behind a compare-and-set": true, "of an executor that does not compare": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			x := w.olderCheckpoint()
			at := schema.StreamSequence(0)
			worker, _ := w.Fold(fold.Config{Holder: "worker-3"})
			x.Turn++
			e, err := x.Run.Event(&schema.TurnStartedData{Turn: x.Turn}, x.Turn, time.Unix(1_800_000_000, 0), 0)
			require.NoError(t, err)
			require.NoError(t, x.Run.Commit(e))
			if cas {
				at = x.Send(e)
			} else {
				header, body := e.Encode()
				ack, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: header, Data: body}, jetstream.WithMsgID(e.ID))
				require.NoError(t, err)
				at = schema.StreamSequence(ack.Sequence)
				x.Acked = append(x.Acked, schema.NewRecord(at, header, body))
			}
			c := w.Await("the event behind it", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
			require.Equal(t, x.Model(), c.Head)
			require.EqualValues(t, len(x.Acked), c.TailEvents+c.Segments.Events)
			require.Zero(t, worker.Stats().DeadLetters.Load())
		})
	}
}

// The log went back, and others used its sequences before any worker looked: only the run itself shows that.
func TestWorker_CheckpointOfLostEvent_HidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, at, _ := w.FoldedTurn(10)
	worker, stop := w.Fold(fold.Config{Holder: "worker-2"})
	ack, err := w.JS.Publish(t.Context(), w.Names.EventSubject("run-2"), []byte("garbage"))
	require.NoError(t, err)
	require.EqualValues(t, at+1, ack.Sequence)
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() == ack.Sequence }, time.Minute, time.Millisecond)
	stop()
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	c.Position = schema.Position{Stream: at + 1, ID: "run-1.1.6.00000000"}
	c.Sequence++
	_, err = w.Shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	_, _ = w.Fold(fold.Config{Holder: "worker-3"})
	at = x.TurnOf(10)
	c = w.Await("the next turn", func(c *schema.Checkpoint) bool { return c.Position.Stream == at })
	require.Equal(t, x.Model(), c.Head)
}

// Without an event of its own no worker would load such a run, and every event of the sweeper would be refused.
func TestWorker_OlderCheckpoint_RunStillOrphaned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.olderCheckpoint()
	nc := w.Server.Conn(t)
	liveRuns := liveness.NewLiveRuns([]*kvstore.Shard{w.Shard}, 0, time.Now, natstest.Logger(t))
	heartbeats := liveness.NewHeartbeats("default", nc, liveRuns, time.Now, natstest.Logger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return liveRuns.Run(ctx) })
	group.Go(func() error { return heartbeats.Run(ctx) })
	defer func() {
		cancel()
		require.NoError(t, group.Wait())
	}()
	_, stop := w.Fold(fold.Config{Holder: "worker-3", LiveRuns: liveRuns, Heartbeats: heartbeats, Silence: 3 * time.Second})
	defer stop()
	c := w.Await("orphaned", func(c *schema.Checkpoint) bool { return c.Status == schema.StatusOrphaned })
	require.Equal(t, len(x.Acked)+1, int(c.Counts.Events))
	require.True(t, c.Complete())
}
