package soak

import (
	"cmp"
	"encoding/csv"
	"io"
	"slices"
	"strconv"
	"time"
)

// Key identifies a figure and its owner.
type Key struct {
	// Of is a process or a stream.
	Of string
	// Figure is the measured quantity; it selects the Rule.
	Figure string
}

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Figure, other.Figure), cmp.Compare(k.Of, other.Of))
}

// Point is a figure at a time since the beginning.
type Point struct {
	At    time.Duration
	Value float64
}

// Log keeps figures over time. The zero value is empty and ready.
type Log struct {
	series map[Key][]Point
}

// Add keeps a figure. Those of one key are added in the order of their times.
func (l *Log) Add(at time.Duration, key Key, value float64) {
	if l.series == nil {
		l.series = make(map[Key][]Point)
	}
	l.series[key] = append(l.series[key], Point{At: at, Value: value})
}

// Keys are all there are, by figure.
func (l *Log) Keys() []Key {
	keys := make([]Key, 0, len(l.series))
	for k := range l.series {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.compare)
	return keys
}

// WriteCSV writes all points: seconds, owner, figure, value.
func (l *Log) WriteCSV(w io.Writer) error {
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
