package service

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waymarkio/waymark/schema"
)

// RecoveryStats counts answered takeovers by duration: from the request's arrival to the last reply, with view events
// at the client's pace. It may be read at any time.
type RecoveryStats struct {
	// Took has their durations.
	Took prometheus.Histogram

	mu    sync.Mutex
	state schema.FleetRecovery
}

func newRecoveryStats(fleet string) RecoveryStats {
	return RecoveryStats{Took: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "waymark_fleet_recovery_duration_seconds",
		Help:        "Takeovers, from the request's arrival to the last reply; with content at the client's pace.",
		ConstLabels: prometheus.Labels{"fleet": fleet},
		Buckets:     []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
	})}
}

// observe counts one takeover.
func (r *RecoveryStats) observe(run string, began, ended time.Time) {
	took := max(ended.Sub(began), 0)
	r.Took.Observe(took.Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = schema.FleetRecovery{
		Count: r.state.Count + 1, LastMS: float64(took.Microseconds()) / 1000, LastRun: run, LastAt: schema.FormatTime(ended),
	}
}

// last is the part of the verb fleet's answer about them.
func (r *RecoveryStats) last() schema.FleetRecovery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}
