package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestFold_AfterRemoval_AcceptsNothing(t *testing.T) {
	mark := schema.NewErased("default", "daemon", "run-1", "n1", time.Unix(1, 0))
	header, body := mark.Encode()
	rec := schema.Record{Stream: 7, Header: header, Body: body}
	require.True(t, schema.IsErasedMark(&rec))
	live := schema.NewHead("default", "run-1")
	require.Equal(t, schema.Skipped, live.Apply(schema.NoKeys, &rec).Kind, "a tombstone alone removes nothing: any client that may publish could forge it")
	require.Equal(t, schema.Status(""), live.Status)

	h := schema.ErasedHead("default", "run-1", schema.Position{Stream: 7, ID: mark.ID}, "2026-11-21T12:00:00Z")
	require.True(t, h.Status.Terminal())
	require.False(t, h.Live())
	for i, d := range []schema.Data{
		&schema.RunStartedData{Agent: "coder", Executor: "e"}, &schema.RunInputData{InterruptID: "i", Status: "cancelled", By: "b"},
		&schema.RunCancelRequestedData{By: "b"}, &schema.CheckpointMarkedData{Name: "m"},
	} {
		e, err := schema.NewControl("default", "daemon", "run-1", 1, "n2", d, time.Unix(2, 0))
		require.NoError(t, err)
		header, body := e.Encode()
		v := h.Apply(schema.NoKeys, &schema.Record{Stream: schema.StreamSequence(8 + i), Header: header, Body: body})
		require.Equal(t, schema.Rejected, v.Kind)
		require.Equal(t, schema.ReasonErased, v.Reason)
	}
	require.Equal(t, schema.StatusErased, h.Status)
	require.EqualValues(t, 1, h.Counts.Events)
	later := schema.Record{Stream: 20, Header: header, Body: body}
	require.Equal(t, schema.Skipped, h.Apply(schema.NoKeys, &later).Kind)
}

func TestRetention_Policy_SaysHowLong(t *testing.T) {
	p := schema.RetentionPolicy{CompletedSeconds: 30 * 86400, FailedSeconds: 60}
	require.Equal(t, 30*24*time.Hour, p.For(schema.StatusCompleted))
	require.Zero(t, p.For(schema.StatusCancelled))
	require.Zero(t, p.For(schema.StatusRunning))
	require.Equal(t, schema.DefaultRetentionGrace, p.Least(), "the grace is the least, whatever the policy")
	require.Equal(t, "completed 30 days, failed 1m0s, cancelled for ever", p.String())
	require.True(t, p.Removes())
	require.False(t, (&schema.RetentionPolicy{}).Removes())
	require.Zero(t, (&schema.RetentionPolicy{}).Least())
}
