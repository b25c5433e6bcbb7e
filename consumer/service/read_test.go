package service_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// aRun is a run of a few turns, all acknowledged.
func (w *serviceWorld) aRun(id string, turns, payload int) *writer {
	w.TB.Helper()
	x := w.writer(id)
	x.Start()
	for range turns {
		x.TurnOf(payload)
	}
	return x
}

// everyView checks that all views of a run show exactly its acknowledged events, completely.
func (w *serviceWorld) everyView(x *writer) {
	w.TB.Helper()
	want := x.Model()
	reply, a := w.get(x.Run.Run, schema.ViewHead)
	require.Equal(w.TB, want, reply.Head)
	require.True(w.TB, reply.Complete)
	require.Empty(w.TB, reply.Gaps)
	require.NotNil(w.TB, reply.Gaps)
	require.Equal(w.TB, []string{schema.KindAnswer, schema.KindEnd}, a.kinds)

	reply, a = w.get(x.Run.Run, schema.ViewEvents)
	require.Equal(w.TB, want, reply.Head)
	require.True(w.TB, reply.Complete)
	require.Len(w.TB, a.segments, reply.Segments.Count)
	got := a.records(w.TB)
	require.Len(w.TB, got, len(x.Acked))
	for i := range got {
		require.True(w.TB, x.Acked[i].Equal(&got[i]), "event %d", i)
	}

	reply, a = w.get(x.Run.Run, "")
	require.Equal(w.TB, []string{schema.KindAnswer, schema.KindEnd}, a.kinds)
	require.Equal(w.TB, want, reply.Head)
	require.True(w.TB, reply.Complete)
	require.Len(w.TB, reply.State.Turns, int(want.Counts.Turns))
	requireView(w.TB, x.state(len(x.Acked)), reply.State)
}

// The last record that proves a head is all that a checkpoint at it needs: for a read of the log from there on, the server
// goes through what other runs have written since.
func TestRead_CheckpointAtTheLastRecord_HeadReadsNoLog(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	requests, err := w.NC.SubscribeSync("$JS.API.DIRECT.GET." + w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.NC.Flush())
	read := func() (reads int) {
		reply, _ := w.get("run-1", schema.ViewHead)
		require.Equal(t, x.Model(), reply.Head)
		require.True(t, reply.Complete)
		require.NoError(t, w.NC.Flush()) // all requests of the read have arrived
		pending, _, err := requests.Pending()
		require.NoError(t, err)
		for range pending {
			m, err := requests.NextMsg(time.Second)
			require.NoError(t, err)
			if strings.Contains(string(m.Data), "next_by_subj") {
				reads++
			}
		}
		return reads
	}
	w.checkpointAt(x, len(x.Acked)-1, schema.SegmentIndex{})
	require.Equal(t, 1, read(), "the record behind the checkpoint")
	w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	require.Zero(t, read())
	x.TurnOf(10)
	require.Equal(t, 1, read(), "new records are read")
}

func TestRead_EveryView_ShowsAllAcknowledged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(*serviceWorld, *writer)
		// scratch: the reads had no checkpoint to begin with.
		scratch bool
	}{
		{"with no fold worker and no checkpoint", func(*serviceWorld, *writer) {}, true},
		{"with a checkpoint at the end", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
		}, false},
		{"with a checkpoint that is stale", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 3, schema.SegmentIndex{})
		}, false},
		{"with segments, a checkpoint and a tail", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 30, w.sealByHand(x, 20, 8, false))
		}, false},
		{"with the sealed part purged from the log", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 30, w.sealByHand(x, 20, 8, true))
		}, false},
		{"with everything sealed and all but the last purged", func(w *serviceWorld, x *writer) {
			index := w.sealByHand(x, len(x.Acked), 8, false)
			w.checkpointAt(x, len(x.Acked), index)
			for _, r := range x.Acked[:len(x.Acked)-1] {
				w.deleteMsg(r.Stream)
			}
		}, false},
		{"with the sealed part purged and no checkpoint", func(w *serviceWorld, x *writer) {
			w.sealByHand(x, 20, 8, true)
		}, true},
		{"with a stale checkpoint, newer segments and the log purged beyond its place", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 10, schema.SegmentIndex{})
			w.sealByHand(x, 24, 8, true)
		}, true},
		{"with a checkpoint that counts fewer segments than there are", func(w *serviceWorld, x *writer) {
			first := w.sealByHand(x, 8, 8, false)
			w.checkpointAt(x, 30, first)
			w.LoseSegment(x.Run.Run, 1)
			w.sealByHand(x, 24, 8, true)
		}, false},
		{"with a corrupt checkpoint", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 30, w.sealByHand(x, 20, 8, true))
			kv, err := w.JS.KeyValue(w.TB.Context(), w.Names.CheckpointBucket())
			require.NoError(w.TB, err)
			e, err := kv.Get(w.TB.Context(), x.Run.Run)
			require.NoError(w.TB, err)
			bad := append([]byte{}, e.Value()...)
			bad[40] ^= 1
			require.NoError(w.TB, kv.Purge(w.TB.Context(), x.Run.Run))
			_, err = kv.Put(w.TB.Context(), x.Run.Run, bad)
			require.NoError(w.TB, err)
		}, true},
		{"with a corrupt checkpoint and an earlier one", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 30, w.sealByHand(x, 20, 8, true))
			w.flipCheckpoint(x.Run.Run)
		}, true},
		{"with the checkpoint bucket deleted", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 30, w.sealByHand(x, 20, 8, true))
			require.NoError(w.TB, w.JS.DeleteKeyValue(w.TB.Context(), w.Names.CheckpointBucket()))
		}, true},
		{"with a corrupt segment whose events are still in the log", func(w *serviceWorld, x *writer) {
			w.sealByHand(x, 16, 8, false)
			kv, err := w.JS.KeyValue(w.TB.Context(), w.Names.SegmentBucket())
			require.NoError(w.TB, err)
			_, err = kv.Put(w.TB.Context(), schema.SegmentKey(x.Run.Run, 2), []byte("{}\nnothing"))
			require.NoError(w.TB, err)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			w.aRun("other", 2, 10)
			x := w.aRun("run-1", 10, 300)
			require.Len(t, x.Acked, 41)
			c.prepare(w, x)
			w.everyView(x)
			if c.scratch {
				require.Positive(t, w.svc.Stats().FoldsFromScratch.Load())
			}
			require.Zero(t, w.svc.Stats().Regressions.Load())
			require.Zero(t, w.svc.Stats().Holes.Load())

			reply, a := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "req-1", View: schema.ViewEvents})
			require.True(t, reply.Complete)
			require.EqualValues(t, 2, reply.Epoch)
			require.Len(t, a.records(t), 42)
			require.Equal(t, reply.Head, a.fold(t, "run-1").Head)
		})
	}
}

func TestRead_DuringSealsAndWrites_Exact(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Fold(smallSeals())
	x := w.writer("run-1")
	x.Start()
	for range 60 {
		x.TurnOf(4 << 10)
		reply, a := w.get("run-1", schema.ViewEvents)
		require.True(t, reply.Complete)
		require.Equal(t, x.Model(), reply.Head)
		require.Len(t, a.records(t), len(x.Acked))
	}
	require.Zero(t, w.svc.Stats().Regressions.Load())
	require.Zero(t, w.svc.Stats().Holes.Load())
}

func TestRead_Gaps_NamedNotFoldedOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(*serviceWorld, *writer)
	}{
		{"with no checkpoint", func(*serviceWorld, *writer) {}},
		{"behind the checkpoint", func(w *serviceWorld, x *writer) { w.checkpointAt(x, 5, schema.SegmentIndex{}) }},
		{"behind segments", func(w *serviceWorld, x *writer) { w.sealByHand(x, 6, 3, true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 3, 10)
			c.prepare(w, x)
			w.deleteMsg(x.Acked[9].Stream)
			reply, a := w.get("run-1", schema.ViewEvents)
			require.False(t, reply.Complete)
			require.Len(t, reply.Gaps, 1)
			require.Equal(t, schema.Gap{
				Epoch: 1, From: 10, To: 13, Reason: schema.ReasonGap, At: schema.PositionOf(&x.Acked[10]),
			}, reply.Gaps[0])
			require.EqualValues(t, 9, reply.Head.Sequence, "nothing behind the hole is folded")
			require.Len(t, a.records(t), 12)
			require.Positive(t, w.svc.Stats().Holes.Load(), "the leader confirmed it")

			taken, _ := w.recover("run-1", takeover("executor-2", "req-1"))
			require.False(t, taken.Complete)
			require.Equal(t, reply.Gaps, taken.Gaps)
			require.EqualValues(t, 2, taken.Epoch, "a damaged run can be taken over all the same")
		})
	}
}

func TestRead_EventsLostBeforeCheckpoint_Named(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 5, 10)
	w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	w.deleteMsg(x.Acked[7].Stream)
	reply, _ := w.get("run-1", schema.ViewEvents)
	require.False(t, reply.Complete)
	require.Equal(t, x.Model(), reply.Head, "the fold worker folded them: its head stands")
	require.Len(t, reply.Gaps, 1)
	require.EqualValues(t, "lost", reply.Gaps[0].Reason)
	require.EqualValues(t, 8, reply.Gaps[0].From)
}

func TestRead_MissingSegment_NamedAndRestSent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 8, 10)
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, 24, 8, true))
	stream, err := w.JS.Stream(t.Context(), "KV_"+w.Names.SegmentBucket())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+w.Names.SegmentBucket()+"."+schema.SegmentKey("run-1", 2))))
	reply, a := w.get("run-1", schema.ViewEvents)
	require.False(t, reply.Complete)
	require.Len(t, reply.Gaps, 1)
	require.EqualValues(t, 9, reply.Gaps[0].From)
	require.Len(t, a.segments, 2)
	require.Len(t, a.records(t), len(x.Acked)-8)
}

func TestRead_CorruptSegment_EndsAsDamaged(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 8, 10)
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, 24, 8, true))
	kv, err := w.JS.KeyValue(t.Context(), w.Names.SegmentBucket())
	require.NoError(t, err)
	e, err := kv.Get(t.Context(), schema.SegmentKey("run-1", 2))
	require.NoError(t, err)
	bad := append([]byte{}, e.Value()...)
	bad[len(bad)-5] ^= 1
	_, err = kv.Put(t.Context(), schema.SegmentKey("run-1", 2), bad)
	require.NoError(t, err)
	got := w.refused(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents})
	require.Equal(t, schema.CodeDamaged, got.Code)
	require.Contains(t, got.Message, "segment 2")
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), reply.Head, "the head is still known")
}

func TestRead_LogWentBack_ReadsFromBeginning(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 5, 10)
	w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	for _, r := range x.Acked[15:] {
		w.deleteMsg(r.Stream)
	}
	reply, a := w.get("run-1", schema.ViewEvents)
	require.False(t, reply.Complete)
	require.EqualValues(t, 15, reply.Head.Sequence)
	require.Len(t, reply.Gaps, 1)
	require.EqualValues(t, "lost", reply.Gaps[0].Reason)
	require.EqualValues(t, 16, reply.Gaps[0].From)
	require.EqualValues(t, 21, reply.Gaps[0].To)
	require.Len(t, a.records(t), 15)
	require.Positive(t, w.svc.Stats().Regressions.Load())
}

// A lone server with a damaged disk cuts off the end of the log. The fold worker makes a checkpoint of the rest. The
// loss must be reported after that, too: both at once, and when the run has continued.
func TestRead_LossAfterRefold_StillReported(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 5, 10)
	w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	for _, r := range x.Acked[15:] {
		w.deleteMsg(r.Stream)
	}
	told := func(sequence schema.Sequence) {
		t.Helper()
		for _, view := range []string{schema.ViewHead, schema.ViewEvents} {
			reply, _ := w.get("run-1", view)
			require.False(t, reply.Complete, view)
			require.Equal(t, sequence, reply.Head.Sequence, view)
			require.Len(t, reply.Gaps, 1, view)
			g := reply.Gaps[0]
			require.Equal(t, schema.Gap{Epoch: 1, From: 16, To: 21, At: x.Model().Position, Reason: "lost"}, g, view)
		}
	}
	told(15)
	w.Fold(fold.Config{})
	again := func(event string) *schema.Checkpoint {
		t.Helper()
		var c *schema.Checkpoint
		require.Eventually(t, func() bool {
			var err error
			c, _, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
			require.NoError(t, err)
			return c.Position.ID == event
		}, time.Minute, 10*time.Millisecond)
		return c
	}
	require.Len(t, again(schema.PositionOf(&x.Acked[14]).ID).Lost, 1)
	told(15)

	reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "q1"})
	require.False(t, reply.Complete)
	require.Len(t, again(reply.Head.Position.ID).Lost, 1)
	told(0)
}

func TestRead_PositionReused_Detected(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 5, 10)
	// A checkpoint of a log that had another event in the place of the run's last one.
	c := &schema.Checkpoint{Head: x.Model()}
	c.Position.ID = "run-1.1.21.00000000"
	_, err := w.Shard.Checkpoints.Put(t.Context(), c, 0)
	require.NoError(t, err)
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), reply.Head)
	require.True(t, reply.Complete)
	require.Positive(t, w.svc.Stats().Regressions.Load())
}

func TestRead_LogPurgedByHand_GivesSealed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 8, 10)
	w.sealByHand(x, 24, 8, false)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(w.Names.EventSubject("run-1"))))
	reply, a := w.get("run-1", schema.ViewEvents)
	require.EqualValues(t, 24, reply.Head.Sequence)
	require.Len(t, a.records(t), 24)
}

// Found by damaging the store of a stopped server: a lost log lost its runs, and the answer was that they never
// existed.
func TestRead_OnlyCheckpointLeft_DamagedNotUnknown(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 8, 10)
	c := &schema.Checkpoint{Head: x.Model()}
	_, err := w.Shard.Checkpoints.Put(t.Context(), c, 0)
	require.NoError(t, err)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(w.Names.EventSubject("run-1"))))
	for verb, request := range map[string]any{
		schema.VerbGet: schema.GetRequest{}, schema.VerbRecover: takeover("executor-2", "req-1"),
	} {
		e := w.refused(verb, "run-1", request)
		require.Equal(t, schema.CodeDamaged, e.Code, "%s: %s", verb, e.Message)
		require.Contains(t, e.Message, "up to sequence "+strconv.FormatUint(uint64(c.Sequence), 10))
		require.NotEmpty(t, e.Hint)
	}
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbGet, "run-2", schema.GetRequest{}).Code)
}

func TestRead_SeveralShards_Found(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) { f.Shards = 3; f.QuotaBytes = kvstore.MinQuotaBytes })
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		names := schema.NamesOf("default", schema.ShardOf(id, 3))
		x := w.writer(id)
		x.World = &foldtest.World{TB: t, JS: w.JS, Names: names}
		x.Start()
		reply, _ := w.get(id, schema.ViewHead)
		require.Equal(t, x.Model(), reply.Head)
	}
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		reply, _ := w.recover(id, takeover("executor-2", "req-1"))
		require.EqualValues(t, 2, reply.Epoch)
		require.Equal(t, schema.ShardOf(id, 3), reply.Shard, "the executor learns where to continue")
	}
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbGet, "unknown", schema.GetRequest{}).Code)
}

func TestRead_LogBeginsAgain_StateWhole(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 5, 10)
	w.sealByHand(x, len(x.Acked), 7, false)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.JS.DeleteStream(t.Context(), w.Names.EventStream()))
	_, err = w.JS.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)
	x.Last = 0
	x.TurnOf(10)
	reply, _ := w.get("run-1", schema.ViewState)
	require.True(t, reply.Complete, "%v", reply.Gaps)
	require.Len(t, reply.State.Turns, 6)
}
