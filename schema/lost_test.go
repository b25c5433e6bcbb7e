package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// TestHead_MessageLostFromTheLog_IsAGapOnce folds records that the server stored behind messages which the log has no more.
func TestHead_MessageLostFromTheLog_IsAGapOnce(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	stream, last := schema.StreamSequence(0), schema.StreamSequence(0)
	// next folds an event that the server stored behind some messages that are lost.
	next := func(e *schema.Event, lost int) schema.Verdict {
		stream += 10 * schema.StreamSequence(lost+1) //nolint:gosec // a small count
		header, body := e.Encode()
		rec := schema.NewRecord(stream, header, body)
		if rec.Behind = last; lost > 0 {
			rec.Behind = stream - 10
		}
		// A frame keeps what the server compared: a segment tells the same.
		rec, err := schema.NewFrameReader(schema.AppendFrame(nil, &rec)).Next()
		require.NoError(t, err)
		last = stream
		return r.head.Apply(schema.NoKeys, &rec)
	}
	write := func(name string, lost int) schema.Verdict {
		e, err := r.w.Event(&schema.CheckpointMarkedData{Name: name}, 0, r.now(), 0)
		require.NoError(t, err)
		require.NoError(t, r.w.Commit(e))
		return next(e, lost)
	}
	gap := func() schema.Gap {
		return schema.Gap{Epoch: r.head.Epoch, Reason: schema.ReasonLost, At: r.head.Position}
	}
	require.Equal(t, schema.Applied, write("a", 0).Kind)
	require.Equal(t, schema.Applied, write("b", 0).Kind)
	require.True(t, r.head.Complete())

	require.Equal(t, schema.Applied, write("c", 1).Kind, "a control event is lost: the executor's next event counts")
	want := []schema.Gap{gap()}
	require.Equal(t, want, r.head.Gaps)
	require.Equal(t, schema.Applied, write("d", 0).Kind)
	require.Equal(t, want, r.head.Gaps, "what follows does not close it")
	require.Equal(t, schema.Rejected, next(&schema.Event{ID: "x", Source: "/s", Type: "t", Subject: "other"}, 2).Kind)
	want = append(want, gap())
	require.Equal(t, want, r.head.Gaps, "a refused event tells of the next place")
	r.w.Last++
	require.Equal(t, schema.ReasonGap, write("f", 1).Reason)
	require.Len(t, r.head.Gaps, 3, "the sequence tells of it already")
	require.Equal(t, schema.ReasonGap, r.head.Gaps[2].Reason)
	require.EqualValues(t, 3, r.head.Counts.Gaps)
}

// TestHead_TwoWritersOfAnEpochThatDoNotCompare_BothCount shows what compare-and-set is for: the fold tells a fork by its sequence alone.
func TestHead_TwoWritersOfAnEpochThatDoNotCompare_BothCount(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	one, other := r.w, r.w
	write := func(w *schema.Writer, name string) schema.Verdict {
		e, err := w.Event(&schema.CheckpointMarkedData{Name: name}, 0, r.now(), 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(e))
		return r.event(e)
	}
	require.Equal(t, schema.Applied, write(&one, "a").Kind)
	require.Equal(t, schema.ReasonForked, write(&other, "b").Reason)
	require.Equal(t, schema.Applied, write(&other, "c").Kind, "the server would have refused it")
	require.Equal(t, schema.ReasonForked, write(&one, "d").Reason)
}
