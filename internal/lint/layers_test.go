package lint_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wrongImports compares the imports of all packages outside tools with the table of imports, whatever their build tags. Tests may
// import what they like.
func wrongImports(table importTable, files []file) []string {
	var findings []string
	there := map[string]bool{}
	for _, f := range files {
		if f.isTest() || within(f.dir(), "tools") {
			continue
		}
		from := f.dir()
		if !there[from] && !table.has(from) {
			findings = append(findings, fmt.Sprintf("%s has no row in the table of imports: add one to %s, below the packages it imports", from, importPage))
		}
		there[from] = true
		for _, spec := range f.syntax.Imports {
			to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			var why string
			switch {
			case !ours:
			case within(to, "tools"):
				why = "only tools and tests import tools"
			case table.has(from) && table.has(to) && !table.allows(from, to):
				why = fmt.Sprintf("its row, %s:%d, does not allow it", importPage, table[from].line)
			}
			if why != "" {
				findings = append(findings, fmt.Sprintf("%s:%d: %s must not import %s: %s. Move the code, or change the row",
					f.path, f.line(spec.Pos()), from, to, why))
			}
		}
	}
	for name, row := range table {
		if !there[name] {
			findings = append(findings, fmt.Sprintf("%s:%d: there is no package %s: remove the row, or write where the package is now",
				importPage, row.line, name))
		}
	}
	slices.Sort(findings)
	return findings
}

func within(dir, part string) bool { return dir == part || strings.HasPrefix(dir, part+"/") }

func TestImports_EachPackage_FollowTheTable(t *testing.T) {
	t.Parallel()
	table, err := readImports(read(t, importPage))
	require.NoError(t, err)
	report(t, wrongImports(table, goFiles(t)))
}

// wings are the folders of internal, each above those that it may not import.
var wings = []string{"base", "nats", "copy", "look", "adapter", "cli", "harness", "lint"}

// wrongWings finds folders of internal that are no wing, and imports of a wing below.
func wrongWings(files []file) []string {
	wing := func(dir string) (name string, at int) {
		rest, ok := strings.CutPrefix(dir, "internal/")
		if !ok {
			return "", -1
		}
		name, _, _ = strings.Cut(rest, "/")
		return name, slices.Index(wings, name)
	}
	var findings []string
	for _, f := range files {
		from, above := wing(f.dir())
		if from != "" && above < 0 {
			findings = append(findings, fmt.Sprintf("%s: internal/%s is no wing: use one of %s", f.path, from, strings.Join(wings, ", ")))
		}
		for _, spec := range f.syntax.Imports {
			path, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if to, below := wing(path); ours && !f.isTest() && above >= 0 && below > above {
				findings = append(findings, fmt.Sprintf("%s:%d: the wing %s must not import the wing %s, which is below it", f.path, f.line(spec.Pos()), from, to))
			}
		}
	}
	return findings
}

func TestWings_Imports_LeadUpwards(t *testing.T) {
	t.Parallel()
	report(t, wrongWings(goFiles(t)))
	source := func(imports string) string { return "package p\nimport _ \"" + module + "/" + imports + "\"\n" }
	require.Empty(t, wrongWings([]file{parseFile(t, "internal/look/a/a.go", source("internal/base/b"))}))
	require.Contains(t, wrongWings([]file{parseFile(t, "internal/base/b/b.go", source("internal/look/a"))})[0], "internal/base/b/b.go:2: the wing base must not import")
	require.Contains(t, wrongWings([]file{parseFile(t, "internal/tower/b.go", source("internal/look/a"))})[0], "internal/tower is no wing")
}

func TestWrongImports_EachBreach_IsFound(t *testing.T) {
	t.Parallel()
	table, err := readImports("| package | owns | may import |\n|---|---|---|\n| `a` | | |\n| `internal/b` | | a |\n| `top` | | all |\n")
	require.NoError(t, err)
	sound := map[string]string{"a/a.go": "", "internal/b/b.go": "a", "top/top.go": "internal/b"}
	for name, test := range map[string]struct{ path, imports, want string }{
		"nothing wrong":       {"a/c.go", "", ""},
		"a test":              {"a/a_test.go", "top", ""},
		"a tool":              {"tools/t/t.go", "top", ""},
		"another module":      {"a/c.go", "../elsewhere/top", ""},
		"an import upwards":   {"a/c.go", "top", "a/c.go:2: a must not import top: its row, ARCHITECTURE.md:3,"},
		"an import of a tool": {"top/c.go", "tools/t", "top/c.go:2: top must not import tools/t: only tools and tests"},
		"no row":              {"internal/b/c/c.go", "", "internal/b/c has no row"},
		"no row, imported":    {"internal/c/c.go", "a", "internal/c has no row"},
		"no package":          {"top/top.go", "-", "ARCHITECTURE.md:5: there is no package top: remove the row"},
	} {
		sources := maps.Clone(sound)
		sources[test.path] = test.imports
		var files []file
		for path, imports := range sources {
			source := "package p\n"
			switch imports {
			case "-":
				continue
			case "":
			default:
				source += "import _ \"" + module + "/" + imports + "\"\n"
			}
			files = append(files, parseFile(t, path, source))
		}
		findings := strings.Join(wrongImports(table, files), "\n")
		if test.want == "" {
			require.Empty(t, findings, name)
			continue
		}
		require.Contains(t, findings, test.want, name)
	}
}

const importTablePage = `# Page

| package | owns | may import |
|---|---|---|
| ` + "`a`" + ` | the ground | |
| ` + "`in/b`, `in/c`" + ` | two packages | a |
| ` + "`up/b`" + ` | the same last name | in/b, c |

Words.

| package | owns | may import |
|---|---|---|
| ` + "`top`" + ` | the top | all |

| other | table | here |
|---|---|---|
| x | y | z |
`

func TestImportTable_Rows_AllowWhatTheyName(t *testing.T) {
	t.Parallel()
	table, err := readImports(importTablePage)
	require.NoError(t, err)
	require.Len(t, table, 5)
	require.Equal(t, 13, table["top"].line)
	require.True(t, table.has("in/c"))
	require.False(t, table.has("x"))
	for _, allowed := range [][2]string{{"in/b", "a"}, {"in/c", "a"}, {"up/b", "in/b"}, {"up/b", "in/c"}, {"top", "a"}, {"top", "up/b"}} {
		require.True(t, table.allows(allowed[0], allowed[1]), allowed)
	}
	for _, denied := range [][2]string{{"a", "in/b"}, {"in/b", "in/c"}, {"up/b", "a"}, {"a", "top"}, {"top", "top"}} {
		require.False(t, table.allows(denied[0], denied[1]), denied)
	}
}

func TestReadImports_WrongTable_ErrorNamesTheRow(t *testing.T) {
	t.Parallel()
	const head = "| package | owns | may import |\n|---|---|---|\n"
	for name, test := range map[string]struct{ page, want string }{
		"no table":        {"# Page\n", "has no table"},
		"unknown name":    {head + "| `a` | | b |\n", `ARCHITECTURE.md:3: "b" is no package of the table`},
		"ambiguous name":  {head + "| `x/a` | | |\n| `y/a` | | |\n| `b` | | a |\n", `ARCHITECTURE.md:5: "a" is one of x/a, y/a`},
		"two rows":        {head + "| `a` | | |\n| `a` | | |\n", "ARCHITECTURE.md:4: a has two rows"},
		"upwards":         {head + "| `a` | | b |\n| `b` | | |\n", "a may import b, which is not above it"},
		"sideways":        {head + "| `a`, `b` | | b |\n", "a may import b, which is not above it"},
		"two columns":     {head + "| `a` | all |\n", "ARCHITECTURE.md:3: a row has three columns"},
		"no backquotes":   {head + "| a | | |\n", "names its package in backquotes"},
		"each, not first": {head + "| `a` | | y |\n| `b` | | z |\n", `"z" is no package`},
	} {
		_, err := readImports(test.page)
		require.ErrorContains(t, err, test.want, name)
	}
}
