package walks_test

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/walks"
)

func files(t *testing.T) []walks.File {
	t.Helper()
	var all []walks.File
	for path, source := range map[string]string{
		"a/a.go": "package a\nfunc (r *Run) Go() { b(); r.c() }\nfunc last() {}",
		"a/b.go": "package a\nfunc b() { b2() }\nfunc b2() {}",
		"c/c.go": "package c\nfunc (Run) c() {}",
	} {
		syntax, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
		require.NoError(t, err)
		all = append(all, walks.File{Path: path, Syntax: syntax})
	}
	return all
}

func TestMeasure_Walk_CountsTheWayBack(t *testing.T) {
	t.Parallel()
	const page = "# Walks\n\n## One\n\n- `a.Run.Go`: begins\n  - `a.b`\n    - `a.b2`\n  - `c.Run.c`\n- over a channel: `a.last`\n\n## Two\n\n- `a.b`\n"
	found, err := walks.Measure(page, files(t))
	require.NoError(t, err)
	// a.go, b.go, a.go, c.go, a.go
	require.Equal(t, []walks.Walk{{Title: "One", Functions: 5, Files: 3, Stays: 5}, {Title: "Two", Functions: 1, Files: 1, Stays: 1}}, found)
	require.Equal(t, 2, found[0].Returns())
}

func TestMeasure_WrongStep_ErrorNamesIt(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"## One\n- `a.Run.Stop`":                   "docs/walks.md:2: there is no function a.Run.Stop: write which one",
		"## One\n- `a.c`":                          "there is no function a.c: is it c.Run.c?",
		"## One\n- `a.b`\n  - `a.last`":            "docs/walks.md:3: a.b does not name a.last: indent it",
		"## One\n- `a.b`\n- `a.Run.Go`\n  - `a.x`": "docs/walks.md:4: there is no function a.x",
	} {
		_, err := walks.Measure(page, files(t))
		require.ErrorContains(t, err, want, page)
	}
}
