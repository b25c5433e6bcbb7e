package serve

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waymarkio/waymark/consumer/activity"
)

// agentMetrics show what agents did, as this daemon folded it.
type agentMetrics struct {
	counters *activity.Counters
	of       []*prometheus.Desc
}

func newAgentMetrics(fleet string, counters *activity.Counters) *agentMetrics {
	m := &agentMetrics{counters: counters}
	for _, d := range activity.Descriptions() {
		m.of = append(m.of, prometheus.NewDesc("waymark_agent_"+d.Name, d.Help, slices.Concat(d.By.Labels(), d.Labels), prometheus.Labels{"fleet": fleet}))
	}
	return m
}

// Describe names the metrics.
func (m *agentMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range m.of {
		out <- d
	}
}

// Collect shows them.
func (m *agentMetrics) Collect(out chan<- prometheus.Metric) {
	descriptions := activity.Descriptions()
	for _, s := range m.counters.Series() {
		if descriptions[s.Metric].Buckets != nil {
			out <- prometheus.MustNewConstHistogram(m.of[s.Metric], s.Count, s.Sum, s.Within, s.Labels...)
			continue
		}
		out <- prometheus.MustNewConstMetric(m.of[s.Metric], prometheus.CounterValue, float64(s.N), s.Labels...)
	}
}
