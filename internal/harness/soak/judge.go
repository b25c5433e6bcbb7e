package soak

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Rule is how far a figure may rise over the judged time.
type Rule struct {
	Figure string
	// Share of its median in the first third.
	Share float64
	// Least is how much it may rise at any rate, as far as the figure varies by itself. The larger of both counts.
	Least float64
	// PerRun is added for each run removed during that time.
	PerRun float64
}

// Verdict is the result for one figure.
type Verdict struct {
	Key
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
func (l *Log) Judge(from time.Duration, rules []Rule, removed int) []Verdict {
	var verdicts []Verdict
	last := from
	for _, points := range l.series {
		last = max(last, points[len(points)-1].At)
	}
	tenth := (last - from) / 10
	for _, k := range l.Keys() {
		points := slices.DeleteFunc(slices.Clone(l.series[k]), func(p Point) bool { return p.At < from })
		v := Verdict{Key: k, Points: len(points)}
		at := slices.IndexFunc(rules, func(r Rule) bool { return r.Figure == k.Figure })
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

func between(points []Point, from, to time.Duration) []float64 {
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
func slope(points []Point) float64 {
	if step := (len(points) + mostPoints - 1) / mostPoints; step > 1 {
		var some []Point
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
func (v Verdict) String() string {
	return fmt.Sprintf("%s of %s: %.0f in the first third, %.0f in the last (%+.0f; steadily %+.0f); allowed are %+.0f", v.Figure, v.Of,
		v.First, v.Last, v.Last-v.First, v.Steady, v.Allowed)
}

// Write writes verdicts as a table for a person. Figures with too few points, or for a part of the time only, are
// left out.
func Write(w io.Writer, verdicts []Verdict) error {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"figure", "of", "points", "first third", "last third", "rose", "steadily", "allowed", ""})
	for _, v := range verdicts {
		if !v.Whole {
			continue
		}
		said, allowed := "", ""
		switch {
		case v.Rose:
			said = "ROSE"
		case v.Judged:
			said = "flat"
		}
		if v.Judged {
			allowed = short(v.Allowed)
		}
		t.AppendRow(table.Row{v.Figure, v.Of, v.Points, short(v.First), short(v.Last), short(v.Last - v.First), short(v.Steady), allowed, said})
	}
	_, err := io.WriteString(w, t.Render()+"\n")
	return err
}

// short is a number that a person can read: from ten thousand on in thousands of 1,024.
func short(n float64) string {
	unit := 0
	for ; (n >= 10_000 || n <= -10_000) && unit < 3; unit++ {
		n /= 1024
	}
	return fmt.Sprintf("%.*f%s", min(unit, 1), n, [...]string{"", " Ki", " Mi", " Gi"}[unit])
}
