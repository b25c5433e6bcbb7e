package service_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	fullQuota   = kvstore.MinQuotaBytes
	fullReserve = 1 << 20
)

// newFullWorld is a service whose log is full, and executors that wait for room: each tries to publish an event again
// and again.
func newFullWorld(t *testing.T) *serviceWorld {
	t.Helper()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *service.Config) {
		f.QuotaBytes, f.ReserveBytes = fullQuota, fullReserve
	})
	w.aRun("run-1", 1, 10)
	w.fillLog()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	t.Cleanup(cancel)
	for i := range 4 {
		waiting.Go(func() {
			for ctx.Err() == nil {
				if _, err := w.JS.PublishMsg(ctx, w.smallEvent(fmt.Sprintf("waiting-%d", i))); err != nil {
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond): // the SDK waits for 2 ms at first, and for 500 ms in the end
					}
				}
			}
		})
	}
	return w
}

// smallEvent is an event of an executor's minimum size.
func (w *serviceWorld) smallEvent(run string) *nats.Msg {
	x := w.writer(run)
	e, err := x.Run.Event(&schema.TurnStartedData{Turn: 1}, 1, time.Unix(1_700_000_000, 0), 0)
	require.NoError(w.TB, err)
	header, body := e.Encode()
	return &nats.Msg{Subject: w.Names.EventSubject(run), Header: header, Data: body}
}

// fillLog publishes until not even a small event fits.
func (w *serviceWorld) fillLog() {
	w.TB.Helper()
	for _, size := range []int{500 << 10, 10 << 10, 1000, 0} {
		m := w.smallEvent("filler")
		m.Data = append(m.Data, make([]byte, size)...)
		for {
			_, err := w.JS.PublishMsg(w.TB.Context(), m)
			if err != nil {
				require.ErrorContains(w.TB, err, "maximum bytes exceeded")
				break
			}
		}
	}
}

func (w *serviceWorld) usage() kvstore.Usage {
	w.TB.Helper()
	u, err := w.Shard.Usage(w.TB.Context())
	require.NoError(w.TB, err)
	return u
}

// A read of a log with one replica needs no write, so it needs no room either.
func TestReads_FullLogOfOneReplica_PublishNoBarrier(t *testing.T) {
	t.Parallel()
	w := newFullWorld(t)
	for range 100 {
		reply, _ := w.get("run-1", schema.ViewHead)
		require.Equal(t, schema.StatusRunning, reply.Head.Status)
	}
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbGet, "unknown", schema.GetRequest{}).Code)
	require.Zero(t, w.svc.Stats().Barriers.Load())
	require.EqualValues(t, fullQuota, w.usage().Limit, "nothing was lifted")
	reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
	require.EqualValues(t, 2, reply.Epoch)
}

// Barriers of a full log replace each other: executors that wait for room cannot use the reserve through them.
func TestReads_FullReplicatedLog_KeepTheReserve(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a log is filled to its limit")
	}
	t.Parallel()
	w := newFullWorld(t)
	svc := w.replicated(service.Config{}, nil)
	w.get("run-1", schema.ViewHead)
	before := w.usage()
	for range 200 {
		w.get("run-1", schema.ViewHead)
	}
	require.GreaterOrEqual(t, svc.Stats().Barriers.Load(), int64(201))
	after := w.usage()
	require.Less(t, after.Limit-before.Limit, int64(4<<10), "of the reserve")
	require.Equal(t, before.Messages, after.Messages, "no executor found room in what was lifted")
	// On a slow machine executors get some of the room that each takeover lifts, so these are few.
	for i := range 8 {
		reply, _ := w.recover("run-1", takeover("executor-2", fmt.Sprintf("req-%d", i)))
		require.EqualValues(t, 2+i, reply.Epoch)
	}
}

// Even without a reserve the next barrier can use the latest barrier's room.
func TestReads_ReserveUsedUp_GoOn(t *testing.T) {
	t.Parallel()
	w := newFullWorld(t)
	svc := w.replicated(service.Config{}, nil)
	w.get("run-1", schema.ViewHead)
	for {
		if _, err := w.Shard.LiftQuota(t.Context(), 64<<10); err != nil {
			require.ErrorIs(t, err, kvstore.ErrFull)
			break
		}
		w.fillLog()
	}
	for {
		if _, err := w.Shard.LiftQuota(t.Context(), int64(eventlog.StoredBytes(w.smallEvent("filler")))); err != nil {
			require.ErrorIs(t, err, kvstore.ErrFull)
			break
		}
		w.fillLog()
	}
	barriers := svc.Stats().Barriers.Load()
	for range 20 {
		w.get("run-1", schema.ViewHead)
	}
	require.GreaterOrEqual(t, svc.Stats().Barriers.Load(), barriers+20)
	e := w.refused(schema.VerbRecover, "run-1", takeover("executor-2", "req-1"))
	require.Equal(t, schema.CodeStorageFull, e.Code, "a takeover has no room")
}

// One server's answer about its log is not enough once the log has several replicas: the next read publishes a
// barrier.
func TestReads_LogScaledToThreeReplicas_PublishBarriers(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), reply.Head)
	require.Zero(t, w.svc.Stats().Barriers.Load())
	w.replicated(service.Config{}, nil)
	for n := range int64(3) {
		w.get("run-1", schema.ViewHead)
		require.Equal(t, n+1, w.svc.Stats().Barriers.Load())
	}
}

// A lone server whose log accepts no writes can still be read, and is not ready.
func TestReads_LoneLogThatTakesNoWrites_GoOnAndQuorumFails(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	closed := stream.CachedInfo().Config
	closed.Subjects = []string{"unused.subject"}
	_, err = w.JS.UpdateStream(t.Context(), closed)
	require.NoError(t, err)
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), reply.Head)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, w.svc.Quorum(ctx, time.Hour)[0].Err)
}
