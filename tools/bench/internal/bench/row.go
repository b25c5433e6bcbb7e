package bench

import (
	"fmt"
	"strconv"
)

// Row is the result as a row of a table: title, our boundaries/s, p50 and p99 in us, those of raw (rate and p50), rate
// and p50 by those of raw. What was not measured is empty.
func (r *Result) Row() []string {
	row := []string{title(r.Case, r.Parameters), "", "", "", "", "", number(r.RateRatio), number(r.P50Ratio)}
	if f := r.Ours; f != nil {
		row[1], row[2], row[3] = number(f.PerSecond), number(f.P50), number(f.P99)
	}
	if f := r.Raw; f != nil {
		row[4], row[5] = number(f.PerSecond), number(f.P50)
	}
	return row
}

// Verdicts are the aims of the line as rows of a table: title, what was measured, the figure, what is to be reached and
// whether it was. A line that failed has one that says so.
func (r *Result) Verdicts() [][]string {
	name := title(r.Case, r.Parameters)
	if r.Error != "" {
		return [][]string{{name, "", "", "", "failed"}}
	}
	list := make([][]string, len(r.Aims))
	for i, a := range r.Aims {
		list[i] = []string{name, a.What, number(&a.Value), a.limit(), a.verdict()}
	}
	return list
}

// number is a figure with three or four digits that count; nothing for none.
func number(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v >= 100 || *v <= -100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	case *v >= 10 || *v <= -10:
		return strconv.FormatFloat(*v, 'f', 1, 64)
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// where is the server in words: "embedded, R1, sync always".
func (r *Result) where() string {
	s := fmt.Sprintf("%s, %s, sync %s", r.Server, r.Replicas, r.Sync)
	if r.Shards > 1 {
		s += fmt.Sprintf(", %d shards", r.Shards)
	}
	if r.Daemons > 0 {
		s += fmt.Sprintf(", %d daemon processes", r.Daemons)
	}
	return s
}

// parameter is a number among the parameters of a line, 0 for none: a float64 where the line was read.
func (r *Result) parameter(name string) int {
	switch v := r.Parameters[name].(type) {
	case float64:
		return int(v)
	case int:
		return v
	}
	return 0
}

// cpu is that of all processes for each boundary, or whatever is counted.
func (r *Result) cpu() *float64 {
	if v, ok := r.CPU["all"]; ok {
		return &v
	}
	return nil
}
