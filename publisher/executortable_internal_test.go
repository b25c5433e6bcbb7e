package publisher

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

var updateTable = flag.Bool("update", false, "write the tables in docs/sdk.md again")

// transitionTable is the page's table of what an executor does with a run.
func transitionTable() string {
	var b strings.Builder
	b.WriteString("| what happens | what is published | the run is then |\n|---|---|---|\n")
	for _, t := range transitions {
		var published []string
		if t.wait {
			published = append(published, "`run.waiting` (`tool_in_doubt`)")
		}
		if t.raises() {
			published = append(published, "`error.raised`")
		}
		if t.interrupted != "" {
			published = append(published, "`run.interrupted` ("+t.interrupted+")")
		}
		if t.ended != "" {
			published = append(published, "`run.ended` ("+string(t.ended)+")")
		}
		if published == nil {
			published = []string{"nothing"}
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.when, strings.Join(published, ", "), t.outcome())
	}
	return b.String()
}

// outcome is the outcome in words.
func (t *transition) outcome() string {
	if t.to == "" {
		return "as the work ended it"
	}
	return string(t.to)
}

// errorTable is the page's table of this package's errors: verdicts are made by errors.New, the others are unknown.
func errorTable(t *testing.T) string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString("| error | what it is |\n|---|---|\n")
	ast.Inspect(parsed, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Err") {
			return true
		}
		made := v.Values[0]
		if call, ok := made.(*ast.CallExpr); ok {
			made = call.Fun
		}
		from, ok := made.(*ast.SelectorExpr)
		require.True(t, ok, v.Names[0].Name)
		kind := map[string]string{"errors": "verdict", "encryption": "verdict", "fleetclient": "unknown"}[fmt.Sprint(from.X)]
		require.NotEmpty(t, kind, "%s is neither", v.Names[0].Name)
		if name := from.Sel.Name; name == "ErrNoKey" || name == "ErrNotOpened" {
			require.True(t, unknown(keyError("x", "k", ErrNotDecrypted)) && unknown(keyError("x", "k", ErrNoKey)))
			kind = "unknown; comes with `ErrEncrypted`"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", v.Names[0].Name, kind)
		return true
	})
	return b.String()
}

// requireTable checks, or writes, the part of the page that a test makes.
func requireTable(t *testing.T, name, table string) {
	t.Helper()
	file := filepath.Join("..", "docs", "sdk.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- "+name+": made by a test -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *updateTable {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+table+end+after), 0o644))
		return
	}
	require.Equal(t, table, got, "go test ./publisher -run SDKPage -update writes it again")
}

//nolint:paralleltest // both tables are in one file, which -update writes
func TestSDKPage_Tables_AreWhatThePackageHas(t *testing.T) {
	requireTable(t, "executor", transitionTable())
	requireTable(t, "errors", errorTable(t))
}

// An answer of the daemon with a code that has no error here says nothing about a run.
func TestUnknown_AnswerOfTheDaemon_IsAVerdictByItsCode(t *testing.T) {
	t.Parallel()
	for code, want := range map[schema.Code]bool{
		schema.CodeInternal: true, schema.CodeForbidden: true, schema.CodeBadRequest: true, schema.CodeStorageFull: true, "later": true,
		schema.CodeErased: false, schema.CodeConflict: false, schema.CodeInvalidAnswer: false, schema.CodeDamaged: false,
	} {
		err := fmt.Errorf("signal: %w", translate(schema.Fail(code, "h", "m")))
		require.Equal(t, want, unknown(err), code)
	}
}
