package bench

import (
	"fmt"
	"strconv"
)

// Row is the result as a row of a table: title, our boundaries/s, p50 and p99 in us, those of raw (rate and p50). What was
// not measured is empty.
func (r *Result) Row() []string {
	row := []string{title(r.Case, r.Parameters), "", "", "", "", ""}
	if f := r.Ours; f != nil {
		row[1], row[2], row[3] = number(f.PerSecond), number(f.P50), number(f.P99)
	}
	if f := r.Raw; f != nil {
		row[4], row[5] = number(f.PerSecond), number(f.P50)
	}
	return row
}

// Verdicts says for each aim of the line, in words, whether it was reached; or why the line failed.
func (r *Result) Verdicts() []string {
	name := title(r.Case, r.Parameters) + ": "
	if r.Error != "" {
		return []string{name + "failed"}
	}
	list := make([]string, len(r.Aims))
	for i, a := range r.Aims {
		list[i] = name + a.String()
	}
	return list
}

// String says what was measured beside what is to be reached.
func (a Aim) String() string {
	verdict := "missed"
	if a.Reached {
		verdict = "reached"
	}
	switch {
	case a.AtMost != nil:
		return fmt.Sprintf("%s: %s of at most %s, %s", a.What, number(&a.Value), number(a.AtMost), verdict)
	case a.AtLeast != nil:
		return fmt.Sprintf("%s: %s of at least %s, %s", a.What, number(&a.Value), number(a.AtLeast), verdict)
	}
	return a.What + ": " + number(&a.Value)
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
