package schema_test

import (
	"testing"

	"github.com/waymarkio/waymark/schema"
)

// BenchmarkOverview measures the cost of the overview on top of the fold, per event.
func BenchmarkOverview(b *testing.B) {
	var log []schema.Prepared
	ordinaryRun(b, 20, func(rec *schema.Record) { log = append(log, schema.Prepare(schema.NoKeys, rec)) })
	b.Run("head", func(b *testing.B) {
		for b.Loop() {
			h := schema.NewHead("default", "run-01hq3v8j5k")
			for i := range log {
				h.ApplyPrepared(&log[i])
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/event")
	})
	b.Run("overview", func(b *testing.B) {
		for b.Loop() {
			h, o := schema.NewHead("default", "run-01hq3v8j5k"), schema.Overview{}
			for i := range log {
				v := h.ApplyPrepared(&log[i])
				o.Apply(&h, &v)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/event")
	})
}
