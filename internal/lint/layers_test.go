package lint_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/layers"
)

// wrongImports compares the imports of all packages outside tools with the table of imports, whatever their build tags. Tests may
// import what they like.
func wrongImports(table layers.Table, files []file) []string {
	var findings []string
	there := map[string]bool{}
	for _, f := range files {
		if f.isTest() || within(f.dir(), "tools") {
			continue
		}
		from := f.dir()
		if !there[from] && !table.Has(from) {
			findings = append(findings, fmt.Sprintf("%s has no row in the table of imports: add one to %s, below the packages it imports", from, layers.Page))
		}
		there[from] = true
		for _, spec := range f.syntax.Imports {
			to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			var why string
			switch {
			case !ours:
			case within(to, "tools"):
				why = "only tools and tests import tools"
			case table.Has(from) && table.Has(to) && !table.Allows(from, to):
				why = fmt.Sprintf("its row, %s:%d, does not allow it", layers.Page, table.Line(from))
			}
			if why != "" {
				findings = append(findings, fmt.Sprintf("%s:%d: %s must not import %s: %s. Move the code, or change the row",
					f.path, f.line(spec.Pos()), from, to, why))
			}
		}
	}
	for _, name := range table.Packages() {
		if !there[name] {
			findings = append(findings, fmt.Sprintf("%s:%d: there is no package %s: remove the row, or write where the package is now",
				layers.Page, table.Line(name), name))
		}
	}
	slices.Sort(findings)
	return findings
}

func within(dir, part string) bool { return dir == part || strings.HasPrefix(dir, part+"/") }

func TestImports_EachPackage_FollowTheTable(t *testing.T) {
	t.Parallel()
	table, err := layers.Read(read(t, layers.Page))
	require.NoError(t, err)
	report(t, wrongImports(table, goFiles(t)))
}

func TestWrongImports_EachBreach_IsFound(t *testing.T) {
	t.Parallel()
	table, err := layers.Read("| package | owns | may import |\n|---|---|---|\n| `a` | | |\n| `internal/b` | | a |\n| `top` | | all |\n")
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
