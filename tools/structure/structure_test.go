package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const small = "testdata/small"

func sections(t *testing.T, root string, o options) map[string]section {
	t.Helper()
	all, err := measure(t.Context(), root, o)
	require.NoError(t, err)
	byTitle := map[string]section{}
	for _, s := range all {
		byTitle[s.title] = s
	}
	return byTitle
}

func figures(s section) map[string][]int {
	all := map[string][]int{}
	for _, r := range s.rows {
		all[r.name] = r.figures
	}
	return all
}

func TestMeasure_SmallModule_HasTheFiguresCountedByHand(t *testing.T) {
	t.Parallel()
	found := sections(t, small, options{types: 1, files: "shop", walks: true})
	require.Equal(t, map[string][]int{
		"internal/a":  {15, 8},
		"shop":        {31, 21},
		"cmd/waymark": {6, 3},
		"production":  {52, 32},
	}, figures(found["Production code by package"]))
	require.Equal(t, map[string][]int{
		"tests": {2, 2}, "internal/harness": {1, 1}, "internal, in no command": {1, 1}, "generated": {5, 2}, "tools": {1, 1}, "docs": {1, 1},
		"testdata": {1, 1}, "left out": {12, 9},
	}, figures(found["Left out"]))
	require.Equal(t, map[string][]int{
		"packages": {3}, "arrows": {2}, "floors": {3}, "arrows upwards": {1}, "packages without a row": {0},
	}, figures(found["Imports between production packages"]))
	require.Equal(t, map[string][]int{"internal/a": {2}, "shop": {2}, "all": {4}}, figures(found["Exported names by package"]))
	methods := found["Methods by type, most first"]
	require.Equal(t, map[string][]int{"internal/a.List": {2, 1}, "shop.till": {2, 2}, "shop.counter": {1, 1}}, figures(methods))
	require.Len(t, methods.printed(), 1)
	require.Equal(t, []int{3}, figures(found["Linked into cmd/waymark"])["packages of this module"])
	// main.go, counter.go, till.go, counter.go, till.go, counter.go, main.go
	require.Equal(t, map[string][]int{"functions": {4}, "files": {3}, "stays": {7}, "returns": {4}}, figures(found["Walk: A program"]))
	// counter.go uses till.go and stock.go, till.go uses counter.go. The tests and the file of another platform are left out.
	require.Equal(t, map[string][]int{
		"files": {4}, "arrows": {3}, "floors": {3}, "arrows upwards": {1},
	}, figures(found["Files of shop"]))
}

func TestMeasure_PatternOfFiles_HasASectionForEachPackage(t *testing.T) {
	t.Parallel()
	found := sections(t, small, options{files: "internal/..."})
	require.Contains(t, found, "Files of internal/a")
	require.Contains(t, found, "Files of internal/harness/h")
}

func TestRun_Binary_HasASize(t *testing.T) {
	t.Parallel()
	size := figures(sections(t, small, options{binary: true})["Linked into cmd/waymark"])["KiB of the stripped binary"]
	require.Len(t, size, 1)
	require.Greater(t, size[0], 100)
}

func TestRun_AgainstRevision_PrintsBothAndTheDifference(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(small)))
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "-A"},
		{"-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first"},
	} {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop", "more.go"), []byte("package shop\n\n// More is new.\nfunc More() {}\n"), 0o600))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "tools")))
	var out, stderr bytes.Buffer
	require.NoError(t, run(t.Context(), dir, []string{"-against", "HEAD", "-files", "shop", "-types", "1"}, &out, &stderr))
	lines := map[string][]string{}
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(line), 81, line)
		fields := strings.Fields(line)
		if len(fields) > 1 {
			lines[fields[0]] = append(lines[fields[0]], strings.Join(fields[1:], " "))
		}
	}
	require.Contains(t, lines["shop"], "31 35 +4 21 23 +2")
	require.Contains(t, lines["tools"], "1 0 -1 1 0 -1")
	require.Contains(t, lines["production"], "52 56 +4 32 34 +2")
	require.Contains(t, lines["shop"], "2 3 +1")
	require.Contains(t, lines["files"], "4 5 +1")
	require.NotContains(t, lines, "shop.till", "beyond the limit")
}

func TestRun_WrongArguments_ErrorNamesTheNextStep(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		root string
		args []string
		want string
	}{
		"no module":        {"testdata", nil, "run it in the root of the repository"},
		"no package":       {small, []string{"-files", "nowhere"}, `there is no package "nowhere": structure without flags lists them`},
		"an argument":      {small, []string{"consumer"}, "structure -h lists them"},
		"unknown revision": {small, []string{"-against", "nothing"}, "git log --oneline lists them"},
	} {
		var out, stderr bytes.Buffer
		require.ErrorContains(t, run(t.Context(), test.root, test.args, &out, &stderr), test.want, name)
		require.Empty(t, out.String(), name)
	}
}

func TestFewestUpwards_Graphs_HaveTheFewestArrowsUpwards(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arrows          graph
		upwards, floors int
	}{
		"no circle":      {graph{"a": {"b": true, "c": true}, "b": {"c": true}, "c": {}}, 0, 3},
		"a circle":       {graph{"a": {"b": true}, "b": {"c": true}, "c": {"a": true}}, 1, 3},
		"two for one":    {graph{"a": {"x": true}, "b": {"x": true}, "x": {"a": true, "b": true, "c": true}, "c": {}}, 2, 2},
		"circle and sum": {graph{"a": {"b": true, "c": true, "d": true}, "b": {"c": true, "d": true}, "c": {"d": true}, "d": {"a": true}}, 1, 4},
	} {
		order := fewestUpwards(test.arrows)
		require.Len(t, order, len(test.arrows), name)
		require.Equal(t, test.upwards, upwards(test.arrows, order), name)
		require.Equal(t, test.floors, floors(downwards(test.arrows, order)), name)
		require.Equal(t, order, fewestUpwards(test.arrows), name)
	}
}
