package activity_test

import (
	"testing"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/schema"
)

// BenchmarkWatch measures the cost of counting on top of the fold of a head and its overview, per event.
func BenchmarkWatch(b *testing.B) {
	c := activity.New("default")
	p := newRun(b, c, "run-1")
	var log []schema.Prepared
	p.kept = &log
	p.write(0, started("coder", "large"))
	for turn := range int32(20) {
		d := answer("read", "write")
		d.Turn, d.DurationMS, d.Usage = turn+1, 1500, &schema.Usage{InputTokens: 1000, OutputTokens: 200}
		p.write(turn+1, &schema.TurnStartedData{Turn: turn + 1}, d, begun("c1", "read"), &schema.ToolReturnedData{ToolCallID: "c1", DurationMS: 20},
			begun("c2", "write"), &schema.ToolReturnedData{ToolCallID: "c2", DurationMS: 30})
	}
	for _, counts := range []bool{false, true} {
		name := "fold"
		if counts {
			name = "fold and counts"
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h, o, w, batch, alone := schema.NewHead("default", "run-1"), schema.Overview{}, activity.Watch{}, activity.Batch{}, ""
				for i := range log {
					if counts {
						w.Before(&h, &o)
					}
					v := h.ApplyPrepared(&log[i])
					turns := o.Apply(&h, &v)
					if counts {
						w.Accepted(&batch, &h, &v, turns, &alone)
					}
				}
				c.Add(&batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/event")
		})
	}
}
