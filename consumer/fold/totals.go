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

// measurePut counts a checkpoint that was put.
func (s *Stats) measurePut(bytes int) {
	s.Checkpoints.Add(1)
	s.CheckpointBytes.Add(int64(bytes))
}

// totals are the counters that go into the watermark, as they are now.
func (s *Stats) totals() schema.FoldTotals {
	return schema.FoldTotals{
		Events: s.Events.Load(), PayloadBytes: s.PayloadBytes.Load(), LogBytes: s.LogBytes.Load(),
		SegmentBytes: s.SegmentBytes.Load(), CheckpointBytes: s.CheckpointBytes.Load(),
		Checkpoints: s.Checkpoints.Load(), Segments: s.Segments.Load(),
		Boundaries: s.Boundaries.Load(), Covered: s.Covered.Load(),
	}
}

// totals adds what one term counts to what the watermark that it began at says. What a term counted and did not get
// into a watermark is folded again by the next one, and counted there.
type totals struct{ before, began schema.FoldTotals }

// begin sets where a term begins: the watermark it reads on from, and the counters of the process.
func (t *totals) begin(mark *kvstore.Watermark, now schema.FoldTotals) {
	t.before, t.began = mark.Totals, now
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
	}
}
