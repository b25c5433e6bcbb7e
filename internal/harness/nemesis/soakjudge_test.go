//go:build unix

package nemesis_test

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// How a soak judges whether a figure rose for good: if the median of the last third of the judged time is above that of
// the first third, and the robust slope (Theil-Sen: the median of the slopes between any two points) over the same time
// is, too. A figure that rises once and stays, like a filled cache, has risen by the medians and not by the slope; a
// sawtooth changes neither. A steady rise above what its rule allows, from the middle of the first third to the middle
// of the last, is always found.

// soakKey identifies a figure and its owner.
type soakKey struct {
	// Of is a process or a stream.
	Of string
	// Figure is the measured quantity; it selects the rule.
	Figure string
}

func (k soakKey) compare(other soakKey) int {
	return cmp.Or(cmp.Compare(k.Figure, other.Figure), cmp.Compare(k.Of, other.Of))
}

// soakPoint is a figure at a time since the beginning.
type soakPoint struct {
	At    time.Duration
	Value float64
}

// soakLog keeps figures over time. The zero value is empty and ready.
type soakLog struct {
	series map[soakKey][]soakPoint
}

// Add keeps a figure. Those of one key are added in the order of their times.
func (l *soakLog) Add(at time.Duration, key soakKey, value float64) {
	if l.series == nil {
		l.series = make(map[soakKey][]soakPoint)
	}
	l.series[key] = append(l.series[key], soakPoint{At: at, Value: value})
}

// Keys are all there are, by figure.
func (l *soakLog) Keys() []soakKey {
	keys := make([]soakKey, 0, len(l.series))
	for k := range l.series {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, soakKey.compare)
	return keys
}

// WriteCSV writes all points: seconds, owner, figure, value.
func (l *soakLog) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"seconds", "of", "figure", "value"}); err != nil {
		return err
	}
	for _, k := range l.Keys() {
		for _, p := range l.series[k] {
			line := []string{strconv.FormatFloat(p.At.Seconds(), 'f', 1, 64), k.Of, k.Figure, strconv.FormatFloat(p.Value, 'f', -1, 64)}
			if err := out.Write(line); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

// soakRule is how far a figure may rise over the judged time.
type soakRule struct {
	Figure string
	// Share of its median in the first third.
	Share float64
	// Least is how much it may rise at any rate, as far as the figure varies by itself. The larger of both counts.
	Least float64
	// PerRun is added for each run removed during that time.
	PerRun float64
}

// soakVerdict is the result for one figure.
type soakVerdict struct {
	Key soakKey
	// Points that were judged.
	Points int
	// First and Last are the medians of the first and the last third.
	First, Last float64
	// Steady is how far the robust slope rises from the middle of the first third to the middle of the last.
	Steady float64
	// Allowed is how far it may rise.
	Allowed float64
	// Whole: there are enough points, from the begin to the end. Judged: there is a rule, too. Rose: it rose further.
	Whole, Judged, Rose bool
}

// fewest is the smallest meaningful number of points: some in each third.
const fewest = 9

// mostPoints bounds the work of the slope, which uses all pairs: of more points some are left out, evenly.
const mostPoints = 600

// Judge judges all figures from a time on, except those that begin a tenth of the time later or end so much earlier:
// they belong to a restarted process, which has its own beginning. removed is how many runs were removed from then to
// the end, two thirds of them between the middles of the first and the last third.
func (l *soakLog) Judge(from time.Duration, rules []soakRule, removed int) []soakVerdict {
	var verdicts []soakVerdict
	last := from
	for _, points := range l.series {
		last = max(last, points[len(points)-1].At)
	}
	tenth := (last - from) / 10
	for _, k := range l.Keys() {
		points := slices.DeleteFunc(slices.Clone(l.series[k]), func(p soakPoint) bool { return p.At < from })
		v := soakVerdict{Key: k, Points: len(points)}
		at := slices.IndexFunc(rules, func(r soakRule) bool { return r.Figure == k.Figure })
		if len(points) >= fewest {
			begin, end := points[0].At, points[len(points)-1].At
			third := (end - begin) / 3
			v.First = median(between(points, begin, begin+third))
			v.Last = median(between(points, end-third, end))
			v.Steady = slope(points) * (end - begin - third).Seconds()
			v.Whole = begin <= from+tenth && end >= last-tenth
			if v.Whole && at >= 0 {
				v.Judged = true
				v.Allowed = max(rules[at].Share*v.First, rules[at].Least) + rules[at].PerRun*float64(removed)*2/3
				v.Rose = v.Last-v.First > v.Allowed && v.Steady > v.Allowed
			}
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

func between(points []soakPoint, from, to time.Duration) []float64 {
	var values []float64
	for _, p := range points {
		if p.At >= from && p.At <= to {
			values = append(values, p.Value)
		}
	}
	return values
}

// median of values, which it sorts. Those of none is 0.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// slope is the median of the slopes between any two points, a second.
func slope(points []soakPoint) float64 {
	if step := (len(points) + mostPoints - 1) / mostPoints; step > 1 {
		var some []soakPoint
		for i := 0; i < len(points); i += step {
			some = append(some, points[i])
		}
		points = some
	}
	slopes := make([]float64, 0, len(points)*(len(points)-1)/2)
	for i := range points {
		for j := i + 1; j < len(points); j++ {
			if d := (points[j].At - points[i].At).Seconds(); d > 0 {
				slopes = append(slopes, (points[j].Value-points[i].Value)/d)
			}
		}
	}
	return median(slopes)
}

// String is one line.
func (v soakVerdict) String() string {
	return fmt.Sprintf("%s of %s: %.0f in the first third, %.0f in the last (%+.0f; steadily %+.0f); allowed are %+.0f", v.Key.Figure, v.Key.Of,
		v.First, v.Last, v.Last-v.First, v.Steady, v.Allowed)
}
