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
)

// missingPaths finds paths that a page names and that do not exist: links, paths in code, and packages in the first
// column of a table.
func missingPaths(name, page string, there func(path string) bool) []string {
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

func TestGuides_NamedPaths_Exist(t *testing.T) {
	t.Parallel()
	for _, name := range guides {
		report(t, missingPaths(name, read(t, name), func(path string) bool {
			_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(path)))
			return err == nil
		}))
	}
}

func TestMissingPaths_EachKind_IsFound(t *testing.T) {
	t.Parallel()
	there := []string{"a", "a/b.go", "docs/c.md", "README.md"}
	for text, want := range map[string]string{
		"[c](docs/c.md), [x](https://example.org/x)":               "",
		"`a/b.go`, `go vet ./a/...`, `README.md`, `t.X`, `doc.go`": "",
		"| `a` | `other` |":   "",
		"and/or, `io.x/Y`":    "",
		"one\n[c](docs/d.md)": "page.md:2: there is no docs/d.md",
		"`a/c.go`":            "there is no a/c.go",
		"`go test ./d/...`":   "there is no ./d",
		"```sh\nls ./d\n```":  "page.md:2: there is no ./d",
		"`OTHER.md`":          "there is no OTHER.md",
		"| `d` | |":           "there is no d",
	} {
		findings := strings.Join(missingPaths("page.md", text, func(path string) bool { return slices.Contains(there, path) }), "\n")
		if want == "" {
			require.Empty(t, findings, text)
			continue
		}
		require.Contains(t, findings, want, text)
	}
}
