package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

var (
	// namedCommand finds the words behind the program's name, in a page, a script or a text of the program.
	namedCommand = regexp.MustCompile("(?:^|[\"'`(/ ])waymark ([^`|;#&>\n]*)")
	// scriptLine is a line that is a command: its first word must be one. Scripts say of wrong ones that they exit with 2.
	scriptLine = regexp.MustCompile(`^(?:exits [013-9] |until |\$ | {4})?waymark [a-z]`)
	// commandWord is a word that can be a command, and namedFlag a flag.
	commandWord = regexp.MustCompile(`^[a-z]+$`)
	namedFlag   = regexp.MustCompile(`^--[a-z][a-z-]*`)
)

// namedFiles are the kinds of files that name commands, and notNamed those that do not name today's, or have
// words that look like one.
var (
	namedFiles = []string{".go", ".md", ".sh", ".txtar", ".yaml", ".yml", ".service", ".json"}
	notNamed   = regexp.MustCompile(`^(\.git|\.bin|docs/decisions|docs/pictures|CHANGELOG\.md|publisher/redact_test\.go|internal/(cli/usage|cli/named|lint/testnames)_test\.go)`)
)

// grammar looks for commands and flags that are not there.
type grammar struct {
	*kong.Node
	found int
}

// wrong says what the words behind the program's name have that the grammar lacks; empty for nothing. strict words
// begin with a command; others may be prose.
func (g *grammar) wrong(words []string, strict bool) string {
	node := g.Node
	flags := map[string]*kong.Flag{}
	add := func(n *kong.Node) {
		for _, f := range n.Flags {
			flags["--"+f.Name] = f
		}
	}
	add(node)
	for i := 0; i < len(words); i++ {
		if words[i] == "--" { // the command line of another program
			return ""
		}
		name := namedFlag.FindString(words[i])
		flag := flags[name]
		switch {
		case name != "" && flag == nil && node != g.Node:
			return name + " is no flag of waymark " + commandPath(node)
		case name != "":
			g.found++
			if flag != nil && !flag.IsBool() && words[i] == name {
				i++
			}
			continue
		}
		if len(node.Children) == 0 {
			continue
		}
		at := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == words[i] })
		switch {
		case at >= 0:
			node = node.Children[at]
			add(node)
			if node.DefaultCmd != nil {
				add(node.DefaultCmd)
			}
		case i == 0 && words[i] == "help":
			continue
		case i == 0 && (!strict || words[i] == "is"), node.DefaultCmd != nil && !strict:
			return "" // prose
		case commandWord.MatchString(words[i]) && (node.DefaultCmd == nil || len(node.DefaultCmd.Positional) == 0):
			return words[i] + " is no command"
		default:
			return ""
		}
	}
	return ""
}

// text looks through the lines of a page or a script, or of a text of the program.
func (g *grammar) text(text string, script bool) (wrong []string) {
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, " ")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "exits 2 ") || strings.HasPrefix(line, "# ") {
			continue
		}
		for _, m := range namedCommand.FindAllStringSubmatch(line, -1) {
			if said := g.wrong(strings.Fields(strings.NewReplacer("`", " ", "\"", " ", "'", " ", "(", " ", ")", " ", ",", " , ", ":", " : ", ". ", " . ").Replace(m[1])), script && scriptLine.MatchString(line)); said != "" {
				wrong = append(wrong, said+": "+strings.TrimSpace(line))
			}
		}
	}
	return wrong
}

// code looks through the texts of a Go file, and through the arguments that stand side by side as texts.
func (g *grammar) code(file string) (wrong []string, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	literal := func(e ast.Expr) (string, bool) {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(lit.Value)
		return text, err == nil
	}
	side := func(list []ast.Expr) {
		var words []string
		for _, e := range list {
			if word, ok := literal(e); ok {
				words = append(words, word)
			} else if len(words) > 0 {
				words = append(words, "…")
			}
		}
		switch {
		case len(words) > 1 && words[0] == "waymark":
			words = words[1:]
		case !strings.HasSuffix(file, "_test.go") || len(words) < 2 || !slices.ContainsFunc(g.Children, func(n *kong.Node) bool { return n.Name == words[0] && len(n.Children) > 0 }):
			return
		}
		if said := g.wrong(words, false); said != "" {
			wrong = append(wrong, said+": "+strings.Join(words, " "))
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, ok := literal(n); ok {
				wrong = append(wrong, g.text(text, false)...)
			}
		case *ast.CallExpr:
			side(n.Args)
		case *ast.CompositeLit:
			side(n.Elts)
		}
		return true
	})
	return wrong, nil
}

// Pages, scripts, hints and tests name commands and flags of this program: each is there. Tests of make check-full run
// seldom, and would name one that is gone for long.
func TestCommands_NamedAnywhere_Exist(t *testing.T) {
	t.Parallel()
	k, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	g := &grammar{Node: k.Model.Node}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	var wrong []string
	require.NoError(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, file)
		name = filepath.ToSlash(name)
		if notNamed.MatchString(name) && d.IsDir() {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || notNamed.MatchString(name) || !slices.Contains(namedFiles, filepath.Ext(name)) {
			return err
		}
		var said []string
		if filepath.Ext(name) == ".go" {
			said, err = g.code(file)
		} else {
			var text []byte
			text, err = os.ReadFile(file)
			said = g.text(string(text), true)
		}
		for _, s := range said {
			wrong = append(wrong, name+": "+s)
		}
		return err
	}))
	require.Empty(t, wrong, strings.Join(wrong, "\n"))
	require.Greater(t, g.found, 300)
}

func TestGrammar_WordsOfEachKind_AreFoundOrPass(t *testing.T) {
	t.Parallel()
	k, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	g := &grammar{Node: k.Model.Node}
	for text, wrong := range map[string]bool{
		"see waymark runs get RUN --at POINT":      false,
		"use `waymark runs watch RUN`":             true,
		"waymark --fleet f retry RUN":              true,
		"the waymark version that wrote it":        false,
		"waymark runs ls --until-end":              true,
		"waymark --context FILE fleet keys --json": false,
		"waymark backup /var/backups":              false,
		"$ waymark fleet shard":                    true,
		"the waymark fleet and its streams":        false,
		"the `waymark runs` of this fleet":         false,
	} {
		require.Equal(t, wrong, len(g.text(text, true)) > 0, text)
	}
}
