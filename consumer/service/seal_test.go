package service_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// foldThrough starts a fold worker whose requests to the JetStream API a test sees first, as natstest.Between has it.
func (w *foldWorld) foldThrough(cfg fold.Config, now func() time.Time, seen func(nc *nats.Conn, m *nats.Msg, subject string)) *fold.Worker {
	w.tb.Helper()
	cfg.Fleet, cfg.LeaseTTL = "default", time.Second
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 20 * time.Millisecond
	}
	nc := w.server.Conn(w.tb)
	js := natstest.Between(w.tb, nc, func(m *nats.Msg, subject string) { seen(nc, m, subject) })
	settings, _, err := kvstore.NewFleets(w.js).Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	shard, err := kvstore.OpenShard(js, settings, 0, cfg.Holder)
	require.NoError(w.tb, err)
	f, err := fold.New(cfg, nc, js, shard, now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	w.run(f)
	return f
}

// segmentOf is a segment of the first events of a run, which says that it continues a run with this digest.
func (x *writer) segmentOf(events int, before string) []byte {
	x.w.tb.Helper()
	h := schema.NewHead("default", x.run.Run)
	var frames []byte
	log := x.w.log(x.run.Run) // with the server's times, which an acknowledgement does not tell
	for i := range log[:events] {
		frames = schema.AppendFrame(frames, &log[i])
		h.Apply(schema.NoKeys, &log[i])
	}
	stored, err := schema.EncodeSegment(schema.SegmentInfo{
		Fleet: "default", Run: x.run.Run, Number: 1, Events: events, First: schema.PositionOf(&x.acked[0]), Last: schema.PositionOf(&x.acked[events-1]),
		DigestBefore: before, DigestAfter: h.Digest,
	}, frames)
	require.NoError(x.w.tb, err)
	return stored
}

func TestAdopt_PausedBeforeReplacement_KeepsSegmentOfNextWorker(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x := w.writer("run-1")
	x.start()
	for range 4 {
		x.turnOf(100)
	}
	// Whole, all in the log, and of another history: both fold workers replace it.
	require.NoError(t, w.shard.Segments.Create(t.Context(), "run-1", 1, x.segmentOf(3, strings.Repeat("0", 64))))
	hold, held := make(chan struct{}), make(chan struct{})
	var looked, paused atomic.Bool
	// Both cut the same log, each in its own way, as an idle or a pressed tail is cut shorter.
	cfg := hasty()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents = "worker-a", 4, 4
	a := w.foldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		switch {
		case strings.HasPrefix(subject, "$JS.API.STREAM.MSG.GET.KV_WAYMARK_SEGMENTS") && strings.Contains(string(m.Data), ".run-1.1\""):
			looked.Store(true)
		case looked.Load() && strings.HasPrefix(subject, "$JS.API.DIRECT.GET."+w.names.EventStream()) && paused.CompareAndSwap(false, true):
			// It has examined the segment, and makes sure that the log has all of it.
			natstest.ForwardLate(nc, m, subject, hold)
			close(held)
			return
		}
		natstest.Forward(nc, m, subject)
	})
	<-held
	w.freeLease()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents, cfg.SealBytes, cfg.SealMaxBytes = "worker-b", 12, 12, 1<<16, 1<<17
	w.fold(cfg)
	c := w.awaitPurged(x)
	w.requireWhole(x, c)
	require.Less(t, len(w.log("run-1")), len(x.acked), "events are in the segment alone")
	close(hold)
	require.Eventually(t, func() bool { return a.Stats().Conflicts.Load() > 0 }, time.Minute, time.Millisecond, "its batch ended, and the next fold worker has won")
	w.requireWhole(x, c)
}

func TestSealFromLog_ReplicaLacksFirstOfTail_SealsWhatTheLeaderHas(t *testing.T) {
	t.Parallel()
	w := newFoldWorld(t)
	x := w.writer("run-1")
	x.start()
	for range 4 {
		x.turnOf(100)
	}
	var lacked atomic.Bool
	cfg := hasty()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents, cfg.TailMemory, cfg.PurgeAfter = "worker-1", 4, 4, -1, -1
	f := w.foldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+w.names.EventStream() && strings.Contains(string(m.Data), `"seq":1,`) {
			lacked.Store(true)
			natstest.ForwardWithout(nc, m, subject, 1)
			return
		}
		natstest.Forward(nc, m, subject)
	})
	require.Eventually(t, func() bool { return f.Stats().Failures.Load() > 0 || f.Stats().Position.Load() >= x.last }, time.Minute, time.Millisecond)
	require.True(t, lacked.Load())
	require.Zero(t, f.Stats().Regressions.Load(), "the log is whole: one replica lacks a message")
	c := w.await("sealed", func(c *schema.Checkpoint) bool { return c.Segments.Count > 0 && uint64(c.Position.Stream) >= x.last })
	require.Equal(t, x.acked[0].Body, w.segments(c)[0].Body)
}
