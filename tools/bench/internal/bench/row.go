package bench

import (
	"fmt"
	"strconv"
)

// Row returns the result as a row of a table: title, our boundaries/s, p50 and p99 in us, raw's rate and p50, both
// ratios. Figures that were not measured are empty.
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

// Verdicts returns the aims of the line as rows of a table: title, aim, figure, limit, verdict. A failed line has a row
// with its error.
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

// number formats a figure with three or four significant digits; nil is empty.
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

// where names the server: "embedded, R1, sync always".
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

// parameter returns a numeric parameter of a line, 0 without one. In a line that was read it is a float64.
func (r *Result) parameter(name string) int {
	switch v := r.Parameters[name].(type) {
	case float64:
		return int(v)
	case int:
		return v
	}
	return 0
}

// cpu returns the processor time of all processes for each boundary, or other counted thing.
func (r *Result) cpu() *float64 {
	if v, ok := r.CPU["all"]; ok {
		return &v
	}
	return nil
}
