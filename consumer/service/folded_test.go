package service_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// held folds a run up to its last event; the fold worker's connection sends no more, so that nothing of it is stored,
// until the returned function is called.
func (w *serviceWorld) held(x *writer) (release func()) {
	w.TB.Helper()
	reached, goOn := make(chan struct{}), make(chan struct{})
	var worker atomic.Pointer[fold.Worker]
	d := &foldtest.Tap{Prefixes: []string{"$KV." + w.Names.SegmentBucket() + ".", "$KV." + w.Names.CheckpointBucket() + "."}}
	events, reach := int64(len(x.Acked)), sync.OnceFunc(func() { close(reached) })
	d.Set(func(string) {
		if f := worker.Load(); f != nil && f.Stats().Applied.Load() >= events {
			reach()
			<-goOn
		}
	})
	f, _ := w.FoldTapped(fold.Config{Holder: "worker-1", LeaseTTL: time.Minute}, d)
	worker.Store(f)
	release = sync.OnceFunc(func() { close(goOn) })
	w.TB.Cleanup(release) // a fold worker that cannot send cannot stop
	select {
	case <-reached:
	case <-time.After(time.Minute):
		require.FailNow(w.TB, "not folded in time")
	}
	return release
}

// stored waits until a run's checkpoint is at a position.
func (w *serviceWorld) stored(run string, at schema.StreamSequence) (c *schema.Checkpoint) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		var err error
		c, _, err = w.Shard.Checkpoints.GetFresh(w.TB.Context(), run)
		return err == nil && c.Position.Stream >= at
	}, time.Minute, 10*time.Millisecond)
	return c
}

// goesOn makes a writer the executor that took its run over, and lets it work: its events must count.
func (w *serviceWorld) goesOn(x *writer, reply *schema.RecoverReply, executor string) *schema.Checkpoint {
	w.TB.Helper()
	x.resume(reply, executor)
	c := w.stored(x.Run.Run, x.TurnOf(10))
	require.Equal(w.TB, reply.Epoch, c.Epoch)
	require.Equal(w.TB, executor, c.Executor)
	require.Equal(w.TB, x.Run.Last, c.Sequence)
	return c
}

// askWithHole sends a request about a run whose log lost an event that a fold worker has folded and not stored. The
// fold worker continues once the request has found the hole.
func (w *serviceWorld) askWithHole(x *writer, verb string, req any) (*answer, error) {
	w.TB.Helper()
	release := w.held(x)
	w.deleteMsg(x.Acked[len(x.Acked)-4].Stream)
	type result struct {
		*answer
		err error
	}
	answered := make(chan result, 1)
	go func() {
		a, err := w.ask(verb, x.Run.Run, req)
		answered <- result{a, err}
	}()
	require.Eventually(w.TB, func() bool { return w.svc.Stats().Holes.Load() > 0 }, time.Minute, time.Millisecond)
	release()
	got := <-answered
	return got.answer, got.err
}

// The log loses an event that only the fold worker has: a takeover waits for the fold worker, and uses its state. A
// takeover based on the log would be refused by the fold, and with it all events of its executor.
func TestTakeover_LogLostFoldedEvents_UsesFold(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	want := x.Model()
	req := takeover("executor-2", "req-1")
	req.View = schema.ViewHead // the content is lost
	a, err := w.askWithHole(x, schema.VerbRecover, req)
	require.NoError(t, err)
	reply := decodeAs[schema.RecoverReply](t, a.first)
	require.EqualValues(t, 2, reply.Epoch)
	require.True(t, reply.Complete, "%v", reply.Gaps)
	require.Equal(t, want.Counts.Events+1, reply.Head.Counts.Events)
	w.goesOn(x, reply, "executor-2")
}

// The same holds for decisions about a run: here it has ended, which the log alone does not show.
func TestDecide_LogLostFoldedEvents_UsesFold(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	_, err := w.askWithHole(x, schema.VerbCancel, schema.CancelRequest{By: "operator-1"})
	var refused *schema.ServiceError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, schema.CodeRunEnded, refused.Code, refused.Message)
}

// Without a fold worker there is nothing to wait for.
func TestTakeover_LogWithGap_NeedsNoWorker(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	w.deleteMsg(x.Acked[len(x.Acked)-4].Stream)
	reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.EqualValues(t, 2, reply.Epoch)
	require.False(t, reply.Complete)
	w.Fold(fold.Config{})
	w.goesOn(x, reply, "executor-2")
}

// The log loses the end of a run that a fold worker has: a read cannot tell, and the fold worker follows the log when
// the next event shows it.
func TestWorker_LogLostRunEnd_Follows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		stored bool
	}{{"folded and not stored", false}, {"stored", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 3, 10)
			release := w.held(x)
			if c.stored {
				release()
				w.stored("run-1", schema.StreamSequence(x.Last))
				release = func() {}
			}
			lost := x.Acked[len(x.Acked)-1].Stream
			w.aRun("run-2", 1, 10) // so that it is not the end of the log
			w.deleteMsg(lost)
			reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
			release()
			require.EqualValues(t, 2, reply.Epoch)
			require.Equal(t, !c.stored, reply.Complete, "only a checkpoint knows of what was lost")
			got := w.goesOn(x, reply, "executor-2")
			require.Len(t, got.Lost, 1)
			require.Equal(t, lost, got.Lost[0].At.Stream)
		})
	}
}

// A control event has no sequence. If the log lost one, the next event's link tells it to each reader: request, fold
// worker or verify.
func TestRead_LostControlEvent_NamedGap(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	cancelled := w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "operator-1"}).Stream
	x.Last = uint64(cancelled)
	at := x.TurnOf(10)
	w.deleteMsg(cancelled)
	next := x.Acked[slices.IndexFunc(x.Acked, func(r schema.Record) bool { return r.Stream > cancelled })]
	want := []schema.Gap{{Epoch: 1, At: schema.PositionOf(&next), Reason: "lost"}}
	x.Stamp()
	named := func() {
		t.Helper()
		for _, view := range []string{schema.ViewHead, schema.ViewEvents, schema.ViewState} {
			reply, _ := w.get("run-1", view)
			require.False(t, reply.Complete, view)
			require.Equal(t, want, reply.Gaps, view)
			require.Equal(t, x.Model(), reply.Head, view)
		}
		v := w.verify("run-1")
		require.Len(t, v.Findings, 1)
		require.Equal(t, want[0].At, v.Findings[0].Event)
	}
	named()
	_, stop := w.Fold(fold.Config{SealEvents: 4, PurgeAfter: -1})
	require.Equal(t, want, w.stored("run-1", at).Gaps)
	named()
	// The checkpoint is derived: segments and log give the same without it.
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "run-1"))
	named()
	reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.Equal(t, want, reply.Gaps)
	require.Equal(t, want, w.goesOn(x, reply, "executor-2").Gaps)
	stop()
	w.Fold(fold.Config{Holder: "worker-2"})
	require.Equal(t, want, w.stored("run-1", x.TurnOf(10)).Gaps)
}
