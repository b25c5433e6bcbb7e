package service_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func (w *serviceWorld) verify(run string) *verify.Result {
	w.TB.Helper()
	v, err := verify.Run(w.TB.Context(), w.JS, w.Shard, "default", run)
	require.NoError(w.TB, err)
	for i := range v.Findings {
		w.TB.Log(v.Findings[i].String())
	}
	return v
}

// flipCheckpoint flips one bit of a run's latest checkpoint in the bucket, and returns its revision.
func (w *serviceWorld) flipCheckpoint(run string) schema.Revision {
	w.TB.Helper()
	kv, err := w.JS.KeyValue(w.TB.Context(), w.Names.CheckpointBucket())
	require.NoError(w.TB, err)
	e, err := kv.Get(w.TB.Context(), run)
	require.NoError(w.TB, err)
	bad := append([]byte{}, e.Value()...)
	bad[len(bad)/2] ^= 1
	rev, err := kv.Put(w.TB.Context(), run, bad)
	require.NoError(w.TB, err)
	return schema.Revision(rev)
}

func TestVerify_WholeRun_Whole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		checkpoints int
		segments    int
		prepare     func(*serviceWorld, *writer)
	}{
		{"in the log alone", 0, 0, func(*serviceWorld, *writer) {}},
		{"with several checkpoints", 3, 0, func(w *serviceWorld, x *writer) {
			for _, n := range []int{1, 20, 42} {
				w.checkpointAt(x, n, schema.SegmentIndex{})
			}
		}},
		{"with segments that are not purged", 1, 5, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false)) }},
		{"with segments that are purged", 1, 5, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) }},
		{"with a checkpoint at the end of its last segment", 1, 5, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 30, w.sealByHand(x, 30, 7, true)) }},
		{"with segments that no checkpoint counts", 1, 5, func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, schema.SegmentIndex{})
			w.sealByHand(x, 30, 7, false)
		}},
		{"with a duplicate and a dead letter in it", 1, 2, func(w *serviceWorld, x *writer) {
			x.Publish(&schema.ToolReturnedData{ToolCallID: "unknown", Result: []byte(`1`)}, 10)
			w.checkpointAt(x, 43, w.sealByHand(x, 43, 30, false))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, c.prepare)
			v := w.verify("run-1")
			require.Empty(t, v.Findings)
			head := x.Model()
			require.Equal(t, head.Digest, v.Digest)
			require.Equal(t, head.Position, v.Position)
			require.Equal(t, head.Counts.Events, v.Events)
			require.Equal(t, int64(len(x.Acked)), v.Records)
			require.Equal(t, c.checkpoints, v.Checkpoints)
			require.Equal(t, c.segments, v.Segments)
		})
	}
}

func TestVerify_FoldedRun_Whole(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	_, stop := w.Fold(smallSeals())
	x := w.aRun("run-1", 40, 3000)
	at := x.Acked[len(x.Acked)-1].Stream
	require.Eventually(t, func() bool {
		c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
		return err == nil && c.Position.Stream >= at
	}, time.Minute, 10*time.Millisecond)
	stop()
	v := w.verify("run-1")
	require.Empty(t, v.Findings)
	require.Positive(t, v.Segments)
	require.Positive(t, v.Checkpoints)
	require.Equal(t, x.Model().Digest, v.Digest)
}

func TestVerify_FlippedBitInSegment_NamedAndRecovered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(*serviceWorld, *writer)
		finding func(*verify.Finding) bool
		notice  string
	}{
		{"of the latest checkpoint, with an earlier one", func(w *serviceWorld, x *writer) {
			index := w.sealByHand(x, 30, 7, true)
			w.checkpointAt(x, 35, index)
			w.checkpointAt(x, 38, index)
			w.flipCheckpoint("run-1")
		}, func(f *verify.Finding) bool { return f.In == verify.InCheckpoint && f.Instead != "" }, "segments and log"},
		{"of the only checkpoint", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true))
			kv, err := w.JS.KeyValue(w.TB.Context(), w.Names.CheckpointBucket())
			require.NoError(w.TB, err)
			e, err := kv.Get(w.TB.Context(), "run-1")
			require.NoError(w.TB, err)
			bad := append([]byte{}, e.Value()...)
			bad[len(bad)/2] ^= 1
			require.NoError(w.TB, kv.Purge(w.TB.Context(), "run-1"))
			_, err = kv.Put(w.TB.Context(), "run-1", bad)
			require.NoError(w.TB, err)
		}, func(f *verify.Finding) bool {
			return f.In == verify.InCheckpoint && f.Instead == "segments and log"
		}, "segments and log"},
		{"of a segment whose events are still in the log", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
			w.flipSegment(x, 2)
		}, func(f *verify.Finding) bool {
			return f.In == verify.InSegment && f.Segment == 2 && f.Sequence == 8 && f.Instead == "the log"
		}, "the log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, c.prepare)
			v := w.verify("run-1")
			require.NotEmpty(t, v.Findings)
			require.True(t, c.finding(&v.Findings[0]), v.Findings[0].String())
			require.Equal(t, x.Model().Digest, v.Digest, "the run itself is whole")

			for i, view := range []string{schema.ViewEvents, schema.ViewState, schema.ViewHead} {
				reply, a := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: fmt.Sprint(i), View: view})
				require.True(t, reply.Complete, view)
				require.Empty(t, reply.Gaps, view)
				require.Equal(t, schema.Epoch(i+2), reply.Epoch, "the run goes on, it is no fresh one")
				require.Equal(t, int64(42+i+1), reply.Head.Counts.Events)
				switch view {
				case schema.ViewEvents:
					require.Len(t, a.records(t), 43)
					require.Equal(t, reply.Head.Digest, a.fold(t, "run-1").Head.Digest)
				case schema.ViewState:
					require.Len(t, reply.State.Turns, 10)
				}
				if view == schema.ViewEvents || c.notice != "the log" {
					require.Len(t, reply.Damage, 1, view)
					require.Contains(t, reply.Damage[0].Instead, c.notice)
				}
			}
		})
	}
}

// flipInLog stops the server, and flips one bit of an event's body in its files.
func (w *serviceWorld) flipInLog(marker string) {
	w.TB.Helper()
	w.Server.Stop(w.TB)
	flipped := 0
	require.NoError(w.TB, filepath.WalkDir(w.Server.StateDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, w.Names.EventStream()) || filepath.Ext(path) != ".blk" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := bytes.Index(content, []byte(marker))
		if at < 0 {
			return nil
		}
		flipped++
		content[at] ^= 1
		return os.WriteFile(path, content, 0o600)
	}))
	require.Equal(w.TB, 1, flipped, "the event is in one file")
	w.Server.Resume(w.TB)
	require.Eventually(w.TB, func() bool {
		if _, err := w.JS.Stream(w.TB.Context(), w.Names.EventStream()); err != nil || !w.client.IsConnected() {
			return false
		}
		_, err := w.client.Request(schema.ServiceSubject(schema.VerbFleet, "default", ""), nil, 10*time.Second)
		return err == nil
	}, time.Minute, 10*time.Millisecond, "the service is there again, too")
}

func TestVerify_FlippedBitInLog_NamedAndRecovered(t *testing.T) {
	t.Parallel()
	const marker = "before: deploy"
	t.Run("when the event is sealed, too", func(t *testing.T) {
		t.Parallel()
		w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false)) })
		w.flipInLog(marker)
		v := w.verify("run-1")
		require.Len(t, v.Findings, 1)
		require.Equal(t, verify.InLog, v.Findings[0].In)
		require.Equal(t, x.Acked[21].Stream, v.Findings[0].Event.Stream)
		require.Equal(t, "its segment", v.Findings[0].Instead)
		require.Equal(t, x.Model().Digest, v.Digest)
		w.requireFirst(x, "mark:"+marker, 22)
		reply, a := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "r", View: schema.ViewEvents})
		require.True(t, reply.Complete)
		require.Len(t, a.records(t), 43)
	})
	t.Run("when only a checkpoint knows it", func(t *testing.T) {
		t.Parallel()
		w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, schema.SegmentIndex{}) })
		want := x.Model()
		w.flipInLog(marker)
		v := w.verify("run-1")
		named := false
		for _, f := range v.Findings {
			named = named || f.In == verify.InLog && f.Epoch == 1 && f.Sequence == 22 && f.Instead == ""
		}
		require.True(t, named, "the event is named")
		reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "r", View: schema.ViewHead})
		require.True(t, reply.Complete, "the checkpoint has it")
		require.Equal(t, want.Counts.Events+1, reply.Head.Counts.Events)
		whole, _ := w.get("run-1", schema.ViewEvents)
		require.False(t, whole.Complete, "its content is gone, and that is said")
		require.Equal(t, schema.Sequence(22), whole.Gaps[0].From)
	})
}

func TestVerify_ForgedOrMissing_Named(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(*serviceWorld, *writer)
		in      string
		problem string
	}{
		{"an event that is gone from the log", func(w *serviceWorld, x *writer) { w.deleteMsg(x.Acked[20].Stream) }, verify.InLog, "21 to 42 of epoch 1 are missing"},
		{"a segment that is gone", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true))
			w.LoseSegment("run-1", 3)
		}, verify.InSegment, "it is counted and not there"},
		{"a checkpoint that knows more than the log", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 42, schema.SegmentIndex{})
			w.deleteMsg(x.Acked[41].Stream)
		}, verify.InCheckpoint, "where segments and log have nothing of the run"},
		{"a checkpoint that is not the fold", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 20, schema.SegmentIndex{})
			c, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-1")
			require.NoError(w.TB, err)
			c.Executor, c.Turn = "executor-9", 9
			_, err = w.Shard.Checkpoints.Put(w.TB.Context(), c, rev)
			require.NoError(w.TB, err)
		}, verify.InCheckpoint, "executor, turn differ"},
		{"a checkpoint that counts a tail otherwise", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 20, schema.SegmentIndex{})
			c, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), "run-1")
			require.NoError(w.TB, err)
			c.TailEvents++
			_, err = w.Shard.Checkpoints.Put(w.TB.Context(), c, rev)
			require.NoError(w.TB, err)
		}, verify.InCheckpoint, "counts 21 events behind its segments, there are 20"},
		{"an event that was sealed otherwise than it was logged", func(w *serviceWorld, x *writer) {
			// Headers that are no part of the CloudEvent do not change the fold.
			header := maps.Clone(x.Acked[5].Header)
			header["X-Note"] = []string{"changed"}
			x.Acked[5].Header = header
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
		}, verify.InLog, "is not the event that was sealed"},
		{"a forged event in an executor's place", func(w *serviceWorld, x *writer) {
			e, err := x.Run.Event(&schema.CheckpointMarkedData{Name: "forged"}, 0, time.Unix(1_700_000_000, 0), 0)
			require.NoError(w.TB, err)
			e.Data = []byte(`{"name":"other"}`)
			at := x.Send(e)
			x.Acked = x.Acked[:len(x.Acked)-1]
			require.NotZero(w.TB, at)
			require.NoError(w.TB, x.Run.Commit(e))
			x.Publish(&schema.CheckpointMarkedData{Name: "behind it"}, 0)
		}, verify.InLog, "does not match the content"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, _ := pointWorld(t, c.prepare)
			v := w.verify("run-1")
			require.NotEmpty(t, v.Findings)
			require.Condition(t, func() bool {
				for _, f := range v.Findings {
					if f.In == c.in && strings.Contains(f.Problem, c.problem) {
						return true
					}
				}
				return false
			})
		})
	}
}

// A crash can undo a purge in part: events missing in between are in the segments (decision 21).
func TestVerify_PurgePartlyUndone_Whole(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) {
		w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
		for _, n := range []int{0, 1, 2, 7, 8, 20} {
			w.deleteMsg(x.Acked[n].Stream)
		}
	})
	v := w.verify("run-1")
	require.Len(t, v.Findings, 1, "without a crash it is damage")
	require.Equal(t, "its segment", v.Findings[0].Instead)
	incarnation, err := w.Shard.Incarnation(t.Context())
	require.NoError(t, err)
	// As the purger leaves it when the server's start was unclean.
	_, err = w.Shard.PutPurgeMark(t.Context(), kvstore.Watermark{Incarnation: incarnation, Position: schema.Position{Stream: 1, ID: "purger"}}, 0)
	require.NoError(t, err)
	v = w.verify("run-1")
	require.Empty(t, v.Findings)
	require.EqualValues(t, 3, v.LogMissing)
	reply, a := w.get("run-1", schema.ViewEvents)
	require.True(t, reply.Complete)
	require.Len(t, a.records(t), len(x.Acked))
}

// The purger purges sealed events during a read: the reader has the beginning of a log that now begins elsewhere.
func TestVerify_LogPurgedDuringRead_NoGap(t *testing.T) {
	t.Parallel()
	for _, left := range []int{10, 0} {
		t.Run(fmt.Sprintf("left: %d", left), func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, func(*serviceWorld, *writer) {})
			n := len(x.Acked)
			w.sealByHand(x, n, 7, false)
			stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
			require.NoError(t, err)
			nc := w.Server.Conn(t)
			var once sync.Once
			js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
				if subject == "$JS.API.DIRECT.GET."+w.Names.EventStream() {
					once.Do(func() {
						err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(w.Names.EventSubject("run-1")), jetstream.WithPurgeKeep(uint64(left)))
						if err != nil {
							t.Error(err)
						}
					})
				}
				natstest.Forward(nc, m, subject)
			})
			v, err := verify.Run(t.Context(), js, w.openOn(js, "tester"), "default", "run-1")
			require.NoError(t, err)
			require.Empty(t, v.Findings)
			require.EqualValues(t, n, v.Events)
		})
	}
}

func TestVerify_UnknownRun_NotVerified(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	_, err := verify.Run(t.Context(), w.JS, w.Shard, "default", "unknown")
	require.ErrorIs(t, err, verify.ErrNoRun)
}

// A keyframe that is not the fold of the events before it is found: points behind it would be read from it.
func TestVerify_KeyframeOfAnotherFold_IsFound(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	require.Empty(t, w.verify("run-1").Findings)
	stored, err := w.Shard.Segments.Get(t.Context(), "run-1", 2)
	require.NoError(t, err)
	info, frames, err := schema.DecodeSegment(stored)
	require.NoError(t, err)
	_, head, err := schema.DecodeKeyframe(stored)
	require.NoError(t, err)
	head.Turn++
	stored, err = schema.EncodeSegment(info, head, frames)
	require.NoError(t, err)
	_, rev, err := w.Shard.Segments.Examine(t.Context(), "run-1", 2)
	require.NoError(t, err)
	require.NoError(t, w.Shard.Segments.Replace(t.Context(), "run-1", 2, stored, rev))
	findings := w.verify("run-1").Findings
	require.NotEmpty(t, findings)
	require.Equal(t, verify.InSegment, findings[0].In)
	require.Equal(t, 2, findings[0].Segment)
	require.Contains(t, findings[0].Problem, "turn differ")
	require.Len(t, x.Acked, 42)
}
