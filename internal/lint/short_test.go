package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shorts returns each testing.Short() of a file as "package.Test: reason", and problems with others. A call must be
// in a test itself, as the condition of an if that skips the test or logs what it leaves out, with a reason that
// begins with "short: ". So tools/long.sh finds the long tests in the sources, and tools/left.sh prints what a run left out.
func shorts(f file) (listed, findings []string) {
	allowed := map[token.Pos]bool{}
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
			continue
		}
		ast.Inspect(fn.Body, func(node ast.Node) bool {
			branch, ok := node.(*ast.IfStmt)
			if !ok {
				return true
			}
			call := f.shortCall(branch.Cond)
			if reason := shortReason(branch.Body); call != nil && reason != "" {
				allowed[call.Pos()] = true
				listed = append(listed, fmt.Sprintf("%s.%s: %s", f.dir(), fn.Name.Name, reason))
			}
			return true
		})
		// Only TestMain may check whether any test will need its builds.
		if fn.Name.Name == "TestMain" {
			ast.Inspect(fn.Body, func(node ast.Node) bool {
				if call := f.shortCall(node); call != nil {
					allowed[call.Pos()] = true
				}
				return true
			})
		}
	}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		if call := f.shortCall(node); call != nil && !allowed[call.Pos()] {
			findings = append(findings, fmt.Sprintf(
				`%s:%d: testing.Short() outside of: if testing.Short() { t.Skip("short: reason") } in a test itself (or t.Log of the part left out)`,
				f.path, f.line(call.Pos())))
		}
		return true
	})
	return listed, findings
}

// shortCall returns node if it is a call of testing.Short.
func (f file) shortCall(node ast.Node) *ast.CallExpr {
	call, ok := node.(*ast.CallExpr)
	if !ok {
		return nil
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != "Short" {
		return nil
	}
	base, ok := selector.X.(*ast.Ident)
	if !ok || f.imported(base.Name) != "testing" {
		return nil
	}
	return call
}

// shortReason is the reason that a block gives to t.Skip or t.Log, "" if none.
func shortReason(block *ast.BlockStmt) string {
	for _, stmt := range block.List {
		expr, ok := stmt.(*ast.ExprStmt)
		if !ok {
			continue
		}
		call, ok := expr.X.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			continue
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "Log", "Logf"}, selector.Sel.Name) {
			continue
		}
		if text, ok := call.Args[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
			value, err := strconv.Unquote(text.Value)
			if reason, found := strings.CutPrefix(value, "short: "); err == nil && found && reason != "" {
				return reason
			}
		}
	}
	return ""
}

func onlyShorts(f file) []string {
	_, findings := shorts(f)
	return findings
}

// With -v it prints the list.
func TestShort_EachCall_SkipsItsTestWithAReason(t *testing.T) {
	reasons := map[string]bool{}
	for _, f := range goFiles(t) {
		listed, findings := shorts(f)
		report(t, findings)
		for _, entry := range listed {
			reasons[entry] = true
		}
	}
	require.NotEmpty(t, reasons)
	for _, entry := range slices.Sorted(maps.Keys(reasons)) {
		t.Log(entry)
	}
}

func TestShort_WrongForms_AreFound(t *testing.T) {
	const head = "package a\nimport \"testing\"\n"
	for name, test := range map[string]struct{ source, want string }{
		"a skip with a reason": {"func TestA(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: it is long\")\n }\n}", ""},
		"a part with a reason": {"func TestA(t *testing.T) {\n if testing.Short() {\n n = 3\n t.Logf(\"short: %d\", n)\n }\n}", ""},
		"TestMain":             {"func TestMain(m *testing.M) { if !testing.Short() { build() } }", ""},
		"no reason":            {"func TestA(t *testing.T) {\n if testing.Short() {\n t.Skip(\"too long\")\n }\n}", "a/a_test.go:4"},
		"a silent part":        {"func TestA(t *testing.T) {\n if testing.Short() {\n n = 3\n }\n}", "a/a_test.go:4"},
		"a helper":             {"func helper(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: it is long\")\n }\n}", "a/a_test.go:4"},
		"another condition":    {"func TestA(t *testing.T) {\n if a && testing.Short() {\n t.Skip(\"short: it is long\")\n }\n}", "a/a_test.go:4"},
		"a variable":           {"var short = testing.Short()", "a/a_test.go:3"},
	} {
		findings := strings.Join(onlyShorts(parseFile(t, "a/a_test.go", head+test.source)), "\n")
		if test.want == "" {
			require.Empty(t, findings, name)
		} else {
			require.Contains(t, findings, test.want, name)
		}
	}
}
