package service

import (
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// recoveryBounds are the upper bounds of the buckets of [RecoveryStats].
var recoveryBounds = []time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// RecoveryStats counts answered takeovers by duration: from the request's arrival to the last reply, with view events
// at the client's pace. It may be read at any time.
type RecoveryStats struct {
	mu      sync.Mutex
	buckets []int64
	count   int64
	sum     time.Duration
	last    time.Duration
	lastAt  time.Time
	lastRun string
}

// observe counts one takeover.
func (r *RecoveryStats) observe(run string, began, ended time.Time) {
	took := max(ended.Sub(began), 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets == nil {
		r.buckets = make([]int64, len(recoveryBounds))
	}
	if i, _ := slices.BinarySearch(recoveryBounds, took); i < len(recoveryBounds) {
		r.buckets[i]++
	}
	r.count++
	r.sum += took
	r.last, r.lastAt, r.lastRun = took, ended, run
}

// Histogram returns the number of takeovers, the sum of their durations in seconds, and how many took at most each
// bound.
func (r *RecoveryStats) Histogram() (count uint64, sum float64, within map[float64]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	within = make(map[float64]uint64, len(recoveryBounds))
	below := int64(0)
	for i, bound := range recoveryBounds {
		if r.buckets != nil {
			below += r.buckets[i]
		}
		within[bound.Seconds()] = uint64(below) //nolint:gosec // a count
	}
	return uint64(r.count), r.sum.Seconds(), within //nolint:gosec // a count
}

// Last returns the duration of the last takeover, and when it ended; the zero time before the first.
func (r *RecoveryStats) Last() (took time.Duration, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.lastAt
}

// state is the part of the verb fleet's answer about them.
func (r *RecoveryStats) state() schema.FleetRecovery {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		return schema.FleetRecovery{}
	}
	return schema.FleetRecovery{
		Count: r.count, LastMS: float64(r.last.Microseconds()) / 1000, LastRun: r.lastRun, LastAt: schema.FormatTime(r.lastAt),
	}
}
