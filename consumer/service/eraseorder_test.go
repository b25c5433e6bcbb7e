package service_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// orderByHand stores a removal order of a daemon that is gone; change sets how far it had come.
func (w *serviceWorld) orderByHand(x *writer, id string, change func(*schema.Erasure)) schema.Revision {
	w.TB.Helper()
	last := x.Acked[len(x.Acked)-1]
	record := &schema.Erasure{
		Fleet: "default", Run: x.Run.Run, ID: id, By: "alice", AskedAt: schema.FormatTime(time.Now()), Status: schema.StatusCompleted, Position: schema.PositionOf(&last),
	}
	if c, _, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), record.Run); err == nil {
		record.Keys = append(schema.ChildKeys(&c.Head), schema.EndedKeys(&c.Head)...)
	}
	change(record)
	rev, err := w.Shard.Erasures.Order(w.TB.Context(), record, 0)
	require.NoError(w.TB, err)
	return rev
}

func notDecided(*schema.Erasure) {}

func isDecided(e *schema.Erasure) { e.DecidedAt = schema.FormatTime(time.Now()) }

// markByHand stores the tombstone of a removal after the run's last event.
func (w *serviceWorld) markByHand(run, id string) {
	w.TB.Helper()
	header, body := schema.NewErased("default", "service-9", run, id, time.Now()).Encode()
	w.publishRaw(run, header, body)
}

// awaitWithdrawn waits until there is no record of a removal.
func (w *serviceWorld) awaitWithdrawn(run string) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		_, _, _, err := w.Shard.Erasures.Get(w.TB.Context(), run)
		return errors.Is(err, kvstore.ErrNotFound)
	}, time.Minute, 5*time.Millisecond, "the order stands")
}

// awaitNoOrder waits until no removal is ordered.
func (w *serviceWorld) awaitNoOrder() {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		n, err := w.Shard.Erasures.Ordered(w.TB.Context())
		require.NoError(w.TB, err)
		return n == 0
	}, time.Minute, 5*time.Millisecond, "an order stands")
}

// status of a run in the service's answer.
func (w *serviceWorld) status(run string) schema.Status {
	w.TB.Helper()
	a, err := w.ask(schema.VerbGet, run, schema.GetRequest{})
	require.NoError(w.TB, err)
	var reply schema.GetReply
	require.NoError(w.TB, json.Unmarshal(a.first, &reply))
	return reply.Head.Status
}

// impatient is a world whose fold worker does not wait for the requests that gave an order.
func impatient(tb testing.TB) *serviceWorld {
	tb.Helper()
	w, stop := erasing(tb)
	stop()
	cfg := eraseSoon()
	cfg.OrderPatience = 20 * time.Millisecond
	w.Fold(cfg)
	return w
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

func TestRemoval_UndecidedOrder_WithdrawnInSameTerm(t *testing.T) {
	t.Parallel()
	w := impatient(t)
	x := w.ended("run-1")
	w.orderByHand(x, "n1", notDecided)
	w.awaitWithdrawn("run-1")
	require.Equal(t, schema.StatusCompleted, w.status("run-1"))
	_, err := w.ask(schema.VerbGet, "run-1", schema.GetRequest{At: "turn:1"})
	require.NoError(t, err, "its points are given again")
}

func TestRemoval_DecidedOrder_CarriedOutByWorker(t *testing.T) {
	t.Parallel()
	w := impatient(t)
	x := w.ended("run-1")
	w.orderByHand(x, "n1", isDecided)
	require.Eventually(t, func() bool {
		record, _, done, err := w.Shard.Erasures.Get(t.Context(), "run-1")
		require.NoError(t, err)
		return done && record.ID == "n1"
	}, time.Minute, 10*time.Millisecond)
	w.refusedAs(schema.CodeErased, schema.VerbGet, "run-1", schema.GetRequest{})
}

func TestRemoval_RunChangedSinceOrder_Withdrawn(t *testing.T) {
	t.Parallel()
	w := impatient(t)
	x := w.writer("run-1")
	x.Start()
	w.orderByHand(x, "n1", func(e *schema.Erasure) {
		isDecided(e)
		e.Position.Stream-- // as if the start had come after it
	})
	w.awaitWithdrawn("run-1")
	x.TurnOf(100)
	require.Equal(t, schema.StatusRunning, w.status("run-1"))
}

// A request that forced the removal of a run and failed has not forced it for the next request.
func TestRemoval_ForcedOrderAskedWithoutForce_CheckedAgain(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	x := w.writer("pinned")
	x.Start()
	x.Publish(&schema.CheckpointMarkedData{Name: "here"}, 0)
	w.awaitFolded(x.end(schema.StatusCompleted))
	w.orderByHand(x, "n1", func(e *schema.Erasure) { e.Force = true })
	w.refusedAs(schema.CodeNeeded, schema.VerbErase, "pinned", schema.EraseRequest{By: "tester"})
	require.Equal(t, schema.StatusCompleted, w.status("pinned"))
	receipt := w.erase("pinned", true)
	require.Equal(t, "n1", receipt.ID, "the order that is there is gone on with")
}

// Two requests arrive at once: one finds a fork and the other did not. The first withdraws the order in the state
// that it read, which the other has decided since.
func TestRemoval_OrderDecidedByAnother_NotWithdrawn(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.end(schema.StatusCompleted)
	rev := w.orderByHand(x, "n1", notDecided)
	record, _, _, err := w.Shard.Erasures.Get(t.Context(), "run-1")
	require.NoError(t, err)
	isDecided(record)
	next, err := w.Shard.Erasures.Order(t.Context(), record, rev)
	require.NoError(t, err)
	there, err := w.Shard.Erasures.Withdraw(t.Context(), "run-1", rev)
	require.NoError(t, err)
	require.False(t, there)
	record, _, _, err = w.Shard.Erasures.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.True(t, record.Decided())
	there, err = w.Shard.Erasures.Withdraw(t.Context(), "run-1", next)
	require.NoError(t, err)
	require.True(t, there)
	_, err = w.Shard.Erasures.Order(t.Context(), record, next)
	require.ErrorIs(t, err, kvstore.ErrConflict, "no request decides a withdrawn order")
}

func TestRemoval_SecondOrder_KeepsReceipt(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(*schema.Erasure){"not decided": notDecided, "decided": isDecided} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, stop := erasing(t)
			x := w.ended("run-1")
			receipt := w.erase("run-1", false)
			require.Positive(t, receipt.Events)
			w.awaitNoOrder()
			stop()
			// A concurrent request, which saw no order yet, stores one now.
			w.orderByHand(x, "n2", decide)
			w.Fold(eraseSoon())
			w.awaitNoOrder()
			again := w.erase("run-1", false)
			require.Equal(t, receipt, again)
			left := w.left(&again)
			require.True(t, left.None(), "%+v", left)
		})
	}
}

// The tombstone was in the log before the order was decided, from a client that can read orders: the fold has passed
// it, and no event follows.
func TestRemoval_TombstoneAlreadyFolded_Continues(t *testing.T) {
	t.Parallel()
	w := impatient(t)
	x := w.ended("run-1")
	w.markByHand("run-1", "n1")
	other := w.ended("run-2")
	require.NotNil(t, other)
	require.Equal(t, schema.StatusCompleted, w.status("run-1"), "a mark without an order")
	w.orderByHand(x, "n1", isDecided)
	require.Eventually(t, func() bool {
		_, _, done, err := w.Shard.Erasures.Get(t.Context(), "run-1")
		require.NoError(t, err)
		return done
	}, time.Minute, 10*time.Millisecond, "the removal waits for the fold, which has passed the mark")
	w.refusedAs(schema.CodeErased, schema.VerbGet, "run-1", schema.GetRequest{})
}

// A checkpoint of a removed run, with neither order nor receipt, does not remove it.
func TestRemoval_CheckpointOnly_RemovesNothing(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	stop()
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	digest, incarnation := c.Digest, c.Incarnation
	res := w.Shard.Checkpoints.PutBatch(t.Context(), []kvstore.Item{{Revision: rev, Checkpoint: &schema.Checkpoint{
		Head: schema.ErasedHead("default", "run-1", c.Position, schema.FormatTime(time.Now())), Incarnation: incarnation,
	}}})
	require.NoError(t, res[0].Err)
	w.Fold(eraseSoon())
	w.markByHand("run-1", "n1") // the fold looks at it
	require.Eventually(t, func() bool {
		c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
		return err == nil && c.Status == schema.StatusCompleted && c.Digest == digest
	}, time.Minute, 10*time.Millisecond, "it is not folded again")
	require.Equal(t, schema.StatusCompleted, w.status("run-1"))
}

// An event comes long after the removal, from a client without compare-and-set. It is refused, and the daemon fails
// before it is purged: the fold has passed it, so that the next daemon must find it by itself.
func TestRemoval_LateEvents_RemovedByNextDaemon(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	receipt := w.erase("run-1", false)
	settled := func() bool {
		_, _, err := w.Shard.Erasures.Settling(t.Context(), "run-1")
		return errors.Is(err, kvstore.ErrNotFound)
	}
	require.Eventually(t, settled, time.Minute, 5*time.Millisecond)
	stop()
	e := schema.Event{
		ID: "late", Source: schema.Source("default", "executor-9"), Type: schema.TypeOf(schema.RunStarted), Subject: "run-1",
		Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: []byte(`{"agent":"secret"}`),
	}
	header, body := e.Encode()
	w.publishRaw("run-1", header, body)
	// As left by the fold that passed the event, and failed.
	require.NoError(t, w.Shard.Erasures.Unsettle(t.Context(), "run-1", schema.FormatTime(time.Now())))
	mark, rev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	last, err := w.Shard.LastOfRun(t.Context(), "run-1")
	require.NoError(t, err)
	mark.Position = schema.PositionOf(last)
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	w.Fold(eraseSoon())
	require.Eventually(t, func() bool {
		log := w.Log("run-1")
		return len(log) == 1 && schema.IsErasedMark(&log[0])
	}, time.Minute, 10*time.Millisecond, "the late event is still there")
	// The removal may be settled once before the fold has read the event again and refused it, and once after that.
	require.Eventually(t, func() bool {
		left := w.left(&receipt)
		return settled() && left.None()
	}, time.Minute, 5*time.Millisecond)
}

// A refused event of a removed run is noted before the fold has passed it.
func TestRemoval_FoldPassesTombstone_LeavesReceipt(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	w.erase("run-1", false)
	require.Eventually(t, func() bool {
		_, _, err := w.Shard.Erasures.Settling(t.Context(), "run-1")
		return errors.Is(err, kvstore.ErrNotFound)
	}, time.Minute, 5*time.Millisecond)
	stop()
	cfg := foldtest.Hasty() // it settles after minutes
	w.Fold(cfg)
	late := schema.Event{
		ID: "late", Source: schema.Source("default", "executor-9"), Type: schema.TypeOf(schema.RunStarted), Subject: "run-1",
		Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: []byte(`{"agent":"secret"}`),
	}
	header, body := late.Encode()
	w.publishRaw("run-1", header, body)
	last, err := w.Shard.LastOfRun(t.Context(), "run-1")
	require.NoError(t, err)
	w.awaitFolded(last.Stream)
	record, _, err := w.Shard.Erasures.Settling(t.Context(), "run-1")
	require.NoError(t, err, "no daemon would find it after this one is gone")
	require.Equal(t, "run-1", record.Run)
}

// Data of a removed run appears just before the daemon stops checking the removal again.
func TestRemover_DataAppearsAtTheEnd_ChecksAgain(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("run-1")
	w.erase("run-1", false)
	stop()
	require.NoError(t, w.Shard.Erasures.Unsettle(t.Context(), "run-1", schema.FormatTime(time.Now().Add(-time.Hour))))
	later := schema.FormatTime(time.Now().Add(time.Hour))
	settled := make(chan struct{})
	var once sync.Once
	cfg := eraseSoon()
	cfg.Holder = "worker-2"
	w.FoldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		if !strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.KV_") || !strings.Contains(string(m.Data), schema.SettlingKeyPrefix+"run-1\"") {
			natstest.Forward(nc, m, subject)
			return
		}
		once.Do(func() {
			if err := w.Shard.Erasures.Unsettle(t.Context(), "run-1", later); err != nil {
				t.Error(err)
			}
			defer close(settled)
			if _, err := nc.RequestWithContext(t.Context(), subject, m.Data); err != nil {
				t.Error(err)
			}
		})
	})
	<-settled
	record, _, err := w.Shard.Erasures.Settling(t.Context(), "run-1")
	require.NoError(t, err, "the next daemon does not look at it")
	require.Equal(t, later, record.RemovedAt)
}
