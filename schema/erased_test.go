package schema_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// erasing is the record of run.erased at a position of the log, after the message at another.
func erasing(t *testing.T, at, behind schema.StreamSequence, r schema.Removal) *schema.Record {
	t.Helper()
	e, err := schema.NewErased("daemon", &r, "n", time.Unix(1, 0))
	require.NoError(t, err)
	header, body := e.Encode()
	rec := schema.NewRecord(at, header, body)
	rec.Behind = behind
	return &rec
}

func TestFold_RunErased_RemovesTheRunAtItsPlace(t *testing.T) {
	removal := schema.Removal{Fleet: "default", Run: "run-1", ID: "r1", By: "ann", At: "2026-11-21T12:00:00Z", Position: schema.Position{Stream: 5, ID: "x"}}
	running := func() schema.Head {
		h := schema.NewHead("default", "run-1")
		e, err := schema.NewControl("default", "daemon", "run-1", 1, "n0", &schema.CheckpointMarkedData{Name: "m"}, time.Unix(1, 0))
		require.NoError(t, err)
		header, body := e.Encode()
		rec := schema.NewRecord(5, header, body)
		require.Equal(t, schema.Applied, h.Apply(schema.NoKeys, &rec).Kind)
		return h
	}
	other, start := removal, removal
	other.Run, start.Position = "run-2", schema.Position{}
	public, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	keys, err := schema.NewKeys("default", []schema.Key{{Name: "UA", Public: public}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		keys *schema.Keys
		rec  *schema.Record
		want schema.Reason
	}{
		"at its place":                     {schema.NoKeys, erasing(t, 7, 5, removal), ""},
		"refused there and stored later":   {schema.NoKeys, erasing(t, 9, 7, removal), schema.ReasonMisplaced},
		"without compare-and-set":          {schema.NoKeys, erasing(t, 7, 0, removal), schema.ReasonMisplaced},
		"for a run that had not begun":     {schema.NoKeys, erasing(t, 7, 0, start), schema.ReasonMisplaced},
		"of another run":                   {schema.NoKeys, erasing(t, 7, 5, other), schema.ReasonMisplaced},
		"of no removal":                    {schema.NoKeys, erasing(t, 7, 5, schema.Removal{Run: "run-1", Fleet: "default"}), schema.ReasonInvalidData},
		"not signed, in a fleet with keys": {keys, erasing(t, 7, 5, removal), schema.ReasonUnsigned},
	} {
		h := running()
		v := h.Apply(c.keys, c.rec)
		require.Equal(t, c.want, v.Reason, name)
		require.Equal(t, c.want == "", h.Status == schema.StatusErased, name)
		require.Equal(t, c.rec.Stream, h.Position.Stream, name)
	}
	h := schema.NewHead("default", "run-1")
	require.Equal(t, schema.Skipped, h.Apply(schema.NoKeys, erasing(t, 7, 5, removal)).Kind, "the log has nothing else of the run any more")
	require.Equal(t, &removal, h.Erased)
	require.Equal(t, &removal, schema.Removes(schema.NoKeys, erasing(t, 7, 5, removal)))
	require.Nil(t, schema.Removes(keys, erasing(t, 7, 5, removal)))
}

func TestFold_AfterRemoval_AcceptsNothing(t *testing.T) {
	removal := schema.Removal{Fleet: "default", Run: "run-1", ID: "r1", By: "ann", At: "2026-11-21T12:00:00Z", Position: schema.Position{Stream: 5}}
	h := schema.NewHead("default", "run-1")
	h.Apply(schema.NoKeys, erasing(t, 7, 5, removal))
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
	again := removal
	again.Position.Stream = 11
	require.Equal(t, schema.Skipped, h.Apply(schema.NoKeys, erasing(t, 20, 11, again)).Kind)
	require.Equal(t, &again, h.Erased, "the daemon wrote it after the late events")
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
