package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// section is a table of figures: at most two columns, so that a comparison keeps to 80 characters.
type section struct {
	title   string
	columns []string
	rows    []row
	limit   int // rows to print, the first ones; 0 is all
}

type row struct {
	name    string
	figures []int
	total   bool // behind the others
}

func (s *section) add(name string, figures ...int) {
	s.rows = append(s.rows, row{name: name, figures: figures})
}

// sum adds a row with the sum of all rows.
func (s *section) sum(name string) {
	sums := make([]int, len(s.columns))
	for _, r := range s.rows {
		for i, n := range r.figures {
			sums[i] += n
		}
	}
	s.rows = append(s.rows, row{name: name, figures: sums, total: true})
}

// nameWidth leaves six columns of figures room within 80 characters.
const nameWidth = 32

func printSections(out io.Writer, sections []section) {
	for i, s := range sections {
		printTitle(out, i, s.title)
		_, _ = fmt.Fprintf(out, "%-*s", nameWidth, "")
		for _, c := range s.columns {
			_, _ = fmt.Fprintf(out, " %10s", c)
		}
		_, _ = fmt.Fprintln(out)
		for _, r := range s.printed() {
			_, _ = fmt.Fprint(out, fitted(r.name))
			for _, n := range r.figures {
				_, _ = fmt.Fprintf(out, " %10d", n)
			}
			_, _ = fmt.Fprintln(out)
		}
	}
}

// printDifference prints each figure before, now, and how much more it is now. A row that one tree lacks counts as 0.
func printDifference(out io.Writer, revision string, before, now []section) {
	_, _ = fmt.Fprintf(out, "%s, now, and the difference\n\n", revision)
	for i, title := range titles(now, before) {
		old, s := titled(before, title), titled(now, title)
		columns := slices.MaxFunc([][]string{old.columns, s.columns}, func(a, b []string) int { return len(a) - len(b) })
		printTitle(out, i, title)
		_, _ = fmt.Fprintf(out, "%-*s", nameWidth, "")
		for _, c := range columns {
			_, _ = fmt.Fprintf(out, " %23s", c)
		}
		_, _ = fmt.Fprintln(out)
		for _, name := range names(s, old) {
			_, _ = fmt.Fprint(out, fitted(name))
			for column := range columns {
				a, b := old.figure(name, column), s.figure(name, column)
				_, _ = fmt.Fprintf(out, " %7d %7d %+7d", a, b, b-a)
			}
			_, _ = fmt.Fprintln(out)
		}
	}
}

// titles are those of both, in the order of the first.
func titles(now, before []section) []string {
	var list []string
	for _, s := range slices.Concat(now, before) {
		if !slices.Contains(list, s.title) {
			list = append(list, s.title)
		}
	}
	return list
}

func titled(sections []section, title string) section {
	for _, s := range sections {
		if s.title == title {
			return s
		}
	}
	return section{}
}

func (s section) printed() []row {
	if s.limit == 0 {
		return s.rows
	}
	return s.rows[:min(s.limit, len(s.rows))]
}

func printTitle(out io.Writer, i int, title string) {
	if i > 0 {
		_, _ = fmt.Fprintln(out)
	}
	_, _ = fmt.Fprintln(out, title)
}

// fitted is a name in its column. One that is too long has a line of its own.
func fitted(name string) string {
	if len(name) > nameWidth {
		return name + "\n" + strings.Repeat(" ", nameWidth)
	}
	return fmt.Sprintf("%-*s", nameWidth, name)
}

func (s section) figure(name string, column int) int {
	for _, r := range s.rows {
		if r.name == name {
			return r.figures[column]
		}
	}
	return 0
}

// names are those of the rows of both, totals last.
func names(now, before section) []string {
	var list, totals []string
	for _, r := range slices.Concat(now.printed(), before.printed()) {
		switch {
		case slices.Contains(list, r.name) || slices.Contains(totals, r.name):
		case r.total:
			totals = append(totals, r.name)
		default:
			list = append(list, r.name)
		}
	}
	return append(list, totals...)
}
