package fold

import (
	"github.com/waymarkio/waymark/internal/nats/eventlog"
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

// totals adds the counts of one term to those of the watermark with which it began.
type totals struct{ before, began schema.FoldTotals }

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
