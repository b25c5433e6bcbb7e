package service_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// erasing is the message of run.erased for a writer's run.
func (w *serviceWorld) erasing(x *writer, change func(*schema.Removal)) *nats.Msg {
	w.TB.Helper()
	removal := &schema.Removal{
		Fleet: "default", Run: x.Run.Run, ID: "n1", By: "alice", At: schema.FormatTime(time.Now()), Status: schema.StatusCompleted,
		Position: schema.PositionOf(&x.Acked[len(x.Acked)-1]),
	}
	if c, _, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), removal.Run); err == nil {
		removal.Keys = append(schema.ChildKeys(&c.Head), schema.EndedKeys(&c.Head)...)
	}
	change(removal)
	e, err := schema.NewErased("service-9", removal, "1", time.Now())
	require.NoError(w.TB, err)
	header, body := e.Encode()
	return &nats.Msg{Subject: w.Names.EventSubject(removal.Run), Header: header, Data: body}
}

// eraseByHand stores run.erased, as a daemon does that is gone after that.
func (w *serviceWorld) eraseByHand(x *writer) {
	w.TB.Helper()
	m := w.erasing(x, func(*schema.Removal) {})
	_, err := w.JS.PublishMsg(w.TB.Context(), m, jetstream.WithExpectLastSequencePerSubject(x.Last))
	require.NoError(w.TB, err)
}

// lastOf is the last message of a run in the log.
func (w *serviceWorld) lastOf(run string) schema.Record {
	w.TB.Helper()
	last, there, err := eventlog.Last(w.TB.Context(), w.JS, w.Names, run)
	require.NoError(w.TB, err)
	require.True(w.TB, there)
	return last
}

// awaitUnlisted waits until the daemon has ended all removals.
func (w *serviceWorld) awaitUnlisted() {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		runs, err := w.Shard.Removals.Runs(w.TB.Context())
		require.NoError(w.TB, err)
		return len(runs) == 0
	}, time.Minute, 5*time.Millisecond)
}

// status of a run in the service's answer.
func (w *serviceWorld) status(run string) schema.Status {
	w.TB.Helper()
	reply, _ := w.get(run, schema.ViewHead)
	return reply.Head.Status
}

// ended is a run that was completed and folded.
func (w *serviceWorld) ended(run string) *writer {
	w.TB.Helper()
	x := w.writer(run)
	x.Start()
	x.TurnOf(200)
	w.awaitFolded(x.end(schema.StatusCompleted))
	return x
}

// late stores an event after the removal of a run, like a client without compare-and-set.
func (w *serviceWorld) late(run string) {
	w.TB.Helper()
	e := schema.Event{
		ID: "late", Source: schema.Source("default", "executor-9"), Type: schema.TypeOf(schema.RunStarted), Subject: run,
		Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: []byte(`{"agent":"secret"}`),
	}
	header, body := e.Encode()
	w.publishRaw(run, header, body)
}

// The daemon died after it had stored the event. Requests say at once that the run is removed.
func TestRemoval_EventOfADeadDaemon_CarriedOutByWorker(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	x := w.ended("run-1")
	stop()
	w.eraseByHand(x)
	w.refusedAs(schema.CodeErased, schema.VerbGet, "run-1", schema.GetRequest{})
	w.refusedAs(schema.CodeErased, schema.VerbGet, "run-1", schema.GetRequest{At: "turn:1"})
	w.refusedAs(schema.CodeErased, schema.VerbFork, "run-1", schema.ForkRequest{Fork: "fork", By: "executor-1"})
	w.Fold(eraseSoon())
	receipt := w.erase("run-1", false)
	require.Equal(t, "n1", receipt.ID)
	require.Equal(t, "alice", receipt.By)
	w.requireNothingLeft(&receipt)
}

// The fold stops between any two steps: the list comes before the checkpoint, and that before the watermark.
func TestRemoval_WorkerDiesAfterListing_NextContinues(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	x := w.ended("run-1")
	w.ended("run-2")
	stop()
	w.eraseByHand(x)
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "run-1", w.lastOf("run-1").Stream))
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "run-2", 1), "the log went back to before its removal")
	w.Fold(eraseSoon())
	w.awaitUnlisted()
	require.Equal(t, schema.StatusCompleted, w.status("run-2"))
	receipt := w.erase("run-1", false)
	w.requireNothingLeft(&receipt)
}

// A crash of the server undoes the checkpoint that shows a removal, and keeps a later watermark.
func TestRemoval_CheckpointUndone_RemovedByNextDaemon(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	before, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	receipt := w.erase("run-1", false)
	w.awaitUnlisted()
	stop()
	_, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	res := w.Shard.Checkpoints.PutBatch(t.Context(), []kvstore.Item{{Revision: rev, Checkpoint: before}})
	require.NoError(t, res[0].Err)
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "run-1", w.lastOf("run-1").Stream))
	w.Fold(eraseSoon())
	w.awaitUnlisted()
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, schema.StatusErased, c.Status)
	w.requireNothingLeft(&receipt)
}

func TestRemoval_TwoRequestsAtOnce_OneReceipt(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	w.ended("run-1")
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			a, err := w.ask(schema.VerbErase, "run-1", schema.EraseRequest{By: "tester"})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = decodeAs[schema.EraseReply](t, a.first).Removal.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	require.Equal(t, ids[0], w.erase("run-1", false).ID)
}

// A checkpoint of a removed run does not remove it if the log has no run.erased.
func TestRemoval_CheckpointOnly_RemovesNothing(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	stop()
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	head := schema.ErasedHead(&schema.Removal{Fleet: "default", Run: "run-1", ID: "forged", At: schema.FormatTime(time.Now()), Position: c.Position})
	head.Position = c.Position
	res := w.Shard.Checkpoints.PutBatch(t.Context(), []kvstore.Item{{Revision: rev, Checkpoint: &schema.Checkpoint{Head: head, Incarnation: c.Incarnation}}})
	require.NoError(t, res[0].Err)
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "run-1", 1))
	before := w.Log("run-1")
	w.Fold(eraseSoon())
	w.awaitUnlisted()
	require.Equal(t, before, w.Log("run-1"))
}

// An event comes long after the removal, from a client without compare-and-set. The daemon fails after its fold has
// passed it, and before it is purged: the next daemon must find it by itself.
func TestRemoval_LateEvents_RemovedByNextDaemon(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	receipt := w.erase("run-1", false)
	w.awaitUnlisted()
	stop()
	w.late("run-1")
	last := w.lastOf("run-1")
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "run-1", last.Stream))
	mark, rev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	mark.Position = schema.PositionOf(&last)
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	w.Fold(eraseSoon())
	require.Eventually(t, func() bool {
		log := w.Log("run-1")
		return len(log) == 1 && isErased(&log[0])
	}, time.Minute, 10*time.Millisecond, "the late event is still there")
	w.awaitUnlisted()
	w.requireNothingLeft(&receipt)
}

// A refused event of a removed run is listed before the fold has passed it.
func TestRemoval_LateEvent_ListedBeforeTheFoldPassesIt(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	w.erase("run-1", false)
	w.awaitUnlisted()
	stop()
	w.Fold(foldtest.Hasty()) // it checks again after minutes
	w.late("run-1")
	last := w.lastOf("run-1")
	w.awaitFolded(last.Stream)
	entry, _, err := w.Shard.Removals.Get(t.Context(), "run-1")
	require.NoError(t, err, "no daemon would find it after this one is gone")
	require.Equal(t, last.Stream, entry.Stream)
}

// An executor that slept through the removal puts the rest of a payload just before the daemon stops checking.
func TestRemover_DataAppearsAtTheEnd_ChecksAgain(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	w.erase("run-1", false)
	w.awaitUnlisted()
	stop()
	require.NoError(t, w.Shard.Removals.Put(t.Context(), "run-1", kvstore.Removal{Stream: 1, GoneBy: schema.FormatTime(time.Now().Add(-time.Hour))}, 0))
	done := make(chan struct{})
	var once sync.Once
	cfg := foldtest.Hasty()
	cfg.Holder = "worker-2"
	w.FoldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		if !strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.KV_") || !strings.Contains(string(m.Data), schema.RemovalKeyPrefix+"run-1\"") {
			natstest.Forward(nc, m, subject)
			return
		}
		once.Do(func() {
			defer close(done)
			if err := w.Shard.Removals.Add(t.Context(), "run-1", 9); err != nil {
				t.Error(err)
			}
			if _, err := nc.RequestWithContext(t.Context(), subject, m.Data); err != nil {
				t.Error(err)
			}
		})
	})
	<-done
	entry, _, err := w.Shard.Removals.Get(t.Context(), "run-1")
	require.NoError(t, err, "the next daemon does not look at it")
	require.EqualValues(t, 9, entry.Stream)
}
