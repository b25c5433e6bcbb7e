package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A replica that was suspended reads a request when it continues, long after another replica has answered it.
func TestCancel_RepeatedAfterReopen_StopsNothing(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	req := schema.CancelRequest{By: "alice", RequestID: "c1"}
	first := w.control(schema.VerbCancel, "run-1", req)
	x.Last = uint64(first.Stream)
	x.end(schema.StatusCancelled)
	_, err := w.ask(schema.VerbRecover, "run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "r1", Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	require.Equal(t, repeated(first), w.control(schema.VerbCancel, "run-1", req))
	got, _ := w.get("run-1", schema.ViewHead)
	require.False(t, got.Head.CancelRequested, "the run that was reopened goes on")

	req.RequestID = "c2"
	second := w.control(schema.VerbCancel, "run-1", req)
	require.NotEqual(t, first, second)
	got, _ = w.get("run-1", schema.ViewHead)
	require.True(t, got.Head.CancelRequested, "a new request is executed")
	req.RequestID = "no name"
	require.Contains(t, w.refused(schema.VerbCancel, "run-1", req).Message, "/request_id")
}

func TestMark_Repeated_KeepsMovedName(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	req := schema.MarkRequest{Name: "good", By: "alice", Move: true, RequestID: "m1"}
	first := w.control(schema.VerbMark, "run-1", req)
	x.Last = uint64(first.Stream)
	x.TurnOf(10)
	other := req
	other.By = "bob" // ids depend on the sender
	moved := w.control(schema.VerbMark, "run-1", other)
	require.NotEqual(t, first, moved)
	x.Last = uint64(moved.Stream)
	x.TurnOf(10)
	require.Equal(t, repeated(first), w.control(schema.VerbMark, "run-1", req))
	at, _ := w.at("run-1", schema.ViewHead, "mark:good")
	require.Equal(t, moved.EventID, at.At.Position.ID, "the name is where it was moved to last")
	req.RequestID = "no name"
	require.Contains(t, w.refused(schema.VerbMark, "run-1", req).Message, "/request_id")
}
