package lint_test

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// keylessFolds are the files that may fold with schema.NoKeys, and why. All other folds need their fleet's keys: a
// reader without them accepts forged control events, or disagrees with the daemon.
var keylessFolds = map[string]string{
	"internal/harness/foldtest/writer.go":     "a fleet without keys",
	"internal/harness/randomlog/draw.go":      "a fleet that is drawn without keys",
	"publisher/waymarktest/replay.go":         "a recorded run in a file, without its fleet and its keys",
	"tools/bench/internal/bench/case_fold.go": "a server of its own, whose connection has no key",
	"tools/bench/internal/bench/verify.go":    "the same",
}

// executorsFolds are the files that may fold with schema.ExecutorsOnly: an executor's own events.
var executorsFolds = []string{"publisher/lateresult.go", "publisher/fold.go"}

// keylessFold finds folds that do not use the keys of the fleet.
func keylessFold(f file) []string {
	if f.isTest() || f.dir() == "schema" {
		return nil
	}
	var findings []string
	found := func(node ast.Node, what string) {
		findings = append(findings, fmt.Sprintf("%s:%d: %s: fold by the fleet's keys (keyring.Ring.Keys, publisher.Reader.Keys, kvstore.ReadKeys), see decision 52",
			f.path, f.line(node.Pos()), what))
	}
	named := func(expr ast.Expr, name string) bool {
		selector, ok := expr.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != name {
			return false
		}
		base, ok := selector.X.(*ast.Ident)
		return ok && f.imported(base.Name) == module+"/schema"
	}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if named(n, "NoKeys") && keylessFolds[f.path] == "" {
				found(n, "schema.NoKeys")
			}
			if named(n, "ExecutorsOnly") && !slices.Contains(executorsFolds, f.path) {
				found(n, "schema.ExecutorsOnly")
			}
		case *ast.CompositeLit:
			if named(n.Type, "Keys") {
				found(n, "schema.Keys made by hand")
			}
		case *ast.CallExpr:
			if called, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
				if first, ok := n.Args[0].(*ast.Ident); ok && first.Name == "nil" && (called.Sel.Name == "Apply" || named(called, "Prepare")) {
					found(n, called.Sel.Name+" by no keys")
				}
			}
		}
		return true
	})
	return findings
}

func TestFolds_OutsideTheirExceptions_GoByTheFleetsKeys(t *testing.T) {
	t.Parallel()
	files := goFiles(t)
	for _, f := range files {
		report(t, keylessFold(f))
	}
	for path := range keylessFolds {
		require.True(t, slices.ContainsFunc(files, func(f file) bool { return f.path == path && strings.Contains(f.source, "schema.NoKeys") }),
			"%s folds by no keys no more: take it off the list", path)
	}
}

func TestKeylessFold_EachWay_IsFound(t *testing.T) {
	t.Parallel()
	const head = "package a\nimport \"" + module + "/schema\"\n"
	for _, test := range []struct{ path, source, want string }{
		{"consumer/a.go", head + "var k = schema.NoKeys", "a.go:3: schema.NoKeys"},
		{"consumer/a.go", head + "var k = schema.ExecutorsOnly", "a.go:3: schema.ExecutorsOnly"},
		{"consumer/a.go", head + "var k = schema.Keys{}", "made by hand"},
		{"consumer/a.go", head + "func f(h *schema.Head, r *schema.Record) { h.Apply(nil, r) }", "Apply by no keys"},
		{"consumer/a.go", head + "func f(r *schema.Record) { schema.Prepare(nil, r) }", "Prepare by no keys"},
		{"consumer/a.go", head + "func f(h *schema.Head, k *schema.Keys, r *schema.Record) { h.Apply(k, r) }", ""},
		{"consumer/a_test.go", head + "var k = schema.NoKeys", ""},
		{"publisher/fold.go", head + "var k = schema.ExecutorsOnly", ""},
		{"tools/bench/internal/bench/verify.go", head + "var k = schema.NoKeys", ""},
	} {
		findings := strings.Join(keylessFold(parseFile(t, test.path, test.source)), "\n")
		if test.want == "" {
			require.Empty(t, findings, test.source)
			continue
		}
		require.Contains(t, findings, test.want)
	}
}
