package fold_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestWorker_RandomLog_EqualsReferenceFold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.Fold(fold.Config{})
	var writers []*foldtest.Writer
	for i := range 5 {
		x := w.Writer(fmt.Sprintf("run-%d", i))
		x.Start()
		writers = append(writers, x)
	}
	for range 20 {
		for _, x := range writers {
			x.TurnOf(300)
		}
	}
	for _, x := range writers {
		at := x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
		w.Await("run ended", func(c *schema.Checkpoint) bool { return c.Run == x.Run.Run && c.Position.Stream >= at })
		c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), x.Run.Run)
		require.NoError(t, err)
		require.Equal(t, x.Model(), c.Head)
		require.Positive(t, c.Segments.Count, "an ended run is sealed")
		require.Zero(t, c.TailEvents)
		got := w.Segments(c)
		require.Len(t, got, len(x.Acked))
		for i := range got {
			require.True(t, got[i].Equal(&x.Acked[i]), "record %d", i)
		}
	}
	stop()
	mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	require.Equal(t, schema.StreamSequence(writers[4].Last), mark.Position.Stream)
}

func TestWorker_Takeover_ContinuesAtWatermark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.Writer("run-1")
	x.Start()
	for i := range 6 {
		f, stop := w.Fold(fold.Config{Holder: fmt.Sprintf("worker-%d", i), SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
		var at schema.StreamSequence
		for range 3 {
			at = x.TurnOf(1000)
		}
		c := w.Await("three turns", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
		require.Equal(t, x.Model(), c.Head)
		stop()
		require.Zero(t, f.Stats().Rebuilds.Load())
	}
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	got := w.Segments(c)
	for i := range got {
		require.True(t, got[i].Equal(&x.Acked[i]), "record %d", i)
	}
}

func TestSeal_IncompressibleEvents_StayBelowLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	for range 4 {
		x.TurnOf(400_000)
	}
	x.Turn++
	x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
	for i := range 5 {
		// Within a turn nothing but the size ends a segment.
		id := fmt.Sprintf("big-%d", i)
		x.Publish(&schema.ToolCalledData{ToolCallID: id, Name: "read"}, x.Turn)
		x.Publish(&schema.ToolReturnedData{ToolCallID: id, Result: foldtest.Noise(240_000, int64(i))}, x.Turn)
	}
	at := x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	c := w.Await("end", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Len(t, w.Segments(c), len(x.Acked))
}

// The segment of the largest event that the log accepts, of incompressible bytes, also has a description.
func TestWorker_LargestEvent_Sealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	worker, _ := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	e := &schema.Event{
		ID: strings.Repeat("\"", schema.MaxIdentifier), Source: "/elsewhere", Type: "com.example.image", Subject: "run-1", DataContentType: "image/png",
	}
	header, _ := e.Encode()
	bare := &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: header}
	e.Data = make([]byte, kvstore.MaxEventMessage-(bare.Size()-len(bare.Subject)))
	_, err := rand.NewChaCha8([32]byte{}).Read(e.Data)
	require.NoError(t, err)
	_, err = w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: bare.Subject, Header: header, Data: append(slices.Clip(e.Data), 0)})
	require.Error(t, err, "one byte more is too large for the log")
	ack, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: bare.Subject, Header: header, Data: e.Data})
	require.NoError(t, err)
	x.Last = ack.Sequence
	at := x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	c := w.Await("end", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Zero(t, worker.Stats().SealsRefused.Load())
	require.EqualValues(t, 3, c.Segments.Events)
}

func TestWorker_CheckpointBucketLost_RebuiltFromLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, _ = w.Fold(fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
	x, y := w.Writer("run-x"), w.Writer("run-y")
	x.Start()
	y.Start()
	var at schema.StreamSequence
	for range 5 {
		x.TurnOf(1000)
		at = y.TurnOf(1000)
	}
	before := w.Await("y", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
	at = x.TurnOf(10)
	after := w.Await("x after the loss", func(c *schema.Checkpoint) bool { return c.Run == "run-x" && c.Position.Stream >= at })
	require.Equal(t, x.Model(), after.Head)
	require.Len(t, w.Segments(after), int(after.Segments.Events))
	var c *schema.Checkpoint
	require.Eventually(t, func() bool {
		var err error
		c, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-y")
		return err == nil && c.Position.Stream == before.Position.Stream
	}, time.Minute, 10*time.Millisecond, "the run that nothing was added to comes back, too")
	require.Equal(t, before.Head, c.Head)
	require.Equal(t, before.Segments, c.Segments)
}

func TestWorker_CorruptCheckpoint_Refolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.Fold(fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(3000)
	at := x.TurnOf(100)
	w.Await("two turns", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), "run-1", `{"format":1,"run":"run-1","sum":"tampered"}`)
	require.NoError(t, err)
	f, _ := w.Fold(fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10})
	at = x.TurnOf(100)
	c := w.Await("a third", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
	require.Equal(t, int64(1), f.Stats().Rebuilds.Load())
	w.Segments(c)
}

func TestWorker_UncountedSegment_Adopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cfg := fold.Config{SealBytes: 2 << 10, SealMaxBytes: 4 << 10}
	_, stop := w.Fold(cfg)
	x := w.Writer("run-1")
	x.Start()
	at := x.TurnOf(100)
	w.Await("first", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	old, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err, "a stop finishes the current batch")
	_, stop = w.Fold(cfg)
	at = x.TurnOf(3000)
	sealed := w.Await("sealed", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 0 })
	stop()
	// The crash: the segment is stored, its checkpoint and the watermark are not.
	_, rev2, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Greater(t, rev2, rev)
	_, err = w.Shard.Checkpoints.Put(t.Context(), old, rev2)
	require.NoError(t, err)
	_, markRev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, markRev)
	require.NoError(t, err)
	w.Fold(cfg)
	again := w.Await("adopted", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at && c.Segments.Count > 0 })
	require.Equal(t, sealed.Segments, again.Segments)
	require.Equal(t, sealed.Head, again.Head)
}

func TestWorker_TwoAtOnce_RunStaysWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, stopA := w.Fold(fold.Config{Holder: "worker-a"})
	b, _ := w.Fold(fold.Config{Holder: "worker-b"})
	x := w.Writer("run-1")
	x.Start()
	at := x.TurnOf(100)
	w.Await("first", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.NotEqual(t, a.Leads(), b.Leads(), "one holds the lease")
	// Force a second term: take the lease away from its holder.
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+schema.LeaseBucket))
	w.Provision()
	for range 30 {
		at = x.TurnOf(100)
	}
	c := w.Await("thirty more", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
	stopA()
	at = x.TurnOf(100)
	c = w.Await("after a left", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
}

func TestWorker_RejectedEvents_DeadLetteredWithoutBlocking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Data: []byte("garbage")})
	require.NoError(t, err)
	_, err = w.JS.Publish(t.Context(), w.Names.EventSubject("bad$run"), []byte("{}"))
	require.NoError(t, err)
	good := w.Writer("run-2")
	good.Start()
	at := good.TurnOf(10)
	w.Await("the other run", func(c *schema.Checkpoint) bool { return c.Run == "run-2" && c.Position.Stream >= at })
	letters := fleettest.Letters(t, w.JS, "default")
	require.Len(t, letters, 2)
	require.Equal(t, schema.ReasonNotCloudEvent, letters[0].Reason)
	require.Equal(t, "garbage", string(letters[0].Body))
	require.Equal(t, schema.ReasonInvalidAttribute, letters[1].Reason)
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, int64(1), c.Counts.DeadLetters)
	_, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "bad$run")
	require.Error(t, err)
}

func TestWorker_AcceptedEvents_ObservedInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan *nats.Msg, 64)
	sub, err := w.NC.ChanSubscribe("waymark.observed.default.>", seen)
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, w.NC.Flush())
	w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(10)
	// Each event is followed by its changes of the turn.
	want := []string{
		"run.started", "turn.started", "turn.created", "tool.called", "turn.updated", "tool.returned", "turn.updated", "turn.ended", "turn.finalized",
	}
	sequence := schema.Sequence(0)
	for _, name := range want {
		select {
		case m := <-seen:
			require.Equal(t, schema.ObservedSubject("default", name, "run-1"), m.Subject)
			e, err := schema.Decode(m.Header, m.Data)
			require.NoError(t, err)
			if e.Sequence == 0 {
				require.Equal(t, schema.TurnNoticeID(schema.PositionOf(&x.Acked[sequence-1]).ID, name, 1), e.ID, "derived of the event before it")
				continue
			}
			sequence++
			require.Equal(t, sequence, e.Sequence)
		case <-time.After(time.Minute):
			require.FailNow(t, "not observed", name)
		}
	}
}

// A call is announced once as tool.called, with its data from the answer, whether or not an event of its own begins
// it.
func TestWorker_AnswerWithCalls_EachObservedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := make(chan *nats.Msg, 64)
	sub, err := w.NC.ChanSubscribe("waymark.observed.default.>", seen)
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, w.NC.Flush())
	w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	ref := schema.Ref{Path: "/calls/1/arguments", DataRef: schema.DataRef("run-1", strings.Repeat("0", 64)), Size: 300_000}
	x.Publish(&schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}, Refs: []schema.Ref{ref}, Calls: []schema.RequestedCall{
			{ToolCallID: "c1", Name: "pay", Arguments: []byte(`{"sum":5}`)},
			{ToolCallID: "c2", Name: "read", Replay: schema.ReplayPure},
			{ToolCallID: "c2", Name: "rm", Error: &schema.Error{Type: "unknown_tool"}},
			{ToolCallID: "c2", Name: "read", Replay: schema.ReplayPure},
		},
	}, 1)
	x.Publish(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"}, 1)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c2"}, 1)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c2"}, 1)
	var calls []schema.ToolCalledData
	for _, name := range []string{
		"run.started", "turn.answered", "tool.called", "tool.called", "tool.called", "turn.created", "turn.updated", "tool.returned", "turn.updated",
		"tool.returned", "turn.updated", "tool.returned", "turn.finalized",
	} {
		select {
		case m := <-seen:
			require.Equal(t, schema.ObservedSubject("default", name, "run-1"), m.Subject)
			e, err := schema.Decode(m.Header, m.Data)
			require.NoError(t, err)
			if strings.HasPrefix(name, "turn.") && name != schema.TurnAnswered {
				require.Equal(t, int32(1), e.Turn)
				continue
			}
			data, err := schema.ParseData(e)
			require.NoError(t, err)
			if d, ok := data.(*schema.ToolCalledData); ok {
				require.Equal(t, int32(1), e.Turn)
				require.Equal(t, fmt.Sprintf("%s/%d", schema.PositionOf(&x.Acked[1]).ID, []int{1, 2, 4}[len(calls)]), e.ID)
				calls = append(calls, *d)
			}
		case <-time.After(time.Minute):
			require.FailNow(t, "not observed", name)
		}
	}
	ref.Path = "/arguments"
	require.Equal(t, []schema.ToolCalledData{
		{ToolCallID: "c1", Occurrence: 1, Name: "pay", Arguments: []byte(`{"sum":5}`)},
		{ToolCallID: "c2", Occurrence: 1, Name: "read", Replay: schema.ReplayPure, Refs: []schema.Ref{ref}},
		{ToolCallID: "c2", Occurrence: 3, Name: "read", Replay: schema.ReplayPure},
	}, calls)
}

func TestWorker_LogWentBack_Refolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, _, f := w.FoldedTurn(10)
	require.Zero(t, f.Stats().Regressions.Load())
	// The end of the log is lost, and its sequence is used again by another event.
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	kept := x.Acked[:3]
	require.NoError(t, w.JS.DeleteStream(t.Context(), w.Names.EventStream()))
	_, err = w.JS.CreateStream(t.Context(), config)
	require.NoError(t, err)
	for _, rec := range kept {
		_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: rec.Header, Data: rec.Body})
		require.NoError(t, err)
	}
	_, err = w.JS.Publish(t.Context(), w.Names.EventSubject("run-1"), []byte("another one"))
	require.NoError(t, err)
	w.Fold(fold.Config{})
	c := w.Await("folded again", func(c *schema.Checkpoint) bool { return c.Sequence == 3 && c.Counts.DeadLetters == 1 })
	require.Equal(t, schema.StreamSequence(4), c.Position.Stream)
}

// The whole store goes back to an older copy of itself, checkpoints and watermark with it, below a running fold
// worker. Nothing in the store shows that anything is gone.
func TestWorker_LogAndWatermarkWentBack_Detected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, _ := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	at := x.TurnOf(10)
	w.Await("one turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	w.Server.Stop(t)
	store, copied := w.Server.StateDir(), filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(copied, os.DirFS(store)))
	w.Server.Resume(t)
	before, kept := *x, slices.Clone(x.Acked)
	require.Eventually(t, w.NC.IsConnected, time.Minute, time.Millisecond)
	at = x.TurnOf(10)
	w.Await("a second turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= uint64(at) }, time.Minute, time.Millisecond, "its watermark is put")
	require.Zero(t, f.Stats().Regressions.Load(), "a restart is no regression")

	w.Server.Stop(t)
	require.NoError(t, os.RemoveAll(store))
	require.NoError(t, os.CopyFS(store, os.DirFS(copied)))
	w.Server.Resume(t)
	require.Eventually(t, func() bool { return f.Stats().Regressions.Load() == 1 }, time.Minute, time.Millisecond)
	require.Eventually(t, w.NC.IsConnected, time.Minute, time.Millisecond)
	*x, x.Acked = before, kept
	at = x.TurnOf(20) // a client continues from the remaining events
	w.Await("folded from there", func(c *schema.Checkpoint) bool { return c.Position.Stream == at && c.Digest == x.Model().Digest })
	require.Equal(t, int64(1), f.Stats().Regressions.Load())
}

func TestWorker_WatermarkContradictsLog_NotTrusted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x, _, _ := w.FoldedTurn(10)
	mark, rev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	mark.Position.ID = "run-1.1.5.00000000"
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	f, _ := w.Fold(fold.Config{})
	at := x.TurnOf(10)
	c := w.Await("folded again", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	require.Equal(t, x.Model(), c.Head)
	require.Empty(t, c.Lost, "all of it was met again")
	require.Equal(t, int64(1), f.Stats().Regressions.Load())
}
