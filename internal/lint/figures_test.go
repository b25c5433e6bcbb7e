package lint_test

import (
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measuredBy is a command that measures: a target of the Makefile, or the program of tools/bench with a case.
var measuredBy = regexp.MustCompile(`^(?:make (bench[a-z-]*)|\.bin/bench run ([a-z]+))(?: |$)`)

// unmeasured finds lines of a table of figures that do not say when and by which command they were measured.
func unmeasured(name, text, makefile string) []string {
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", name, err)}
	}
	if len(rows) < 2 || rows[0][0] != "date" || rows[0][1] != "command" {
		return []string{name + ": begin it with the columns date and command, and a line of figures"}
	}
	var findings []string
	for i, row := range rows[1:] {
		if _, err := time.Parse(time.DateOnly, row[0]); err != nil {
			findings = append(findings, fmt.Sprintf("%s:%d: %q is no date", name, i+2, row[0]))
		}
		switch by := measuredBy.FindStringSubmatch(row[1]); {
		case by == nil:
			findings = append(findings, fmt.Sprintf("%s:%d: %q measures nothing: name the command", name, i+2, row[1]))
		case by[1] != "" && !strings.Contains(makefile, "\n"+by[1]+":"):
			findings = append(findings, fmt.Sprintf("%s:%d: the Makefile has no target %s", name, i+2, by[1]))
		}
	}
	return findings
}

func TestFigures_EachLine_NamesItsCommand(t *testing.T) {
	t.Parallel()
	makefile, page, tables := read(t, "Makefile"), read(t, "docs/performance.md"), 0
	walk(t, func(name string) {
		table, ok := strings.CutPrefix(name, "docs/performance/")
		if !ok || !strings.HasSuffix(name, ".csv") {
			return
		}
		tables++
		report(t, unmeasured(name, read(t, name), makefile))
		require.Contains(t, page, "(performance/"+table+")", "the page does not name %s", name)
	})
	require.Positive(t, tables)
}

var updateTables = flag.Bool("update", false, "write the tables of docs/performance.md again")

// pageTable is a table of a page that a file of figures feeds: a comment names the file and the columns, the table follows.
var pageTable = regexp.MustCompile(`(<!-- table (\S+\.csv): ([^>]*) -->\n)((?:\|.*\n)*)`)

// withTables writes the tables of a page again. A file's first line has the titles.
func withTables(page string, readFile func(name string) string) (string, error) {
	var failed error
	page = pageTable.ReplaceAllStringFunc(page, func(found string) string {
		parts := pageTable.FindStringSubmatch(found)
		rows, err := csv.NewReader(strings.NewReader(readFile(parts[2]))).ReadAll()
		if err != nil {
			failed = fmt.Errorf("%s: %w", parts[2], err)
			return found
		}
		var table strings.Builder
		table.WriteString(parts[1])
		columns := strings.Split(strings.Join(strings.Fields(parts[3]), " "), ", ")
		for i, row := range rows {
			for _, c := range columns {
				at := slices.Index(rows[0], c)
				if at < 0 {
					failed = fmt.Errorf("%s has no column %q", parts[2], c)
					return found
				}
				table.WriteString("| " + row[at] + " ")
			}
			table.WriteString("|\n")
			if i == 0 {
				table.WriteString(strings.Repeat("|---", len(columns)) + "|\n")
			}
		}
		return table.String()
	})
	return page, failed
}

func TestFigures_PageTables_AreTheFiles(t *testing.T) {
	t.Parallel()
	const name = "docs/performance.md"
	page := read(t, name)
	want, err := withTables(page, func(file string) string { return read(t, "docs/performance/"+file) })
	require.NoError(t, err)
	if *updateTables {
		require.NoError(t, os.WriteFile("../../"+name, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, page, "go test ./internal/lint -run PageTables -update writes the tables again")
}

func TestWithTables_EachKind_IsWrittenOrFound(t *testing.T) {
	t.Parallel()
	file := func(string) string { return "date,a,b\nd,1,2\nd,3,\n" }
	got, err := withTables("x\n<!-- table a.csv: b,\n a -->\n| old |\n\ny\n", file)
	require.NoError(t, err)
	require.Equal(t, "x\n<!-- table a.csv: b,\n a -->\n| b | a |\n|---|---|\n| 2 | 1 |\n|  | 3 |\n\ny\n", got)
	again, err := withTables(got, file)
	require.NoError(t, err)
	require.Equal(t, got, again)
	_, err = withTables("<!-- table a.csv: c -->\n", file)
	require.ErrorContains(t, err, `a.csv has no column "c"`)
}

func TestUnmeasured_EachKind_IsFound(t *testing.T) {
	t.Parallel()
	const makefile = "\nbench-turn: bench-build\n"
	for text, want := range map[string]string{
		"date,command,a\n2026-01-02,make bench-turn ROUNDS=3,1\n":            "",
		"date,command,a\n2026-01-02,.bin/bench run lag --server cluster,1\n": "",
		"date,command,a\n2026-01-02,make bench-peers,1\n":                    "no target bench-peers",
		"date,command,a\n2026-01-02,by hand,1\n":                             "a.csv:2: \"by hand\" measures nothing",
		"date,command,a\n2026-01-02,,1\n":                                    "measures nothing",
		"date,command,a\nyesterday,make bench-turn,1\n":                      "is no date",
		"date,command,a\n":                             "begin it with",
		"system,command,a\nx,make bench-turn,1\n":      "begin it with",
		"date,command,a\n2026-01-02,make bench-turn\n": "wrong number of fields",
	} {
		findings := strings.Join(unmeasured("a.csv", text, makefile), "\n")
		if want == "" {
			require.Empty(t, findings, text)
			continue
		}
		require.Contains(t, findings, want, text)
	}
}
