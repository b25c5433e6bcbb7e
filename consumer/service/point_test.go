package service_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// at asks for a run at a point, in a view.
func (w *serviceWorld) at(run, view, point string) (*schema.GetReply, *answer) {
	w.TB.Helper()
	a, err := w.ask(schema.VerbGet, run, schema.GetRequest{View: view, At: point})
	require.NoError(w.TB, err)
	return decodeAs[schema.GetReply](w.TB, a.first), a
}

// requireFirst checks in every view that a point is exactly the writer's first n events.
func (w *serviceWorld) requireFirst(x *writer, point string, n int) {
	w.TB.Helper()
	want := schema.NewHead("default", x.Run.Run)
	for i := range n {
		want.Apply(schema.NoKeys, &x.Acked[i])
	}
	reply, _ := w.at(x.Run.Run, schema.ViewHead, point)
	require.Equal(w.TB, want, reply.Head, point)
	require.True(w.TB, reply.Complete)
	require.NotEmpty(w.TB, reply.At.Time, point)
	require.Equal(w.TB, &schema.Moment{Point: point, Records: int64(n), Position: want.Position, Time: reply.At.Time}, reply.At)

	reply, a := w.at(x.Run.Run, schema.ViewEvents, point)
	require.Equal(w.TB, want.Digest, reply.Head.Digest)
	got := a.records(w.TB)
	require.Len(w.TB, got, n)
	for i := range got {
		require.True(w.TB, x.Acked[i].Equal(&got[i]), "event %d", i)
	}

	reply, _ = w.at(x.Run.Run, schema.ViewState, point)
	require.Equal(w.TB, want, reply.Head)
	requireView(w.TB, x.state(n), reply.State)
}

// pointWorld is a run of ten turns, of which the first events are sealed and purged if the case says so. Event 0 is
// its start, then each turn has four; a mark follows the fifth turn.
func pointWorld(t *testing.T, prepare func(*serviceWorld, *writer)) (*serviceWorld, *writer) {
	t.Helper()
	w := newServiceWorld(t)
	w.aRun("other", 2, 10)
	x := w.aRun("run-1", 5, 300)
	x.Publish(&schema.CheckpointMarkedData{Name: "before: deploy"}, 0)
	for range 5 {
		x.TurnOf(300)
	}
	require.Len(t, x.Acked, 42)
	prepare(w, x)
	return w, x
}

func TestPoint_EveryRecord_Restores(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run read at each of its points, in several ways")
	}
	t.Parallel()
	cases := []struct {
		name    string
		prepare func(*serviceWorld, *writer)
	}{
		{"from the log alone", func(*serviceWorld, *writer) {}},
		{"from segments that are not purged", func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false)) }},
		{"from segments alone", func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) }},
		{"from segments without a checkpoint", func(w *serviceWorld, x *writer) { w.sealByHand(x, 30, 7, true) }},
		{"from the log instead of a segment with a flipped bit", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
			w.flipSegment(x, 2)
		}},
		{"from the log instead of a segment that is gone", func(w *serviceWorld, x *writer) {
			w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
			w.LoseSegment(x.Run.Run, 2)
		}},
	}
	if testing.Short() {
		cases = cases[:3]
		t.Log("short: three stores of six")
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, c.prepare)
			w.requireFirst(x, "end", 42)
			w.requireFirst(x, "turn:0", 1)
			w.requireFirst(x, "turn:3", 13)
			w.requireFirst(x, "turn:10", 42)
			w.requireFirst(x, "mark:before: deploy", 22)
			w.requireFirst(x, "result:1", 4)
			w.requireFirst(x, "result:10", 41)
			w.requireFirst(x, "event:"+schema.PositionOf(&x.Acked[16]).ID, 17)
			for _, n := range []int{1, 7, 8, 20, 29, 30, 31, 41, 42} {
				w.requireFirst(x, fmt.Sprintf("seq:%d", n), n)
				w.requireFirst(x, fmt.Sprintf("seq:1.%d", n), n)
			}
			require.Equal(t, schema.StatusRunning, w.model(x).Status)
			require.Equal(t, schema.Epoch(1), w.model(x).Epoch, "looking takes nothing over")
		})
	}
}

// The log has the damaged segment's events, and one event more than when the run was read: that must not count as
// purged.
// A fork leaves the open hold calls to a person.
func TestPoint_WithinAnAnswer_ForkHoldsItsCalls(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.Publish(&schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}, Calls: []schema.RequestedCall{
		{ToolCallID: "a", Name: "pay"},
		{ToolCallID: "b", Name: "read", Replay: schema.ReplayPure},
		{ToolCallID: "c", Name: "pay"},
		{ToolCallID: "d", Name: "rm", Error: &schema.Error{Type: "unknown_tool"}},
		{ToolCallID: "e", Name: "pay"},
		{ToolCallID: "f", Name: "pay"},
	}}, 1)
	call := func(id string) { x.Publish(&schema.ToolCalledData{ToolCallID: id, Name: "pay"}, 1) }
	result := func(id string) { x.Publish(&schema.ToolReturnedData{ToolCallID: id, Result: []byte("1")}, 1) }
	call("a")
	result("a")
	result("b")
	x.Publish(&schema.ToolDecidedData{ToolCallID: "c", Decision: schema.DecisionAllow}, 1)
	call("c")
	result("c")
	x.Publish(&schema.ToolDecidedData{ToolCallID: "e", Decision: schema.DecisionDeny}, 1)
	x.Publish(&schema.ToolFailedData{ToolCallID: "e", Error: schema.Error{Type: schema.DeniedType}}, 1)
	x.Publish(&schema.TurnEndedData{Turn: 1}, 1)
	x.Publish(&schema.TurnAnsweredData{Turn: 2, Message: schema.Message{Role: schema.RoleAssistant}, Calls: []schema.RequestedCall{{ToolCallID: "a", Name: "pay"}}}, 2)

	key := func(turn int32, id string) schema.CallKey {
		return schema.CallKey{Turn: turn, ToolCallID: id, Occurrence: 1}
	}
	for point, want := range map[string]struct {
		records   int64
		requested []string
		doubt     []schema.CallKey
	}{
		"record:2": {2, []string{"a", "b", "c", "e", "f"}, []schema.CallKey{key(1, "a"), key(1, "c"), key(1, "e"), key(1, "f")}},
		"record:4": {4, []string{"b", "c", "e", "f"}, []schema.CallKey{key(1, "c"), key(1, "e"), key(1, "f")}},
		"record:5": {5, []string{"c", "e", "f"}, []schema.CallKey{key(1, "c"), key(1, "e"), key(1, "f")}},
		"result:3": {8, []string{"e", "f"}, []schema.CallKey{key(1, "e"), key(1, "f")}},
		"result:5": {10, []string{"f"}, []schema.CallKey{key(1, "f")}},
		"turn:1":   {11, nil, nil},
		"end":      {12, []string{"a"}, []schema.CallKey{key(2, "a")}},
	} {
		reply, _ := w.at("run-1", schema.ViewHead, point)
		require.Equal(t, want.records, reply.At.Records, point)
		var requested []string
		for _, c := range reply.Head.OpenCalls {
			require.True(t, c.State.Requested(), point)
			requested = append(requested, c.ToolCallID)
		}
		require.Equal(t, want.requested, requested, point)

		head := schema.NewHead("default", "fork")
		fork := schema.Writer{Fleet: "default", Run: "fork", Executor: "executor-1", Epoch: 1}
		e, err := fork.Event(&schema.RunStartedData{Agent: "a", Executor: "executor-1", Base: schema.BaseOf(schema.Point{}, reply.At.Records, &reply.Head)}, 0, time.Now(), 0)
		require.NoError(t, err)
		header, body := e.Encode()
		rec := schema.NewRecord(1, header, body)
		require.Equal(t, schema.Applied, head.Apply(schema.NoKeys, &rec).Kind)
		var doubt []schema.CallKey
		for _, c := range head.InDoubt() {
			require.Equal(t, schema.CallHeld, c.State, point)
			doubt = append(doubt, c.CallKey)
		}
		require.Equal(t, want.doubt, doubt, "%s: the base or another fork may run it", point)
	}
}

func TestPoint_InLiveLog_Found(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) {
		w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false))
		w.flipSegment(x, 2)
	})
	w.stop()
	var once sync.Once
	nc := w.Server.Conn(t)
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if strings.Contains(subject, w.Names.SegmentBucket()) {
			once.Do(func() { x.TurnOf(10) })
		}
		natstest.Forward(nc, m, subject)
	})
	shard := w.openOn(js, "service-1")
	svc, err := newService(t, service.Config{Fleet: "default", Name: "service-1"}, js, []*kvstore.Shard{shard}, time.Now)
	require.NoError(t, err)
	w.start(svc)
	reply, _ := w.at("run-1", schema.ViewHead, "turn:3")
	require.Len(t, x.Acked, 46, "it went on")
	require.EqualValues(t, 13, reply.At.Records)
	require.True(t, reply.Complete)
}

// model is the run's head in the service's answer.
func (w *serviceWorld) model(x *writer) schema.Head {
	w.TB.Helper()
	reply, _ := w.get(x.Run.Run, schema.ViewHead)
	return reply.Head
}

// flipSegment flips one bit of a stored segment.
func (w *serviceWorld) flipSegment(x *writer, n int) {
	w.TB.Helper()
	kv, err := w.JS.KeyValue(w.TB.Context(), w.Names.SegmentBucket())
	require.NoError(w.TB, err)
	e, err := kv.Get(w.TB.Context(), schema.SegmentKey(x.Run.Run, n))
	require.NoError(w.TB, err)
	bad := append([]byte{}, e.Value()...)
	bad[len(bad)/2] ^= 1
	_, err = kv.Put(w.TB.Context(), schema.SegmentKey(x.Run.Run, n), bad)
	require.NoError(w.TB, err)
}

func TestPoint_CheckpointRevision_Readable(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	for n := 2; n <= 20; n += 2 {
		w.checkpointAt(x, n, schema.SegmentIndex{})
	}
	history, err := w.Shard.Checkpoints.History(t.Context(), x.Run.Run)
	require.NoError(t, err)
	require.Len(t, history, 5)
	for i, c := range history {
		w.requireFirst(x, fmt.Sprintf("checkpoint:%d", c.Revision), 20-2*i)
	}
	e := w.refused(schema.VerbGet, x.Run.Run, schema.GetRequest{At: "checkpoint:1"})
	require.Equal(t, schema.CodePointNotFound, e.Code)
	require.Contains(t, string(e.Details), fmt.Sprintf("checkpoint:%d", history[4].Revision))
}

func TestPoint_CheckpointDiffersFromFold_Refused(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	w.checkpointAt(x, 20, schema.SegmentIndex{})
	c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	c.Digest = x.Model().Digest
	rev, err = w.Shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: fmt.Sprintf("checkpoint:%d", rev)})
	require.Equal(t, schema.CodeDamaged, e.Code)
	w.requireFirst(x, "seq:20", 20)
}

func TestPoint_SequenceInSeveralEpochs_NeedsEpoch(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 2, 10)
	w.recover("run-1", takeover("executor-2", "request-1"))
	second := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: "seq:1.10"})
	require.Equal(t, schema.CodePointNotFound, second.Code)
	w.requireFirst(x, "seq:3", 3) // the second epoch has no own event yet

	reply, _ := w.get("run-1", schema.ViewHead)
	y := w.writer("run-1")
	y.Run.Executor, y.Run.Epoch, y.Last, y.Turn = "executor-2", 2, uint64(reply.Head.Position.Stream), 2
	y.TurnOf(10)
	e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: "seq:3"})
	require.Equal(t, schema.CodePointAmbiguous, e.Code)
	require.JSONEq(t, `{"points":["seq:1.3","seq:2.3"]}`, string(e.Details))
	require.Contains(t, e.Hint, "seq:1.3 or seq:2.3")
	w.requireFirst(x, "seq:1.3", 3)
	at, _ := w.at("run-1", schema.ViewHead, "seq:2.3")
	require.Equal(t, schema.Epoch(2), at.Head.Epoch)
	require.Equal(t, schema.Sequence(3), at.Head.Sequence)
	w.requireFirst(x, "seq:8", 8) // only the first epoch exists so far
}

func TestPoint_Unknown_RefusedByName(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(*serviceWorld, *writer) {})
	x.Publish(&schema.TurnStartedData{Turn: 11}, 11)
	for at, says := range map[string]string{
		"seq:44": "sequence 43", "seq:2.1": "epoch 1", "turn:12": "turn 11", "turn:11": "has not ended", "result:11": "10 tool calls",
		"mark:other": "1 marks", "event:none": "sequence 43", "checkpoint:7": "revision 7",
	} {
		e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: at})
		require.Equal(t, schema.CodePointNotFound, e.Code, at)
		require.Contains(t, e.Message, says, at)
	}
	for _, at := range []string{"7", "turn:x", "line:1"} {
		require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: at}).Code, at)
	}
	// A client would take the answer for its takeover.
	for _, reason := range []string{"", schema.TakeoverRequest, schema.TakeoverReopen} {
		e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "q", At: "turn:1", Reason: reason})
		require.Equal(t, schema.CodeBadRequest, e.Code, reason)
		require.Contains(t, e.Message, "waymark.get shows a run at a point", reason)
		require.JSONEq(t, `{"path":"/at"}`, string(e.Details), reason)
	}
	for reason, path := range map[string]string{"nonsense": "/reason", schema.TakeoverRewind: "/at"} {
		e := w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "q", Reason: reason})
		require.Equal(t, schema.CodeBadRequest, e.Code, reason)
		require.JSONEq(t, `{"path":"`+path+`"}`, string(e.Details), reason)
		if reason == schema.TakeoverRewind {
			require.Contains(t, e.Message, "is required with reason rewind")
		}
	}
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbGet, "unknown", schema.GetRequest{At: "turn:1"}).Code)
}

func TestPoint_EventsRemoved_Gone(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) {
		w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true))
		w.LoseSegment(x.Run.Run, 2)
	})
	w.requireFirst(x, "seq:7", 7)
	for _, at := range []string{"seq:8", "turn:9", "end", "mark:before: deploy"} {
		e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: at})
		require.Equal(t, schema.CodePointPurged, e.Code, at)
		require.Contains(t, e.Message, "segment 2")
	}
}

func TestPoint_BehindDamagedSegment_Refused(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) {
		w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true))
		w.flipSegment(x, 2)
	})
	w.requireFirst(x, "seq:7", 7)
	e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: "seq:8"})
	require.Equal(t, schema.CodeDamaged, e.Code)
	require.Contains(t, string(e.Details), `"segment":2`)
}

func TestMark_ByOperator_NamesPosition(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 2, 10)
	mark := func(name string, move bool) *schema.ControlReply {
		a, err := w.ask(schema.VerbMark, "run-1", schema.MarkRequest{Name: name, By: "ann", Move: move})
		require.NoError(t, err)
		return decodeAs[schema.ControlReply](t, a.first)
	}
	first := mark("before", false)
	require.Equal(t, repeated(first), mark("before", false), "a repeat is the same mark")
	x.Last = uint64(first.Stream)
	x.TurnOf(10)
	e := w.refused(schema.VerbMark, "run-1", schema.MarkRequest{Name: "before", By: "ann"})
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Contains(t, e.Message, "turn 2")
	at, _ := w.at("run-1", schema.ViewHead, "mark:before")
	require.Equal(t, first.EventID, at.At.Position.ID)
	require.Equal(t, int32(2), at.Head.Turn)
	require.Equal(t, "executor-1", at.Head.Executor)

	moved := mark("before", true)
	at, _ = w.at("run-1", schema.ViewHead, "mark:before")
	require.Equal(t, moved.EventID, at.At.Position.ID)
	require.Equal(t, int32(3), at.Head.Turn)
	require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbMark, "run-1", schema.MarkRequest{By: "ann"}).Code)
	require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbMark, "run-1", schema.MarkRequest{Name: "x", By: "a b"}).Code)
	for i := 1; i < schema.MaxMarks; i++ {
		mark(fmt.Sprint(i), false)
	}
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbMark, "run-1", schema.MarkRequest{Name: "one more", By: "ann"}).Code)
	require.Zero(t, w.model(x).Counts.DeadLetters)
}

func TestPoint_TenBoundariesFiveRevisions_AllRestored(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: each of ten boundaries is restored")
	}
	w := newServiceWorld(t)
	w.Fold(smallSeals())
	x := w.writer("run-1")
	revisions := map[int]schema.Revision{}
	folded := func() {
		n := len(x.Acked)
		require.Eventually(t, func() bool {
			c, rev, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
			revisions[n] = rev
			return err == nil && c.Position.Stream == x.Acked[n-1].Stream
		}, time.Minute, 10*time.Millisecond)
	}
	x.Start()
	folded()
	for i := range 9 {
		x.Publish(&schema.CheckpointMarkedData{Name: fmt.Sprint("mark ", i)}, 0)
		folded()
	}
	a, err := w.ask(schema.VerbHistory, "run-1", struct{}{})
	require.NoError(t, err)
	history := decodeAs[schema.HistoryReply](t, a.first).Checkpoints
	require.Len(t, history, 5)
	for i, c := range history {
		require.Equal(t, revisions[10-i], c.Revision)
		w.requireFirst(x, fmt.Sprintf("checkpoint:%d", c.Revision), 10-i)
	}
	for n := 1; n <= 10; n++ {
		w.requireFirst(x, fmt.Sprintf("seq:%d", n), n)
	}
	for i := range 9 {
		w.requireFirst(x, fmt.Sprint("mark:mark ", i), i+2)
	}
	e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: fmt.Sprintf("checkpoint:%d", revisions[3])})
	require.Equal(t, schema.CodePointNotFound, e.Code, "an older revision is no longer kept, its place is")
}

// A run that is too large to be folded is so at each of its points; the other views answer.
func TestPoint_RunLargerThanIsFolded_StateIsRefused(t *testing.T) {
	t.Parallel()
	w, _ := pointWorld(t, func(w *serviceWorld, x *writer) {
		index := w.sealByHand(x, 30, 7, true)
		index.Bytes = schema.MaxStateView
		w.checkpointAt(x, 38, index)
	})
	for _, at := range []string{"end", "record:40"} {
		e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewState, At: at})
		require.Equal(t, schema.CodeTooLarge, e.Code, "%s: %s", at, e.Message)
	}
	require.Equal(t, schema.CodeTooLarge, w.refused(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewState}).Code)
	reply, _ := w.at("run-1", schema.ViewHead, "record:40")
	require.EqualValues(t, 40, reply.At.Records)
}
