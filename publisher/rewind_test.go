package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// rewind takes a run over behind one of its records, as the daemon will when it is asked to.
func (w *world) rewind(run string, record int) {
	w.tb.Helper()
	log := w.log(run)
	head := schema.NewHead("default", run)
	for i := range log[:record] {
		head.Apply(schema.NoKeys, &log[i])
	}
	at := head.Clone()
	later := schema.NewLater(&at)
	for i := range log[record:] {
		later.Behind(&head, head.Apply(schema.NoKeys, &log[record+i]))
	}
	point := schema.Point{Kind: schema.PointRecord, Number: uint64(record)} //nolint:gosec // a small number
	to, err := schema.RewindTo(point, &at, later)
	require.NoError(w.tb, err)
	w.control(run, head.Epoch+1, &schema.RunResumedData{
		Executor: "exec-1", Reason: schema.TakeoverRewind, RequestID: "q-1", To: to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	})
}

// A run that was rewound is read without what it left behind, by its latest state, at points, by an executor that resumes it, and as the
// base of a fork.
func TestRewind_RunRewound_ReadWithoutWhatItLeftBehind(t *testing.T) {
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	turn := func(run *publisher.Run, text string) {
		t.Helper()
		next, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user(text)}})
		require.NoError(t, err)
		keys, err := next.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("answer to " + text)), Calls: []publisher.ToolCall{{ID: "c1", Name: "pay"}}})
		require.NoError(t, err)
		require.NoError(t, next.Begin(t.Context(), keys[0]))
		require.NoError(t, next.Return(t.Context(), keys[0], publisher.ToolResult{Result: raw(`"paid"`)}))
	}
	turn(run, "one") // records 2 to 5
	turn(run, "two") // records 6 to 9
	require.NoError(t, run.Publish(t.Context(), &schema.StateSetData{Key: "plan", Value: raw(`"left behind"`)}, 0))
	w.rewind("r1", 7) // behind the answer of turn 2, whose call began later

	read := func(state *schema.State, err error) {
		t.Helper()
		require.NoError(t, err)
		require.False(t, state.Stale)
		require.Len(t, state.Messages, 4)
		require.Empty(t, state.Values)
		require.Len(t, state.Head.InDoubt(), 1)
		require.Equal(t, []schema.Superseded{{After: 7, Through: 10, Epoch: 2}}, state.Head.Superseded)
	}
	read(f.Get(t.Context(), "r1"))
	left, err := f.GetAt(t.Context(), "r1", schema.Point{Kind: schema.PointRecord, Number: 10})
	require.NoError(t, err)
	require.Len(t, left.Values, 1, "the record itself is still there")
	step, err := f.HeadAt(t.Context(), "r1", schema.Point{Kind: schema.PointStep, Number: 2})
	require.NoError(t, err)
	require.Equal(t, int64(7), step.Records)

	resumed, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	read(resumed.State(), nil)
	w.control("r1", resumed.Epoch(), &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAbandoned})
	require.NoError(t, resumed.Sync(t.Context()))
	turn(resumed, "three")
	state, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, state.Messages, 6)
	require.Equal(t, int32(3), state.Head.Turn)

	fork, err := f.Fork(t.Context(), publisher.ForkSpec{Base: "r1", ID: "r2"})
	require.NoError(t, err)
	require.Len(t, fork.State().Messages, 6)
	again, err := f.Get(t.Context(), "r2")
	require.NoError(t, err)
	require.Len(t, again.Messages, 6)
	require.False(t, again.Stale)
}
