package serve

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// scrapePatience bounds the look at the shards for one scrape.
	scrapePatience = 5 * time.Second
	// serverAway is the silence of a replica that counts as away. It acknowledges each second.
	serverAway = 10 * time.Second
)

// fleetMetrics show the state of each shard of a fleet, from its streams and buckets. Every daemon of the fleet shows
// the same, whether it folds or not.
type fleetMetrics struct {
	svc                          *service.Service
	of                           []shardMetric
	ok, trouble, replicas, saved *prometheus.Desc
	budget, used                 *prometheus.Desc
}

// shardMetric is one value of a shard.
type shardMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*schema.ShardState) float64
	// labels in addition to the shard.
	labels []string
}

// newFleetMetrics returns the metrics of a fleet. Each scrape asks for the state of the service.
func newFleetMetrics(fleet string, svc *service.Service) *fleetMetrics {
	constant := prometheus.Labels{"fleet": fleet}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("waymark_fleet_"+name, help, append([]string{"shard"}, labels...), constant)
	}
	m := &fleetMetrics{
		svc: svc,
		ok:  desc("state_ok", "1 while the shard's streams and buckets can be read; otherwise the shard has no other metrics."),
		trouble: prometheus.NewDesc("waymark_fleet_stream_trouble", "1 for a stream that is missing, changed (flags that Waymark does not set), or silent.",
			[]string{"stream", "trouble"}, constant),
		replicas: prometheus.NewDesc("waymark_fleet_replicas_away", "Replicas of the fleet's streams on a NATS server that the leader has not heard for ten seconds.",
			[]string{"server"}, constant),
		budget: prometheus.NewDesc("waymark_fleet_budget_tokens", "Tokens that the runs of a limit may use in a day; of a limit for each value of a label, those with one value.",
			[]string{"limit"}, constant),
		used: prometheus.NewDesc("waymark_fleet_budget_used_tokens", "Tokens of the budget that are used today; of a limit for each value of a label, those of the value that used most.",
			[]string{"limit"}, constant),
		saved: prometheus.NewDesc("waymark_fleet_last_backup_timestamp_seconds", "When the last backup began; without one, when the fleet's log was made.", nil, constant),
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
	for _, d := range []*prometheus.Desc{m.ok, m.trouble, m.replicas, m.saved, m.budget, m.used} {
		out <- d
	}
	for i := range m.of {
		out <- m.of[i].desc
	}
}

// Collect shows their latest values.
func (m *fleetMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	m.collectStreams(ctx, out)
	reply := m.svc.State(ctx)
	for i := range reply.Limits {
		l, most := &reply.Limits[i], int64(0)
		for _, share := range l.Shares {
			most = max(most, share.DayTokens)
		}
		if l.DayTokens > 0 {
			out <- prometheus.MustNewConstMetric(m.budget, prometheus.GaugeValue, float64(l.DayTokens), l.Flags())
			out <- prometheus.MustNewConstMetric(m.used, prometheus.GaugeValue, float64(most), l.Flags())
		}
	}
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

// collectStreams shows the streams that are not as they should be, the replicas of each server, and the last backup.
func (m *fleetMetrics) collectStreams(ctx context.Context, out chan<- prometheus.Metric) {
	streams := m.svc.Streams(ctx)
	away := make(map[string]float64)
	for i := range streams {
		s := &streams[i]
		if trouble := troubleOf(s); trouble != "" {
			out <- prometheus.MustNewConstMetric(m.trouble, prometheus.GaugeValue, 1, s.Stream, trouble)
		}
		if s.Info == nil || s.Info.Cluster == nil {
			continue
		}
		for _, r := range s.Info.Cluster.Replicas {
			unheard := r.Active == 0 || r.Active > serverAway // 0: a new leader has never heard it
			away[r.Name] += map[bool]float64{true: 1}[r.Offline || !r.Current && unheard]
		}
	}
	for server, n := range away {
		out <- prometheus.MustNewConstMetric(m.replicas, prometheus.GaugeValue, n, server)
	}
	if saved := m.svc.Saved(ctx); !saved.IsZero() {
		out <- prometheus.MustNewConstMetric(m.saved, prometheus.GaugeValue, float64(saved.UnixMilli())/1000)
	}
}

// troubleOf is the value of the label trouble; empty for a stream without any.
func troubleOf(s *kvstore.Inspected) string {
	switch {
	case s.Err == nil:
		return ""
	case errors.Is(s.Err, kvstore.ErrStreamMissing):
		return "missing"
	case s.Info != nil:
		return "changed"
	}
	return "silent"
}
