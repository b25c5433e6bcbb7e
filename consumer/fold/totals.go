package fold

import (
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// measure counts an event that was folded.
func (s *Stats) measure(a *eventlog.Arrived) {
	s.Events.Add(1)
	s.PayloadBytes.Add(int64(len(a.Record.Body)))
	s.LogBytes.Add(int64(a.Stored))
}

// measureEnd counts the end of a run with its head.
func (s *Stats) measureEnd(head *schema.Head, end *schema.RunEndedData) {
	if end.Status == string(schema.StatusCompleted) {
		s.Completed.Add(1)
		if end.CompletedBy != "" {
			s.ByTool.Add(1)
		}
	}
	if head.Limit == "" {
		return
	}
	s.Limited.Add(1)
	if head.TurnPurpose == schema.PurposeRecovery && head.Summary != "" {
		s.SummedUp.Add(1)
	}
}

// measurePut counts a checkpoint that was put.
func (s *Stats) measurePut(bytes int) {
	s.Checkpoints.Add(1)
	s.CheckpointBytes.Add(int64(bytes))
}

// totals are the current counters for the watermark.
func (s *Stats) totals() schema.FoldTotals {
	return schema.FoldTotals{
		Events: s.Events.Load(), PayloadBytes: s.PayloadBytes.Load(), LogBytes: s.LogBytes.Load(),
		SegmentBytes: s.SegmentBytes.Load(), CheckpointBytes: s.CheckpointBytes.Load(),
		Checkpoints: s.Checkpoints.Load(), Segments: s.Segments.Load(),
		Boundaries: s.Boundaries.Load(), Covered: s.Covered.Load(),
		Completed: s.Completed.Load(), ByTool: s.ByTool.Load(), Limited: s.Limited.Load(), SummedUp: s.SummedUp.Load(),
	}
}

// totals adds the counts of one term to those of the watermark found at its begin. That watermark may be
// ahead of the term's beginning: an unclean start of the server, a lost index, and untrusted checkpoints make the
// term fold counted events again.
type totals struct {
	before, began schema.FoldTotals
	// through is the position up to which events are in before.
	through schema.StreamSequence
}

func countedThrough(w *kvstore.Watermark) schema.StreamSequence {
	return max(w.Position.Stream, w.CountedThrough)
}

// begin sets the earlier counts, and the counters of the process at the start of the term.
func (t *totals) begin(found *kvstore.Watermark, now schema.FoldTotals) {
	t.before, t.began, t.through = found.Totals, now, countedThrough(found)
}

// counted reports whether an event is in the totals that the term began with.
func (t *totals) counted(at schema.StreamSequence) bool { return at <= t.through }

// leaveOut excludes an event that the process counts from the totals.
func (t *totals) leaveOut(a *eventlog.Arrived) {
	t.began.Events++
	t.began.PayloadBytes += int64(len(a.Record.Body))
	t.began.LogBytes += int64(a.Stored)
}

// add counts an event that the process does not count: its checkpoint was put, but no watermark, because of a crash.
func (t *totals) add(a *eventlog.Arrived) {
	t.before.Events++
	t.before.PayloadBytes += int64(len(a.Record.Body))
	t.before.LogBytes += int64(a.Stored)
}

// at sets a watermark's totals. Puts for events that were counted before are excluded.
func (t *totals) at(w *kvstore.Watermark, now schema.FoldTotals) {
	if w.Position.Stream <= t.through {
		t.began = now
		w.CountedThrough = t.through
	} else {
		w.CountedThrough = 0
	}
	w.Totals = t.with(now)
}

// with returns the totals for the next watermark.
func (t *totals) with(now schema.FoldTotals) schema.FoldTotals {
	a, b := t.before, t.began
	return schema.FoldTotals{
		Events: a.Events + now.Events - b.Events, PayloadBytes: a.PayloadBytes + now.PayloadBytes - b.PayloadBytes,
		LogBytes: a.LogBytes + now.LogBytes - b.LogBytes, SegmentBytes: a.SegmentBytes + now.SegmentBytes - b.SegmentBytes,
		CheckpointBytes: a.CheckpointBytes + now.CheckpointBytes - b.CheckpointBytes,
		Checkpoints:     a.Checkpoints + now.Checkpoints - b.Checkpoints, Segments: a.Segments + now.Segments - b.Segments,
		Boundaries: a.Boundaries + now.Boundaries - b.Boundaries, Covered: a.Covered + now.Covered - b.Covered,
		Completed: a.Completed + now.Completed - b.Completed, ByTool: a.ByTool + now.ByTool - b.ByTool,
		Limited: a.Limited + now.Limited - b.Limited, SummedUp: a.SummedUp + now.SummedUp - b.SummedUp,
	}
}
