package layers

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Page is the file that has the table.
const Page = "ARCHITECTURE.md"

// header begins each part of the table.
const header = "| package | owns | may import |"

var quoted = regexp.MustCompile("`([^`]+)`")

// Table is the table of imports.
type Table struct {
	rows map[string]row
}

type row struct {
	floor   int // 0 is the ground
	line    int // in the page
	all     bool
	imports []string
}

// Read reads the table from the text of the page. The error names each wrong row.
func Read(page string) (Table, error) {
	table := Table{rows: map[string]row{}}
	cells := map[string]string{}
	var wrong []error
	within, floor := false, 0
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == header:
			within = true
			continue
		case !strings.HasPrefix(line, "|"):
			within = false
		}
		if !within || strings.Trim(line, "|- ") == "" {
			continue
		}
		columns := strings.Split(strings.Trim(line, "|"), "|")
		packages := quoted.FindAllStringSubmatch(columns[0], -1)
		if len(columns) != 3 || len(packages) == 0 {
			wrong = append(wrong, fmt.Errorf("%s:%d: a row has three columns and names its package in backquotes", Page, i+1))
			continue
		}
		for _, p := range packages {
			if _, ok := table.rows[p[1]]; ok {
				wrong = append(wrong, fmt.Errorf("%s:%d: %s has two rows: remove one", Page, i+1, p[1]))
			}
			table.rows[p[1]] = row{floor: floor, line: i + 1}
			cells[p[1]] = columns[2]
		}
		floor++
	}
	if floor == 0 && len(wrong) == 0 {
		return Table{}, fmt.Errorf("%s has no table with the header %q", Page, header)
	}
	for from, cell := range cells {
		r := table.rows[from]
		for name := range strings.SplitSeq(cell, ",") {
			switch name = strings.TrimSpace(name); name {
			case "":
			case "all":
				r.all = true
			default:
				to, err := table.named(name)
				switch {
				case err != nil:
					wrong = append(wrong, fmt.Errorf("%s:%d: %w", Page, r.line, err))
				case table.rows[to].floor >= r.floor:
					wrong = append(wrong, fmt.Errorf("%s:%d: %s may import %s, which is not above it in the table: move a row, or remove the name",
						Page, r.line, from, to))
				}
				r.imports = append(r.imports, to)
			}
		}
		table.rows[from] = r
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return table, errors.Join(wrong...)
}

// named returns the package that a name in the third column stands for.
func (t Table) named(name string) (string, error) {
	if _, ok := t.rows[name]; ok {
		return name, nil
	}
	var found []string
	for p := range t.rows {
		if strings.HasSuffix(p, "/"+name) {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%q is no package of the table: write the end of a package's path, or all", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%q is one of %s: write more of the path", name, strings.Join(found, ", "))
}

// Has tells whether a package, by its folder, has a row.
func (t Table) Has(pkg string) bool {
	_, ok := t.rows[pkg]
	return ok
}

// Line is the line of the page with a package's row.
func (t Table) Line(pkg string) int { return t.rows[pkg].line }

// Packages are all packages of the table, from the ground up.
func (t Table) Packages() []string {
	var all []string
	for p := range t.rows {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b string) int {
		if d := t.rows[a].floor - t.rows[b].floor; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return all
}

// Below tells whether a package stands in a row below another's, or in the same: an import of it would go upwards.
func (t Table) Below(pkg, other string) bool { return t.rows[pkg].floor >= t.rows[other].floor }

// Allows tells whether the table lets a package import another. Both have a row.
func (t Table) Allows(from, to string) bool {
	r := t.rows[from]
	return r.all && !t.Below(to, from) || slices.Contains(r.imports, to)
}
