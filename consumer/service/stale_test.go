package service_test

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// lagging is a service that is answered by two "replicas" of the event stream: the real one, and a real copy of it
// that stopped at some moment. Direct gets go to either, as on a cluster; all other requests go to the leader.
type lagging struct {
	*serviceWorld
	// every sends one of n direct gets to the copy, at random, the others to the real stream; 1 sends all, 0 none.
	every atomic.Int64
	stale atomic.Int64
	// without, if not 0, is the position of a message that the real stream's direct gets do not show either.
	without atomic.Uint64
}

const copyName = "STALE_COPY"

func newLagging(t *testing.T, cfg service.Config) *lagging {
	t.Helper()
	w := newServiceWorld(t)
	w.stop()
	l := &lagging{serviceWorld: w}
	nc := w.Server.Conn(t)
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+w.Names.EventStream() {
			if every := l.every.Load(); every > 0 && rand.Int64N(every) == 0 {
				l.stale.Add(1)
				if lost := l.without.Load(); lost != 0 {
					natstest.ForwardWithout(nc, m, subject, lost)
					return
				}
				subject = "$JS.API.DIRECT.GET." + copyName
			}
		}
		natstest.Forward(nc, m, subject)
	})
	shard := w.openOn(js, "service-1")
	cfg.Fleet, cfg.Name = "default", "service-1"
	svc, err := newService(t, cfg, js, []*kvstore.Shard{shard}, time.Now)
	require.NoError(t, err)
	l.svc = svc
	w.start(l.svc)
	return l
}

// freeze makes the copy: all that the log has now, and nothing later.
func (l *lagging) freeze() jetstream.Stream {
	l.TB.Helper()
	ctx := l.TB.Context()
	real, err := l.JS.Stream(ctx, l.Names.EventStream())
	require.NoError(l.TB, err)
	want := real.CachedInfo().State.LastSeq
	cfg := jetstream.StreamConfig{Name: copyName, Mirror: &jetstream.StreamSource{Name: l.Names.EventStream()}, AllowDirect: true}
	stream, err := l.JS.CreateStream(ctx, cfg)
	require.NoError(l.TB, err)
	require.Eventually(l.TB, func() bool {
		info, err := stream.Info(ctx)
		return err == nil && info.State.LastSeq >= want
	}, time.Minute, 10*time.Millisecond)
	cfg.Mirror = nil
	cfg.Subjects = []string{"stale.copy"}
	stream, err = l.JS.UpdateStream(ctx, cfg)
	require.NoError(l.TB, err)
	return stream
}

func TestStaleReplica_ShortLog_NotTakenForWhole(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	x := l.aRun("run-1", 3, 10)
	l.freeze()
	l.every.Store(2)
	for i := range 20 {
		x.TurnOf(10)
		reply, a := l.get("run-1", []string{schema.ViewHead, schema.ViewEvents}[i%2])
		require.Equal(t, x.Model(), reply.Head, "read %d", i)
		require.True(t, reply.Complete)
		if i%2 == 1 {
			require.Len(t, a.records(t), len(x.Acked))
		}
	}
	for i := range 10 {
		x.TurnOf(10)
		want := x.Model()
		reply, _ := l.recover("run-1", takeover("executor-2", "req-"+string(rune('a'+i))))
		require.Equal(t, want.Counts.Events+1, reply.Head.Counts.Events)
		require.True(t, reply.Complete)
		x.resume(reply, "executor-2")
		x.Acked = l.get2(x)
	}
	require.Positive(t, l.stale.Load())
	require.Zero(t, l.svc.Stats().Holes.Load())
	require.Zero(t, l.svc.Stats().Regressions.Load())
}

// get2 reads the run's events from the real stream.
func (l *lagging) get2(x *writer) []schema.Record {
	l.TB.Helper()
	l.every.Store(0)
	defer l.every.Store(2)
	_, a := l.get(x.Run.Run, schema.ViewEvents)
	return a.records(l.TB)
}

func TestStaleReplica_RunMissing_Found(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	l.aRun("older", 1, 10)
	l.freeze()
	l.every.Store(2)
	for _, id := range []string{"a", "b", "c", "d"} {
		x := l.aRun(id, 1, 10)
		reply, _ := l.get(id, schema.ViewHead)
		require.Equal(t, x.Model(), reply.Head)
		l.aRun(id+"2", 1, 10)
		taken, _ := l.recover(id+"2", takeover("executor-2", "req-1"))
		require.EqualValues(t, 2, taken.Epoch)
	}
	require.Equal(t, schema.CodeNotFound, l.refused(schema.VerbGet, "unknown", schema.GetRequest{}).Code)
}

func TestStaleReplica_NoneCurrent_Unavailable(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{Timeout: 400 * time.Millisecond})
	x := l.aRun("run-1", 3, 10)
	l.freeze()
	l.every.Store(1)
	x.TurnOf(10)
	for _, verb := range []string{schema.VerbGet, schema.VerbRecover} {
		var req any = schema.GetRequest{}
		if verb == schema.VerbRecover {
			req = takeover("executor-2", "req-1")
		}
		e := l.refused(verb, "run-1", req)
		require.Equal(t, schema.CodeUnavailable, e.Code)
	}
	require.Zero(t, l.svc.Stats().Takeovers.Load())
	// When the fault ends, service returns by itself.
	l.every.Store(0)
	require.Eventually(t, func() bool {
		a, err := l.ask(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewHead})
		if e, ok := errors.AsType[*schema.ServiceError](err); ok {
			require.Equal(t, schema.CodeUnavailable, e.Code, "on a slow machine")
			return false
		}
		require.NoError(t, err)
		require.Equal(t, x.Model(), decodeAs[schema.GetReply](t, a.first).Head)
		return true
	}, time.Minute, 10*time.Millisecond)
}

// A checkpoint may be ahead of the answering replica: that does not mean that the log lost its end.
func TestStaleReplica_CheckpointAhead_Trusted(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	x := l.aRun("run-1", 3, 10)
	l.freeze()
	x.TurnOf(10)
	l.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	l.every.Store(2)
	for range 10 {
		reply, _ := l.get("run-1", schema.ViewHead)
		require.Equal(t, x.Model(), reply.Head)
		require.True(t, reply.Complete)
	}
	require.Zero(t, l.svc.Stats().Regressions.Load())
}

// A replica that lost an event in the middle is not trusted: the leader has it.
func TestStaleReplica_MissingMessages_NoGap(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	x := l.aRun("run-1", 5, 10)
	damaged := l.freeze()
	require.NoError(t, damaged.DeleteMsg(t.Context(), uint64(x.Acked[9].Stream)))
	// Barriers reach the damaged replica too, or it would only be stale.
	l.every.Store(3)
	for range 12 {
		reply, a := l.get("run-1", schema.ViewEvents)
		require.Equal(t, x.Model(), reply.Head)
		require.True(t, reply.Complete)
		require.Len(t, a.records(t), len(x.Acked))
	}
	require.Zero(t, l.svc.Stats().Holes.Load())
}

// The same holds for an event without a sequence: the next one's compare-and-set shows it.
func TestStaleReplica_LostControlEvent_NoGap(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	x := l.aRun("run-1", 3, 10)
	cancelled := l.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "operator-1"}).Stream
	x.adopt(cancelled)
	x.TurnOf(10)
	l.without.Store(uint64(cancelled))
	l.every.Store(2)
	for i := range 12 {
		reply, _ := l.get("run-1", []string{schema.ViewHead, schema.ViewEvents}[i%2])
		require.Equal(t, x.Model(), reply.Head, "read %d", i)
		require.True(t, reply.Complete)
	}
	require.Positive(t, l.stale.Load())
	require.Zero(t, l.svc.Stats().Holes.Load())
}

// A stale replica's answer must not refuse a request, nor continue an epoch that is over.
func TestStaleReplica_Verdict_ProvenWithLeader(t *testing.T) {
	t.Parallel()
	l := newLagging(t, service.Config{})
	x := l.aRun("ended", 1, 10)
	x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	l.aRun("taken", 1, 10)
	l.recover("taken", takeover("executor-2", "req-1"))
	l.freeze()
	reopen := takeover("executor-2", "req-1")
	reopen.Reason = "reopen"
	reply, _ := l.recover("ended", reopen)
	require.EqualValues(t, 2, reply.Epoch)
	reply, _ = l.recover("taken", takeover("executor-3", "req-2"))
	require.EqualValues(t, 3, reply.Epoch)
	l.every.Store(2)
	for i := range 6 {
		reply, _ = l.recover("ended", takeover("executor-2", "again-"+string(rune('a'+i))))
		require.EqualValues(t, 3+i, reply.Epoch, "the run was reopened")
	}
	reply, _ = l.recover("taken", takeover("executor-2", "req-1"))
	require.EqualValues(t, 4, reply.Epoch, "epoch 2 is over, whatever a stale replica shows")
}
