package bench

import "strconv"

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
