package service

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// Stats counts what a service did since it was made. Every field may be read at any time.
type Stats struct {
	// What reads met.
	reader.Stats
	// Requests received, by verb.
	Recovers, Gets, Lists, Histories, RecordPages, Settles, Claims, Inputs, Cancels, Handoffs, Marks, Forks, Signals, Fleets, Executors, Erases, Cleanups, Pauses, Limits, Schedules atomic.Int64
	// Takeovers are epochs opened.
	Takeovers atomic.Int64
	// ClaimsGiven are claims answered with a run; ClaimsLimited came when the rate was used up. ClaimsLost are runs that
	// another executor was found to have, or that could not be read.
	ClaimsGiven, ClaimsLimited, ClaimsLost atomic.Int64
	// Refused counts control events whose compare-and-set found another event.
	Refused atomic.Int64
	// Working and Queued requests now.
	Working, Queued atomic.Int64

	// Recovery has the durations of answered takeovers: from the request's arrival to the last reply, with view events at
	// the client's pace.
	Recovery prometheus.Histogram

	errors map[schema.Code]*atomic.Int64
}

// codes are the labels of Errors; any other code counts as internal.
var codes = []schema.Code{
	schema.CodeBadRequest, schema.CodeForbidden, schema.CodeNotFound, schema.CodeConflict, schema.CodeRunEnded,
	schema.CodeWrongAgent, schema.CodeTooLarge, schema.CodeOverloaded, schema.CodeInternal, schema.CodeUnavailable,
	schema.CodeDamaged, schema.CodeStorageFull, schema.CodeNotInDoubt, schema.CodeUnknownFleet,
	schema.CodeUnknownInterrupt, schema.CodeInvalidAnswer, schema.CodeUnknownHandoff, schema.CodeHandoffTaken, schema.CodeTooManySignals, schema.CodeRunFull, schema.CodeQuarantined,
	schema.CodePointNotFound, schema.CodePointAmbiguous, schema.CodePointPurged, schema.CodeErased, schema.CodeNeeded, schema.CodePaused,
}

func newStats(fleet string) *Stats {
	s := &Stats{errors: make(map[schema.Code]*atomic.Int64, len(codes)), Recovery: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "waymark_fleet_recovery_duration_seconds",
		Help:        "Takeovers, from the request's arrival to the last reply; with content at the client's pace.",
		ConstLabels: prometheus.Labels{"fleet": fleet},
		Buckets:     []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
	})}
	for _, code := range codes {
		s.errors[code] = new(atomic.Int64)
	}
	return s
}

// Errors returns the number of error replies by code. Every code is there.
func (s *Stats) Errors() map[schema.Code]int64 {
	counts := make(map[schema.Code]int64, len(s.errors))
	for code, n := range s.errors {
		counts[code] = n.Load()
	}
	return counts
}

func (s *Stats) countError(code schema.Code) {
	n, ok := s.errors[code]
	if !ok {
		n = s.errors[schema.CodeInternal]
	}
	n.Add(1)
}
