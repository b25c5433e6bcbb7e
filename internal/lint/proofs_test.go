package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pages name a test by its directory and its name, `internal/harness/chaos.TestX`, and a subtest after a slash, whose
// words may end in an ellipsis. So a page cannot name a removed test.
var (
	citation   = regexp.MustCompile("`((?:[a-z0-9_]+/)*[a-z0-9_]+)\\.((?:Test|Fuzz)[A-Z]\\w*)(?:/([^`]+))?`")
	makeTarget = regexp.MustCompile("`make ([a-z-]+)")
)

// tests are the declarations of a directory's test files: functions, and every text in them, which may be a subtest's
// name.
type tests struct {
	functions map[string]bool
	texts     []string
}

func testsOf(files []file) map[string]*tests {
	all := map[string]*tests{}
	for _, f := range files {
		if !f.isTest() {
			continue
		}
		here := all[f.dir()]
		if here == nil {
			here = &tests{functions: map[string]bool{}}
			all[f.dir()] = here
		}
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					here.functions[n.Name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					here.texts = append(here.texts, text)
				}
			}
			return true
		})
	}
	return all
}

// citedInVain are the tests and make targets that a page names and that do not exist.
func citedInVain(name, page, makefile string, all map[string]*tests) []string {
	var findings []string
	number := 0
	for line := range strings.Lines(page) {
		number++
		for _, c := range citation.FindAllStringSubmatch(line, -1) {
			dir, function, sub := c[1], c[2], c[3]
			here := all[dir]
			if here == nil || !here.functions[function] {
				findings = append(findings, fmt.Sprintf("%s:%d: there is no test %s in %s", name, number, function, dir))
				continue
			}
			begun, short := strings.CutSuffix(sub, "…")
			if sub != "" && !slices.ContainsFunc(here.texts, func(s string) bool { return s == sub || short && strings.HasPrefix(s, begun) }) {
				findings = append(findings, fmt.Sprintf("%s:%d: no test in %s has a part %q", name, number, dir, sub))
			}
		}
		for _, m := range makeTarget.FindAllStringSubmatch(line, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				findings = append(findings, fmt.Sprintf("%s:%d: the Makefile has no target %s", name, number, m[1]))
			}
		}
	}
	return findings
}

// unproven are the rows of the tables under a heading that name no test, and do not say why there is none.
func unproven(name, page, heading string) (rows []string, findings []string) {
	_, behind, found := strings.Cut(page, "\n## "+heading+"\n")
	if !found {
		return nil, []string{fmt.Sprintf("%s has no part %q", name, heading)}
	}
	part, _, _ := strings.Cut(behind, "\n## ")
	head := true
	for line := range strings.Lines(part) {
		if !strings.HasPrefix(line, "|") {
			head = true
			continue
		}
		if head {
			head = false // names the columns
			continue
		}
		if strings.Trim(line, "|- \n") == "" {
			continue
		}
		row := strings.TrimSpace(strings.Split(line, "|")[1])
		rows = append(rows, row)
		if !citation.MatchString(line) && !strings.Contains(line, "not covered") && !strings.Contains(line, "](security.md)") {
			findings = append(findings, fmt.Sprintf(`%s: %q names no test; say "not covered" if there is none`, name, row))
		}
	}
	return rows, findings
}

func TestPages_NamedTests_Exist(t *testing.T) {
	all, makefile := testsOf(goFiles(t)), read(t, "Makefile")
	cited := 0
	walk(t, func(name string) {
		page := strings.HasSuffix(name, ".md") && (path.Dir(name) == "docs" || path.Dir(name) == ".")
		if page || strings.HasPrefix(name, "internal/harness/mutant/patches/") {
			page := read(t, name)
			cited += len(citation.FindAllString(page, -1))
			report(t, citedInVain(name, page, makefile, all))
		}
	})
	require.Greater(t, cited, 150, "the pages that name tests were looked at")
}

func TestProofs_PromisesAndFaults_HaveTests(t *testing.T) {
	const name = "docs/reliability.md"
	page := read(t, name)
	promises, findings := unproven(name, page, "Promises")
	report(t, findings)
	var want []string
	for n := range 20 {
		want = append(want, fmt.Sprintf("P%d", n+1))
	}
	require.Equal(t, want, promises)
	faults, findings := unproven(name, page, "Faults")
	report(t, findings)
	require.Greater(t, len(faults), 40)
	attempts, findings := unproven("docs/security.md", read(t, "docs/security.md"), "Attacks")
	report(t, findings)
	require.Greater(t, len(attempts), 25)
}

func TestPages_MissingTarget_Found(t *testing.T) {
	all := testsOf([]file{
		parseFile(t, "a/b/c_test.go", "package c\nfunc TestOne(t *T) { t.Run(\"it holds\", nil) }\nfunc (w *W) TestTwo() {}\nfunc FuzzIt() {}"),
		parseFile(t, "a/b/c.go", "package c\nfunc TestThree() {}"),
	})
	const makefile = "\nchaos: ## break\n\tgo test\n"
	for text, want := range map[string]string{
		"`a/b.TestOne` and `a/b.FuzzIt`":         "",
		"`a/b.TestOne/it holds`":                 "",
		"`a/b.TestOne/it ho…`":                   "",
		"`make chaos SEED=1`, `make chaos`":      "",
		"`a/b.Tested`, a.TestX, `t.Test`":        "",
		"one\ntwo `a/b.TestFour`":                "page:2: there is no test TestFour in a/b",
		"`a.TestOne`":                            "no test TestOne in a",
		"`a/b.TestTwo`":                          "no test TestTwo",
		"`a/b.TestThree`":                        "no test TestThree",
		"`a/b.TestOne/it ho`":                    `no test in a/b has a part "it ho"`,
		"`a/b.TestOne/something else…`":          "something else",
		"`make soak`":                            "no target soak",
		"`make cha`, which is not a whole name.": "no target cha",
	} {
		findings := strings.Join(citedInVain("page", text, makefile, all), "\n")
		if want == "" {
			require.Empty(t, findings, text)
			continue
		}
		require.Contains(t, findings, want, text)
	}
	page := "# Page\n\n## Rows\n\n| what | test |\n|---|---|\n| one | `a/b.TestOne` |\n| two | nothing |\n| three | not covered: too hard |\n\n| more | |\n|--|--|\n| four | |\n\n## Others\n\n| five | |\n|--|--|\n| six | |\n"
	rows, findings := unproven("page", page, "Rows")
	require.Equal(t, []string{"one", "two", "three", "four"}, rows)
	require.Len(t, findings, 2)
	require.Contains(t, findings[0], `"two" names no test`)
	require.Contains(t, findings[1], `"four"`)
	_, findings = unproven("page", page, "Missing")
	require.Len(t, findings, 1)
}
