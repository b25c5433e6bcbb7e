package lint_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// guides are the pages for people and programs that work on the repository.
var guides = []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md"}

var (
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	localLink = regexp.MustCompile(`\]\(([^)#:]+)\)`)
	namedPath = regexp.MustCompile(`^(?:\./|[a-z0-9_-]+/)[A-Za-z0-9_./-]*$|^[A-Z]+\.md$`)
	testedRun = regexp.MustCompile(`^go test (?:-short )?\./(\S+) -run (\w+)`)
)

// namedInVain finds paths and tests that a page names and that do not exist: links, paths in code, packages in the
// first column of a table, and the tests that a command runs.
func namedInVain(name, page string, there func(path string) bool, all map[string]*tests) []string {
	var findings []string
	number, fenced := 0, false
	for line := range strings.Lines(page) {
		number++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		missing := func(what string) {
			findings = append(findings, fmt.Sprintf("%s:%d: there is no %s: write where it is now", name, number, what))
		}
		for _, link := range localLink.FindAllStringSubmatch(line, -1) {
			if !there(path.Join(path.Dir(name), link[1])) {
				missing(link[1])
			}
		}
		var spans []string
		if fenced {
			spans = append(spans, line)
		}
		for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
			spans = append(spans, span[1])
		}
		for _, span := range spans {
			for word := range strings.FieldsSeq(span) {
				word = strings.TrimSuffix(word, "/...")
				if namedPath.MatchString(word) && !there(path.Clean(word)) {
					missing(word)
				}
			}
			if run := testedRun.FindStringSubmatch(span); run != nil && !runsATest(all[run[1]], run[2]) {
				missing("test in " + run[1] + " that -run " + run[2] + " runs")
			}
		}
		if cell, isRow := strings.CutPrefix(line, "|"); isRow {
			cell, _, _ = strings.Cut(cell, "|")
			for _, span := range codeSpan.FindAllStringSubmatch(cell, -1) {
				if !strings.Contains(span[1], " ") && !namedPath.MatchString(span[1]) && !there(span[1]) {
					missing(span[1])
				}
			}
		}
	}
	return findings
}

func runsATest(here *tests, pattern string) bool {
	if here == nil {
		return false
	}
	for function := range here.functions {
		if strings.HasPrefix(function, "Test") && strings.Contains(function, pattern) {
			return true
		}
	}
	return false
}

func TestGuides_PathsAndTestsTheyName_Exist(t *testing.T) {
	t.Parallel()
	all := testsOf(goFiles(t))
	for _, name := range guides {
		report(t, namedInVain(name, read(t, name), func(path string) bool {
			_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(path)))
			return err == nil
		}, all))
	}
}

func TestNamedInVain_EachKind_IsFound(t *testing.T) {
	t.Parallel()
	there := []string{"a", "a/b.go", "docs/c.md", "README.md"}
	all := testsOf([]file{parseFile(t, "a/b_test.go", "package a\nfunc TestOneThing(t *T) {}\nfunc helper() {}")})
	for text, want := range map[string]string{
		"[c](docs/c.md), [x](https://example.org/x)":               "",
		"`a/b.go`, `go vet ./a/...`, `README.md`, `t.X`, `doc.go`": "",
		"`go test ./a -run One -update`":                           "",
		"| `a` | `other` |":                                        "",
		"and/or, `io.x/Y`":                                         "",
		"one\n[c](docs/d.md)":                                      "page.md:2: there is no docs/d.md",
		"`a/c.go`":                                                 "there is no a/c.go",
		"`go test ./d/...`":                                        "there is no ./d",
		"```sh\nls ./d\n```":                                       "page.md:2: there is no ./d",
		"`OTHER.md`":                                               "there is no OTHER.md",
		"| `d` | |":                                                "there is no d",
		"`go test ./a -run Two`":                                   "no test in a that -run Two runs",
		"`go test ./a -run helper`":                                "-run helper",
		"`go test -short ./a -run Three`, `go test ./a -run OneThing`": "-run Three",
	} {
		findings := strings.Join(namedInVain("page.md", text, func(path string) bool { return slices.Contains(there, path) }, all), "\n")
		if want == "" {
			require.Empty(t, findings, text)
			continue
		}
		require.Contains(t, findings, want, text)
	}
}
