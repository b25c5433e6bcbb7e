package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const maxLines = 600

func tooLong(f file) []string {
	lines := strings.Count(f.source, "\n")
	if f.generated() || lines <= maxLines {
		return nil
	}
	return []string{fmt.Sprintf("%s has %d lines, %d are the limit: split it by what it owns", f.path, lines, maxLines)}
}

func undocumentedPackages(files []file) []string {
	documented := map[string]bool{}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		has := path.Base(f.path) == "doc.go" && f.syntax.Doc != nil && strings.HasPrefix(f.syntax.Doc.Text(), "Package ")
		// A command has no name to document and says what it does in main.go.
		has = has || f.syntax.Name.Name == "main" && f.syntax.Doc != nil
		documented[f.dir()] = documented[f.dir()] || has
	}
	var findings []string
	for _, dir := range slices.Sorted(maps.Keys(documented)) {
		if !documented[dir] {
			findings = append(findings, fmt.Sprintf(
				`%s has no doc.go with a comment "Package … ": say what it owns, what it promises, and what happens on failure`, dir))
		}
	}
	return findings
}

// sleepsAndSkips looks at tests only; elsewhere forbidigo forbids time.Sleep.
func sleepsAndSkips(f file) []string {
	if !f.isTest() {
		return nil
	}
	var findings []string
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if ok {
			if base, ok := selector.X.(*ast.Ident); ok && selector.Sel.Name == "Sleep" && f.imported(base.Name) == "time" {
				findings = append(findings, fmt.Sprintf("%s:%d: time.Sleep in a test: wait on an event, or use testing/synctest",
					f.path, f.line(selector.Pos())))
			}
		}
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		if fun, ok := call.Fun.(*ast.SelectorExpr); ok && skipsWithoutReason(fun.Sel.Name, call.Args) {
			findings = append(findings, fmt.Sprintf("%s:%d: %s without a reason: say what is missing and how to get it",
				f.path, f.line(call.Pos()), fun.Sel.Name))
		}
		return true
	})
	return findings
}

func skipsWithoutReason(method string, args []ast.Expr) bool {
	switch method {
	case "SkipNow":
		return len(args) == 0
	case "Skip", "Skipf":
		if len(args) == 0 {
			return true
		}
		reason, ok := args[0].(*ast.BasicLit)
		return ok && reason.Kind == token.STRING && len(reason.Value) < len(`"a reason"`)
	}
	return false
}

// A path below a user's home or in a machine's work directory works on that machine only. Homes in examples are those
// of user, nats and waymark.
var machinePath = regexp.MustCompile(`(?:^|[\s"'` + "`" + `=:(,])(/(?:work|root|Users|home|mnt|private/var|var/folders)/[A-Za-z0-9._-]+|[A-Z]:\\Users\\\w+)`)

var examplePath = regexp.MustCompile(`^/(?:home|Users)/(?:user|nats|nonroot|waymark)$`)

func machinePaths(name, text string) []string {
	var findings []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		for _, match := range machinePath.FindAllStringSubmatch(line, -1) {
			if !examplePath.MatchString(match[1]) {
				findings = append(findings, fmt.Sprintf("%s:%d: %s is a path of one machine: make it relative, or an argument",
					name, number, match[1]))
			}
		}
	}
	return findings
}

// bareSentinels looks at exported variables Err… of packages that others import.
func bareSentinels(f file) []string {
	if f.isTest() || f.generated() {
		return nil
	}
	var findings []string
	for _, decl := range f.syntax.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			doc := value.Doc.Text()
			if doc == "" && !group.Lparen.IsValid() {
				doc = group.Doc.Text()
			}
			for _, name := range value.Names {
				if strings.HasPrefix(name.Name, "Err") && name.IsExported() && utf8.RuneCountInString(doc) < len(name.Name)+20 {
					findings = append(findings, fmt.Sprintf("%s:%d: %s has no comment that says when it comes and what to do",
						f.path, f.line(name.Pos()), name.Name))
				}
			}
		}
	}
	return findings
}

// each applies a rule to every file of the repository.
func each(t *testing.T, rule func(file) []string) {
	t.Helper()
	for _, f := range goFiles(t) {
		report(t, rule(f))
	}
}

func TestFiles_Lines_Bounded(t *testing.T)             { each(t, tooLong) }
func TestPackages_Doc_Present(t *testing.T)            { report(t, undocumentedPackages(goFiles(t))) }
func TestTests_SleepOrSilentSkip_Refused(t *testing.T) { each(t, sleepsAndSkips) }
func TestErrors_Sentinels_Documented(t *testing.T)     { each(t, bareSentinels) }

func TestFiles_MachinePaths_Absent(t *testing.T) {
	walk(t, func(name string) {
		if strings.HasPrefix(name, "internal/lint/") { // its examples break the rule
			return
		}
		if text := read(t, name); utf8.ValidString(text) {
			report(t, machinePaths(name, text))
		}
	})
}

func TestRules_Violation_Found(t *testing.T) {
	long := "package a\n" + strings.Repeat("\n", maxLines)
	tests := []struct {
		name, path, source string
		rule               func(file) []string
		want               string // "" when there is nothing to find
	}{
		{"a long file", "a/a.go", long, tooLong, "a/a.go has 601 lines"},
		{"a long generated file", "a/a.go", "// Code generated by a. DO NOT EDIT.\n" + long, tooLong, ""},
		{"no doc.go", "a/a.go", "// Package a is a.\npackage a", onlyPackage, "a has no doc.go"},
		{"doc.go without a comment", "a/doc.go", "package a", onlyPackage, "a has no doc.go"},
		{"doc.go", "a/doc.go", "// Package a is a.\npackage a", onlyPackage, ""},
		{"a command", "cmd/a/main.go", "// Command a does a.\npackage main", onlyPackage, ""},
		{"a sleep", "a/a_test.go", "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }", sleepsAndSkips, "a/a_test.go:3"},
		{"a renamed sleep", "a/a_test.go", "package a\nimport clock \"time\"\nvar f = clock.Sleep", sleepsAndSkips, "a/a_test.go:3"},
		{"another Sleep", "a/a_test.go", "package a\nfunc f() { cat.Sleep(1) }", sleepsAndSkips, ""},
		{"a silent skip", "a/a_test.go", "package a\nfunc f() { t.Skip() }", sleepsAndSkips, "Skip without a reason"},
		{"a skip with an empty reason", "a/a_test.go", "package a\nfunc f() { t.Skip(\"\") }", sleepsAndSkips, "Skip without a reason"},
		{"a SkipNow", "a/a_test.go", "package a\nfunc f() { t.SkipNow() }", sleepsAndSkips, "SkipNow without a reason"},
		{"a skip that says why", "a/a_test.go", "package a\nfunc f() { t.Skip(\"needs root: run with sudo\") }", sleepsAndSkips, ""},
		{"a home", "a/a.go", "package a\nconst p = \"/home/jane/x\"", pathsOf, "/home/jane"},
		{"a work directory", "a/a.go", "package a // see /" + "work/main", pathsOf, "/" + "work/main"},
		{"a Windows home", "a/a.go", "package a\nconst p = `C:\\Users\\jane`", pathsOf, `C:\Users\jane`},
		{"a URL and a relative path", "a/a.go", "package a // https://example.com/home/jane ./work/x", pathsOf, ""},
		{"an example's home", "a/a.go", "package a // /home/waymark/x", pathsOf, ""},
		{"a bare sentinel", "a/a.go", "package a\nvar ErrA = e()", bareSentinels, "ErrA has no comment"},
		{"a bare sentinel in a group", "a/a.go", "package a\n// Errors of this package, all of them.\nvar (\n\tErrA = e()\n)", bareSentinels, "a/a.go:4"},
		{"a sentinel with its name only", "a/a.go", "package a\n// ErrA is A.\nvar ErrA = e()", bareSentinels, "ErrA has no comment"},
		{"a sentinel with a comment", "a/a.go", "package a\n// ErrA comes when a is not b. Make it b.\nvar ErrA = e()", bareSentinels, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			findings := strings.Join(test.rule(parseFile(t, test.path, test.source)), "\n")
			if test.want == "" {
				require.Empty(t, findings)
				return
			}
			require.Contains(t, findings, test.want)
		})
	}
}

func onlyPackage(f file) []string { return undocumentedPackages([]file{f}) }

func pathsOf(f file) []string { return machinePaths(f.path, f.source) }
