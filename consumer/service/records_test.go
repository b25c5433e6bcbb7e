package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/schema"
)

func (w *serviceWorld) records(run string, req schema.RecordsRequest) *schema.RecordsReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbRecords, run, req)
	require.NoError(w.TB, err)
	return decodeAs[schema.RecordsReply](w.TB, a.first)
}

func (w *serviceWorld) awaitCheckpoint(run string, ok func(*schema.Checkpoint) bool) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		c, _, err := w.Shard.Checkpoints.Get(w.TB.Context(), run)
		return err == nil && ok(c)
	}, testTimeout, 5*time.Millisecond)
}

// requirePage checks a page against the fold of the run's log from its first record.
func (w *serviceWorld) requirePage(log []schema.Record, reply *schema.RecordsReply, first, last int) {
	w.TB.Helper()
	require.Len(w.TB, reply.Records, last-first+1)
	require.EqualValues(w.TB, len(log), reply.Total)
	head := schema.NewHead("default", reply.Run)
	for i := range last {
		if i == first-1 {
			require.Equal(w.TB, head, reply.Before, "page from %d", first)
		}
		v := head.Apply(schema.NoKeys, &log[i])
		if i < first-1 {
			continue
		}
		got := &reply.Records[i-first+1]
		require.EqualValues(w.TB, i+1, got.Record)
		require.Equal(w.TB, log[i].Stream, got.Stream)
		require.Equal(w.TB, v.Kind.String(), got.Verdict)
		require.Equal(w.TB, v.Reason, got.Reason)
		require.Equal(w.TB, head.Turn, got.Turn)
		require.Equal(w.TB, head.Epoch, got.Epoch)
		e, err := got.Decode()
		require.NoError(w.TB, err)
		require.Equal(w.TB, v.Event.ContentHash(), e.ContentHash(), "the event is whole")
	}
}

// rewound is a run of two folded, sealed parts, with a rewind and a takeover between them, and with refused and duplicate events.
func rewound(t *testing.T) (*serviceWorld, []schema.Record) {
	t.Helper()
	w := newServiceWorld(t)
	_, stop := w.Fold(fold.Config{Holder: "worker", SealEvents: 8, SealMaxEvents: 16})
	defer stop()
	x := w.writer("run-1")
	x.Start()
	for range 12 {
		x.TurnOf(300)
	}
	w.rewind("run-1", "record:21", schema.ViewHead)
	w.recover("run-1", takeover("executor-2", "q-2"))
	reply, _ := w.get("run-1", schema.ViewHead)
	y := w.writer("run-1")
	y.Run.Executor, y.Run.Epoch, y.Turn = "executor-2", 3, reply.Head.Turn
	_, a := w.get("run-1", schema.ViewEvents)
	log := a.records(t)
	y.Last = uint64(log[len(log)-1].Stream)
	for range 9 {
		y.TurnOf(200)
	}
	y.Publish(&schema.ToolReturnedData{ToolCallID: "none", Result: []byte("1")}, y.Turn) // refused
	y.TurnOf(100)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return uint64(c.Position.Stream) == y.Last && c.Segments.Count > 6 })
	_, a = w.get("run-1", schema.ViewEvents)
	return w, a.records(t)
}

// Each page of a run that was rewound, taken over, sealed and purged equals the fold from the first record.
func TestRecords_SealedRunWithARewind_EachPageIsThatOfTheFold(t *testing.T) {
	t.Parallel()
	w, log := rewound(t)
	n := len(log)
	for first := 1; first <= n; first += 5 {
		last := min(first+9, n)
		w.requirePage(log, w.records("run-1", schema.RecordsRequest{From: int64(first), Limit: 10}), first, last)
		w.requirePage(log, w.records("run-1", schema.RecordsRequest{Through: int64(last), Limit: last - first + 1}), first, last)
	}
	w.requirePage(log, w.records("run-1", schema.RecordsRequest{Limit: 3}), n-2, n)
	w.requirePage(log, w.records("run-1", schema.RecordsRequest{}), 1, n)
	require.Empty(t, w.records("run-1", schema.RecordsRequest{From: int64(n) + 1}).Records)
	rejected, left := 0, 0
	for _, r := range w.records("run-1", schema.RecordsRequest{}).Records {
		if r.Verdict == schema.Rejected.String() {
			rejected++
		}
		if r.LeftBehind {
			left++
		}
	}
	require.Equal(t, 1, rejected)
	require.Equal(t, 28, left, "records 22 to 49")
	// The state of a run at each of its records, with keyframes too.
	head := schema.NewHead("default", "run-1")
	for i := range log {
		head.Apply(schema.NoKeys, &log[i])
		reply, _ := w.at("run-1", schema.ViewHead, fmt.Sprintf("record:%d", i+1))
		require.Equal(t, head, reply.Head, "record %d", i+1)
	}
}

func TestRecords_LargeContent_IsLeftOutAndNamed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 200_000)
	brief := w.records("run-1", schema.RecordsRequest{Brief: true})
	require.Len(t, brief.Records, len(x.Acked))
	for _, r := range brief.Records {
		e, err := r.Decode()
		require.NoError(t, err)
		data, err := schema.ParseData(e)
		require.NoError(t, err)
		if d, ok := data.(*schema.ToolReturnedData); ok {
			require.Equal(t, []schema.LeftOut{{Path: "/result", Size: 200_002}}, r.LeftOut)
			require.NotEmpty(t, d.ToolCallID, "what is not content stays")
		} else {
			require.Empty(t, r.LeftOut)
		}
	}
	// A page that does not fit has fewer records: the newest, or the first of the requested ones.
	some := w.records("run-1", schema.RecordsRequest{MaxBytes: 250_000})
	require.Less(t, len(some.Records), len(x.Acked))
	require.EqualValues(t, len(x.Acked), some.Records[len(some.Records)-1].Record)
	w.requirePage(x.Acked, some, int(some.Records[0].Record), len(x.Acked))
	some = w.records("run-1", schema.RecordsRequest{From: 2, MaxBytes: 250_000})
	require.Less(t, len(some.Records), len(x.Acked)-1)
	w.requirePage(x.Acked, some, 2, 1+len(some.Records))
	// A record that does not fit by itself has no data.
	some = w.records("run-1", schema.RecordsRequest{MaxBytes: 16_000, From: 4, Limit: 1})
	require.Empty(t, some.Records[0].LeftOut[0].Path, "all of the data")
	require.Less(t, len(some.Records[0].Event), 1000)
}

func TestRecords_WrongRequest_NamesTheMember(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	for path, req := range map[string]schema.RecordsRequest{
		"/from": {From: -1}, "/through": {Through: -1}, "/limit": {Limit: schema.MaxRecords + 1}, "/max_bytes": {MaxBytes: 1},
	} {
		e := w.refused(schema.VerbRecords, "run-1", req)
		require.Equal(t, schema.CodeBadRequest, e.Code)
		require.Contains(t, e.Message, path)
	}
	e := w.refused(schema.VerbRecords, "run-1", schema.RecordsRequest{From: 1, Through: 2})
	require.Contains(t, e.Message, "/through")
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbRecords, "none", schema.RecordsRequest{}).Code)
}

// The records of a damaged segment are read from the log. If the log no longer has them, only pages that need them are refused.
func TestRecords_DamagedSegment_OthersAreRead(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	w.flipSegment(x, 2)
	w.requirePage(x.Acked, w.records("run-1", schema.RecordsRequest{From: 22, Limit: 5}), 22, 26)
	e := w.refused(schema.VerbRecords, "run-1", schema.RecordsRequest{From: 9, Limit: 2})
	require.Equal(t, schema.CodeDamaged, e.Code)

	w, x = pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false)) })
	w.flipSegment(x, 2)
	w.requirePage(x.Acked, w.records("run-1", schema.RecordsRequest{From: 9, Limit: 20}), 9, 28)
}

// A removed run has no pages.
func TestRecords_RemovedRun_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Fold(fold.Config{Holder: "worker"})
	x := w.aRun("run-1", 2, 10)
	x.Publish(&schema.RunEndedData{Status: string(schema.StatusCompleted)}, 0)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return c.Status.Terminal() })
	_, err := w.ask(schema.VerbErase, "run-1", schema.EraseRequest{By: "ann", Reason: strings.Repeat("r", 3)})
	require.NoError(t, err)
	require.Equal(t, schema.CodeErased, w.refused(schema.VerbRecords, "run-1", struct{}{}).Code)
}
