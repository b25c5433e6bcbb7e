package lint_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// importPage is the file that has the table.
const importPage = "ARCHITECTURE.md"

// importHeader begins each part of the table.
const importHeader = "| package | owns | may import |"

var quotedName = regexp.MustCompile("`([^`]+)`")

// importTable is the table of imports, by package.
type importTable map[string]importRow

type importRow struct {
	floor   int // 0 is the ground
	line    int // in the page
	all     bool
	imports []string
}

// readImports reads the table from the text of the page. The error names each wrong row.
func readImports(page string) (importTable, error) {
	table := importTable{}
	cells := map[string]string{}
	var wrong []error
	within, floor := false, 0
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == importHeader:
			within = true
			continue
		case !strings.HasPrefix(line, "|"):
			within = false
		}
		if !within || strings.Trim(line, "|- ") == "" {
			continue
		}
		columns := strings.Split(strings.Trim(line, "|"), "|")
		packages := quotedName.FindAllStringSubmatch(columns[0], -1)
		if len(columns) != 3 || len(packages) == 0 {
			wrong = append(wrong, fmt.Errorf("%s:%d: a row has three columns and names its package in backquotes", importPage, i+1))
			continue
		}
		for _, p := range packages {
			if _, ok := table[p[1]]; ok {
				wrong = append(wrong, fmt.Errorf("%s:%d: %s has two rows: remove one", importPage, i+1, p[1]))
			}
			table[p[1]] = importRow{floor: floor, line: i + 1}
			cells[p[1]] = columns[2]
		}
		floor++
	}
	if floor == 0 && len(wrong) == 0 {
		return nil, fmt.Errorf("%s has no table with the importHeader %q", importPage, importHeader)
	}
	for from, cell := range cells {
		r := table[from]
		for name := range strings.SplitSeq(cell, ",") {
			switch name = strings.TrimSpace(name); name {
			case "":
			case "all":
				r.all = true
			default:
				to, err := table.named(name)
				switch {
				case err != nil:
					wrong = append(wrong, fmt.Errorf("%s:%d: %w", importPage, r.line, err))
				case table[to].floor >= r.floor:
					wrong = append(wrong, fmt.Errorf("%s:%d: %s may import %s, which is not above it in the table: move a row, or remove the name",
						importPage, r.line, from, to))
				}
				r.imports = append(r.imports, to)
			}
		}
		table[from] = r
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return table, errors.Join(wrong...)
}

// named returns the package that a name in the third column stands for.
func (t importTable) named(name string) (string, error) {
	if _, ok := t[name]; ok {
		return name, nil
	}
	var found []string
	for p := range t {
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

func (t importTable) has(pkg string) bool {
	_, ok := t[pkg]
	return ok
}

// allows tells whether the table lets a package import another. Both have a row.
func (t importTable) allows(from, to string) bool {
	r := t[from]
	return r.all && t[to].floor < r.floor || slices.Contains(r.imports, to)
}
