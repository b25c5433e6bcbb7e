package bench

import (
	"maps"
	"math"
	"slices"
	"time"
)

// percentile returns the p-quantile of sorted times in us; nil without times.
func percentile(sorted []time.Duration, p float64) *float64 {
	if len(sorted) == 0 {
		return nil
	}
	at := int(math.Ceil(p*float64(len(sorted)))) - 1
	v := float64(sorted[max(at, 0)]) / float64(time.Microsecond)
	return &v
}

// median returns the median of values, which it sorts; nil without values.
func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	m := values[len(values)/2]
	if len(values)%2 == 0 {
		m = (values[len(values)/2-1] + m) / 2
	}
	return &m
}

// ratio returns a divided by b; nil if one of them was not measured.
func ratio(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	r := *a / *b
	return &r
}

// figures returns the medians of one side's rounds; nil without rounds.
func figures(samples []Sample) *Figures {
	if len(samples) == 0 {
		return nil
	}
	f := new(Figures)
	var rates, p50 []float64
	var all []time.Duration // high percentiles are taken over all rounds together
	for _, s := range samples {
		f.Count += s.Boundaries
		if s.Elapsed > 0 && s.Boundaries > 0 {
			rates = append(rates, float64(s.Boundaries)/s.Elapsed.Seconds())
		}
		slices.Sort(s.Latencies)
		if v := percentile(s.Latencies, 0.5); v != nil {
			p50 = append(p50, *v)
		}
		all = append(all, s.Latencies...)
	}
	slices.Sort(all)
	if len(all) >= 100 {
		f.P99 = percentile(all, 0.99)
	}
	spreadOf := rates
	if len(rates) == 0 {
		spreadOf = p50
	}
	f.PerSecond, f.P50 = median(rates), median(p50)
	if len(spreadOf) > 1 {
		width := spreadOf[len(spreadOf)-1] - spreadOf[0] // median has sorted them
		f.Spread = ratio(&width, median(spreadOf))
	}
	return f
}

// sortedKeys returns the keys of a map, sorted.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
