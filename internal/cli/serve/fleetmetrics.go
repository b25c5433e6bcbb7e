package serve

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waymarkio/waymark/schema"
)

// scrapePatience bounds the look at the shards for one scrape.
const scrapePatience = 5 * time.Second

// fleetMetrics show the state of each shard of a fleet, from its streams and buckets. Every daemon of the fleet shows
// the same, whether it folds or not.
type fleetMetrics struct {
	state func(context.Context) *schema.FleetReply
	of    []shardMetric
	ok    *prometheus.Desc
}

// shardMetric is one value of a shard.
type shardMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*schema.ShardState) float64
	// labels in addition to the shard.
	labels []string
}

// newFleetMetrics returns the metrics of a fleet. Each scrape calls state, which must be cheap.
func newFleetMetrics(fleet string, state func(context.Context) *schema.FleetReply) *fleetMetrics {
	constant := prometheus.Labels{"fleet": fleet}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("waymark_fleet_"+name, help, append([]string{"shard"}, labels...), constant)
	}
	m := &fleetMetrics{
		state: state,
		ok:    desc("state_ok", "1 while the shard's streams and buckets can be read; otherwise the shard has no other metrics."),
	}
	gauge := func(name, help string, value func(*schema.ShardState) float64) {
		m.of = append(m.of, shardMetric{desc(name, help), prometheus.GaugeValue, value, nil})
	}
	counter := func(name, help string, value func(*schema.ShardState) int64) {
		m.of = append(m.of, shardMetric{desc(name, help), prometheus.CounterValue, func(s *schema.ShardState) float64 { return float64(value(s)) }, nil})
	}
	gauge("waiting_events", "Events accepted but not yet checkpointed (a recovery includes them).",
		func(s *schema.ShardState) float64 { return float64(s.Waiting) })
	gauge("waiting_age_seconds", "Age of the oldest event accepted but not yet checkpointed; 0 if there is none.",
		func(s *schema.ShardState) float64 { return float64(s.WaitingMS) / 1000 })
	gauge("quota_bytes", "What log, segments, checkpoints and blobs of the shard may have each; 0 is unlimited.", func(s *schema.ShardState) float64 { return float64(s.QuotaBytes) })
	part := func(name string, value func(*schema.ShardState) int64) {
		m.of = append(m.of, shardMetric{
			desc("bytes", "Bytes stored now, by part: log, segments, checkpoints, blobs (the shard's share of the fleet's).", "part"), prometheus.GaugeValue,
			func(s *schema.ShardState) float64 { return float64(value(s)) },
			[]string{name},
		})
	}
	part("log", func(s *schema.ShardState) int64 { return s.LogBytes })
	part("segments", func(s *schema.ShardState) int64 { return s.SegmentBytes })
	part("checkpoints", func(s *schema.ShardState) int64 { return s.CheckpointBytes })
	part("blobs", func(s *schema.ShardState) int64 { return s.BlobBytes })
	gauge("checkpoint_coverage_ratio", "Share of the boundaries, folded or waiting, that are checkpointed; 1 means all.",
		func(s *schema.ShardState) float64 { return s.Totals.Coverage(s.Waiting) })
	counter("boundaries_total", "Boundaries folded and accepted, by any daemon.", func(s *schema.ShardState) int64 { return s.Totals.Boundaries })
	counter("boundaries_checkpointed_total", "Boundaries covered by a checkpoint.", func(s *schema.ShardState) int64 { return s.Totals.Covered })
	counter("runs_completed_total", "Runs completed, folded by any daemon.", func(s *schema.ShardState) int64 { return s.Totals.Completed })
	counter("runs_completed_by_tool_total", "Runs completed by a call of their completion tool.", func(s *schema.ShardState) int64 { return s.Totals.ByTool })
	counter("runs_limited_total", "Runs that ended at a limit.", func(s *schema.ShardState) int64 { return s.Totals.Limited })
	counter("runs_limited_summed_up_total", "Runs that ended at a limit after a summary turn, with a summary.", func(s *schema.ShardState) int64 { return s.Totals.SummedUp })
	counter("events_total", "Events folded, accepted or not, by any daemon.", func(s *schema.ShardState) int64 { return s.Totals.Events })
	counter("payload_bytes_total", "Bytes of the bodies of folded events.", func(s *schema.ShardState) int64 { return s.Totals.PayloadBytes })
	counter("checkpoint_puts_total", "Checkpoints put.", func(s *schema.ShardState) int64 { return s.Totals.Checkpoints })
	stored := desc("stored_bytes_total", "Bytes stored for folded events, in one replica, by part: log, segments, checkpoints.", "part")
	for part, value := range map[string]func(*schema.FoldTotals) int64{
		"log":         func(t *schema.FoldTotals) int64 { return t.LogBytes },
		"segments":    func(t *schema.FoldTotals) int64 { return t.SegmentBytes },
		"checkpoints": func(t *schema.FoldTotals) int64 { return t.CheckpointBytes },
	} {
		m.of = append(m.of, shardMetric{
			stored, prometheus.CounterValue,
			func(s *schema.ShardState) float64 { return float64(value(&s.Totals)) },
			[]string{part},
		})
	}
	return m
}

// Describe names the metrics.
func (m *fleetMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.ok
	for i := range m.of {
		out <- m.of[i].desc
	}
}

// Collect shows their latest values.
func (m *fleetMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	reply := m.state(ctx)
	for i := range reply.Shards {
		s := &reply.Shards[i]
		shard := strconv.Itoa(s.Shard)
		if s.Error != "" {
			out <- prometheus.MustNewConstMetric(m.ok, prometheus.GaugeValue, 0, shard)
			continue
		}
		out <- prometheus.MustNewConstMetric(m.ok, prometheus.GaugeValue, 1, shard)
		for j := range m.of {
			v := &m.of[j]
			out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value(s), append([]string{shard}, v.labels...)...)
		}
	}
}
