package fold_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

// segmentOf is a segment of the first events of a run, which claims to continue a run with this digest.
func segmentOf(x *foldtest.Writer, events int, before string) []byte {
	x.World.TB.Helper()
	h := schema.NewHead("default", x.Run.Run)
	var frames []byte
	log := x.World.Log(x.Run.Run) // with the server's times, which an acknowledgement does not have
	for i := range log[:events] {
		frames = schema.AppendFrame(frames, &log[i])
		h.Apply(schema.NoKeys, &log[i])
	}
	stored, err := schema.EncodeSegment(schema.SegmentInfo{
		Fleet: "default", Run: x.Run.Run, Number: 1, Events: events, First: schema.PositionOf(&x.Acked[0]), Last: schema.PositionOf(&x.Acked[events-1]),
		DigestBefore: before, DigestAfter: h.Digest,
	}, nil, frames)
	require.NoError(x.World.TB, err)
	return stored
}

func TestAdopt_PausedBeforeReplacement_KeepsSegmentOfNextWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	for range 4 {
		x.TurnOf(100)
	}
	// Complete, all in the log, and of another history: both fold workers replace it.
	require.NoError(t, w.Shard.Segments.Create(t.Context(), "run-1", 1, segmentOf(x, 3, strings.Repeat("0", 64))))
	hold, held := make(chan struct{}), make(chan struct{})
	var looked, paused atomic.Bool
	// Both cut the same log, each in its own way, as an idle or a pressed tail is cut shorter.
	cfg := foldtest.Hasty()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents = "worker-a", 4, 4
	a := w.FoldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		switch {
		case strings.HasPrefix(subject, "$JS.API.STREAM.MSG.GET.KV_WAYMARK_SEGMENTS") && strings.Contains(string(m.Data), ".run-1.1\""):
			looked.Store(true)
		case looked.Load() && strings.HasPrefix(subject, "$JS.API.DIRECT.GET."+w.Names.EventStream()) && paused.CompareAndSwap(false, true):
			// It has examined the segment, and checks that the log has all of it.
			natstest.ForwardLate(nc, m, subject, hold)
			close(held)
			return
		}
		natstest.Forward(nc, m, subject)
	})
	<-held
	w.freeLease()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents, cfg.SealBytes, cfg.SealMaxBytes = "worker-b", 12, 12, 1<<16, 1<<17
	w.Fold(cfg)
	c := w.AwaitPurged(x)
	w.RequireWhole(x, c)
	require.Less(t, len(w.Log("run-1")), len(x.Acked), "events are in the segment alone")
	close(hold)
	require.Eventually(t, func() bool { return a.Stats().Failures.Load() > 0 }, time.Minute, time.Millisecond, "its batch ended, and the next fold worker has won")
	w.RequireWhole(x, c)
}

func TestSealFromLog_ReplicaLacksFirstOfTail_SealsWhatTheLeaderHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	for range 4 {
		x.TurnOf(100)
	}
	var lacked atomic.Bool
	cfg := foldtest.Hasty()
	cfg.Holder, cfg.SealEvents, cfg.SealMaxEvents, cfg.TailMemory, cfg.PurgeAfter = "worker-1", 4, 4, -1, -1
	f := w.FoldThrough(cfg, time.Now, func(nc *nats.Conn, m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+w.Names.EventStream() && strings.Contains(string(m.Data), `"seq":1,`) {
			lacked.Store(true)
			natstest.ForwardWithout(nc, m, subject, 1)
			return
		}
		natstest.Forward(nc, m, subject)
	})
	require.Eventually(t, func() bool { return f.Stats().Failures.Load() > 0 || f.Stats().Position.Load() >= x.Last }, time.Minute, time.Millisecond)
	require.True(t, lacked.Load())
	require.Zero(t, f.Stats().Regressions.Load(), "the log is whole: one replica lacks a message")
	c := w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Segments.Count > 0 && uint64(c.Position.Stream) >= x.Last })
	require.Equal(t, x.Acked[0].Body, w.Segments(c)[0].Body)
}
