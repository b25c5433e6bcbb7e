package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// rewind takes a run over behind one of its records, as the service will when it is asked to.
func (w *serviceWorld) rewind(x *writer, record int) {
	w.TB.Helper()
	head := schema.NewHead("default", x.Run.Run)
	for i := range x.Acked[:record] {
		head.Apply(schema.NoKeys, &x.Acked[i])
	}
	at := head.Clone()
	later := schema.NewLater(&at)
	for i := record; i < len(x.Acked); i++ {
		later.Behind(&head, head.Apply(schema.NoKeys, &x.Acked[i]))
	}
	point := schema.Point{Kind: schema.PointRecord, Number: uint64(record)} //nolint:gosec // a small number
	to, err := schema.RewindTo(point, &at, later)
	require.NoError(w.TB, err)
	e, err := schema.NewControl("default", "daemon", x.Run.Run, head.Epoch+1, fmt.Sprintf("rewind%d", head.Records), &schema.RunResumedData{
		Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "q-1", To: to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	}, time.Now())
	require.NoError(w.TB, err)
	header, body := e.Encode()
	w.publishRaw(x.Run.Run, header, body)
}

// The state of a run that was rewound, within its segments or behind them, is the one at the record.
func TestRewind_SealedOrNot_StateIsTheOneAtTheRecord(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*serviceWorld, *writer){
		"in the log": func(*serviceWorld, *writer) {},
		"sealed":     func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, x := pointWorld(t, prepare)
			before := w.stateOf("run-1", "record:13")
			require.NotEqual(t, len(before.Messages), len(w.stateOf("run-1", "end").Messages))
			w.rewind(x, 13)
			reply, a := w.get("run-1", schema.ViewState)
			require.True(t, reply.Complete)
			state := decodeAs[schema.State](t, a.state)
			require.Equal(t, reply.Head, state.Head)
			require.False(t, state.Stale)
			require.Equal(t, before.Messages, state.Messages)
			require.Equal(t, before.Turns, state.Turns)
			require.Equal(t, []schema.Superseded{{After: 13, Through: int64(len(x.Acked)), Epoch: 2}}, reply.Head.Superseded)
			require.Equal(t, before.Messages, w.stateOf("run-1", "end").Messages)
			require.Empty(t, w.verify("run-1").Findings)
			e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{At: fmt.Sprintf("turn:%d", before.Head.Turn+1), View: schema.ViewHead})
			require.Equal(t, schema.CodePointNotFound, e.Code, "a turn that was left behind is no point")
		})
	}
}
