package lint_test

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testName is the form of a test's name. A condition may have further parts.
var testName = regexp.MustCompile(`^Test[A-Z][A-Za-z0-9]*(_[A-Z0-9][A-Za-z0-9]*){2,}$`)

// oddTestNames returns the tests of a file whose name does not have the form TestSubject_Condition_Result.
func oddTestNames(f file) []string {
	if !f.isTest() {
		return nil
	}
	var findings []string
	for _, name := range testFuncs(f) {
		if strings.HasPrefix(name, "Test") && !testName.MatchString(name) {
			findings = append(findings, fmt.Sprintf("%s: %s: name it TestSubject_Condition_Result", f.path, name))
		}
	}
	return findings
}

// testFuncs returns the names of a file's tests, benchmarks and fuzz targets.
func testFuncs(f file) []string {
	var names []string
	for _, d := range f.syntax.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Name.Name == "TestMain" {
			continue
		}
		for _, prefix := range []string{"Test", "Benchmark", "Fuzz", "Example"} {
			if strings.HasPrefix(fn.Name.Name, prefix) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// A command that runs tests: the pattern behind -run, and the packages.
var (
	runFlag    = regexp.MustCompile(`-run[ =]('[^']+'|"[^"]+"|[^\s"'` + "`" + `]+)`)
	runPackage = regexp.MustCompile(`\s\./([A-Za-z0-9_./-]+)`)
)

// idleRunFlags returns the patterns behind -run that match no test of the packages that the line names, or of any
// package where it names none: go test passes with them and runs nothing.
func idleRunFlags(name, text string, byPackage map[string][]string) []string {
	var findings []string
	for i, line := range strings.Split(text, "\n") {
		if !strings.Contains(line, "go test") && !strings.Contains(line, "CHAOSFLAGS") {
			continue
		}
		names := testsIn(byPackage, runPackage.FindAllStringSubmatch(line, -1))
		for _, m := range runFlag.FindAllStringSubmatch(line, -1) {
			// A table's cell escapes its bars, and what stands behind a slash is the name of a subtest.
			pattern, _, _ := strings.Cut(strings.ReplaceAll(strings.Trim(m[1], `'"`), `\|`, "|"), "/")
			if strings.Contains(pattern, "$") || pattern == "TestX" {
				continue
			}
			for alternative := range strings.SplitSeq(pattern, "|") {
				re, err := regexp.Compile(alternative)
				if err != nil || !slices.ContainsFunc(names, re.MatchString) {
					findings = append(findings, fmt.Sprintf("%s:%d: -run %s matches no test", name, i+1, alternative))
				}
			}
		}
	}
	return findings
}

func testsIn(byPackage map[string][]string, packages [][]string) []string {
	var names []string
	for folder, here := range byPackage {
		if len(packages) == 0 || slices.ContainsFunc(packages, func(m []string) bool {
			below, all := strings.CutSuffix(m[1], "...")
			return folder == m[1] || all && strings.HasPrefix(folder+"/", below)
		}) {
			names = append(names, here...)
		}
	}
	return names
}

func TestTestNames_EveryTest_HasSubjectConditionResult(t *testing.T) {
	t.Parallel()
	each(t, oddTestNames)
}

func TestRunFlags_PagesAndMakefile_MatchATest(t *testing.T) {
	t.Parallel()
	tests := make(map[string][]string)
	for _, f := range goFiles(t) {
		tests[f.dir()] = append(tests[f.dir()], testFuncs(f)...)
	}
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".md") || name == "Makefile" {
			report(t, idleRunFlags(name, read(t, name), tests))
		}
	})
}

func TestTestNames_EachForm_IsFoundOrPasses(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]int{
		"TestSweeper_NewTerm_ResetsTimers": 0,
		"TestRun_Two_Conditions_Passes":    0,
		"TestLoop_5000Turns_Ends":          0,
		"TestNothingIsLost":                1,
		"TestSweeper_ResetsTimers":         1,
		"TestSweeper_newTerm_ResetsTimers": 1,
	} {
		f := parseFile(t, "a/a_test.go", "package a\nimport \"testing\"\nfunc "+name+"(t *testing.T) {}")
		require.Len(t, oddTestNames(f), found, name)
	}
}

func TestRunFlags_EachForm_IsFoundOrPasses(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{"a": {"TestOne_Two_Three", "TestFour_Five_Six"}, "a/b": {"TestNine_Ten_Eleven"}}
	for line, found := range map[string]int{
		"`go test ./a -run One`":               0,
		"go test ./a -run 'One|Four' -count=1": 0,
		"go test ./a -run 'One|Seven'":         1,
		"go test ./a -run Eight":               1,
		"go test ./a -run 'One/sub case'":      0,
		"go test ./a/... -run Nine":            0,
		"go test ./a -run Nine":                1,
		"| go test ./a -run 'One\\|Four' |":    0,
		"waymark events --run Eight":           0,
		"CHAOSFLAGS ?= -run Eight":             1,
	} {
		require.Len(t, idleRunFlags("a.md", line, tests), found, line)
	}
}
