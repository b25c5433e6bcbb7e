package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
)

var update = flag.Bool("update", false, "write docs/cli.md again")

// cliDoc is the reference, made from the grammar and the table of exit codes.
func cliDoc(t *testing.T) string {
	t.Helper()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString(cliIntro)
	b.WriteString("## Flags of every command\n\n")
	table(&b, flagRows(parser.Model.Flags))
	leaves := parser.Model.Leaves(true)
	uses := make(map[row]int)
	for _, leaf := range leaves {
		for _, r := range leafRows(leaf) {
			uses[r]++
		}
	}
	var several []row
	for _, leaf := range leaves {
		for _, r := range leafRows(leaf) {
			if uses[r] > 1 && !slices.Contains(several, r) {
				several = append(several, r)
			}
		}
	}
	b.WriteString("## Arguments and flags of several commands\n\nA command names its flags among them behind *Also*.\n\n")
	table(&b, several)
	b.WriteString("## Commands\n\n")
	for _, leaf := range leaves {
		fmt.Fprintf(&b, "### waymark %s\n\n%s\n\n", commandPath(leaf), prose(leaf.Help))
		if usage := commandUsage(leaf); usage != commandPath(leaf) {
			fmt.Fprintf(&b, "    waymark %s\n\n", usage)
		}
		var own []row
		var also []string
		for _, r := range leafRows(leaf) {
			flag, _, _ := strings.Cut(r.name, "=")
			switch {
			case uses[r] == 1:
				own = append(own, r)
			case strings.HasPrefix(flag, "-"):
				also = append(also, "`"+flag+"`")
			}
		}
		table(&b, own)
		if len(also) > 0 {
			b.WriteString(prose("Also "+strings.Join(also, ", ")+".") + "\n\n")
		}
		if leaf.Detail != "" {
			b.WriteString(prose(leaf.Detail) + "\n\n")
		}
	}
	b.WriteString("## Exit codes\n\n| code | name | meaning |\n|---|---|---|\n")
	for _, e := range failure.Codes {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", e.Code, e.Name, cell(e.Meaning))
	}
	b.WriteString(cliOutro)
	return b.String()
}

// row is an argument or a flag with its help.
type row struct{ name, help string }

// leafRows are the arguments and flags of a command.
func leafRows(n *kong.Node) []row {
	var rows []row
	for _, p := range n.Positional {
		rows = append(rows, row{p.Summary(), p.Help})
	}
	return append(rows, flagRows(n.Flags)...)
}

func flagRows(flags []*kong.Flag) []row {
	var rows []row
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		name := "--" + f.Name
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		if f.Short != 0 {
			name = fmt.Sprintf("-%c, %s", f.Short, name)
		}
		rows = append(rows, row{name, f.Help})
	}
	return rows
}

func table(b *strings.Builder, rows []row) {
	if len(rows) == 0 {
		return
	}
	b.WriteString("| | |\n|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(b, "| `%s` | %s |\n", r.name, cell(r.help))
	}
	b.WriteString("\n")
}

func commandUsage(n *kong.Node) string {
	s := commandPath(n)
	for _, p := range n.Positional {
		s += " " + p.Summary()
	}
	for _, f := range n.Flags {
		if f.Required && len(f.Xor) == 0 {
			s += fmt.Sprintf(" --%s=%s", f.Name, f.FormatPlaceHolder())
		}
	}
	return s
}

func allFlags(n *kong.Node) []*kong.Flag {
	flags := n.Flags
	for _, child := range n.Children {
		if !child.Hidden {
			flags = append(flags, allFlags(child)...)
		}
	}
	return flags
}

// prose is a help text as a page has it: lines of at most 120 characters, and indented lines as code.
func prose(help string) string {
	var b strings.Builder
	code := false
	for i, line := range strings.Split(help, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented != code && i > 0 && line != "" {
			b.WriteString("\n") // between text and code
		}
		if i > 0 {
			b.WriteString("\n")
		}
		if line != "" {
			code = indented
		}
		if indented {
			b.WriteString("    " + strings.TrimPrefix(line, "  "))
			continue
		}
		width := 0
		for n, word := range strings.Fields(line) {
			length := utf8.RuneCountInString(word)
			switch {
			case n == 0:
			case width+1+length > 120:
				b.WriteString("\n")
				width = 0
			default:
				b.WriteString(" ")
				width++
			}
			b.WriteString(word)
			width += length
		}
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// lineDiff is the range of lines in which two texts differ, as a diff.
func lineDiff(from, to string) string {
	was, is := strings.Split(from, "\n"), strings.Split(to, "\n")
	same := 0
	for same < min(len(was), len(is)) && was[same] == is[same] {
		same++
	}
	was, is = was[same:], is[same:]
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "from line %d on:\n", same+1)
	for _, side := range []struct {
		sign         string
		lines, other []string
	}{{"-", was, is}, {"+", is, was}} {
		for _, line := range side.lines {
			if !slices.Contains(side.other, line) {
				fmt.Fprintf(&b, "%s %s\n", side.sign, line)
			}
		}
	}
	return b.String()
}

func TestLineDiff_OneLineAdded_IsAllThatIsPrinted(t *testing.T) {
	t.Parallel()
	require.Equal(t, "from line 2 on:\n+ b\n", lineDiff("a\nc\nd\n", "a\nb\nc\nd\n"))
	require.Equal(t, "from line 1 on:\n- a\n- d\n+ b\n+ e\n", lineDiff("a\nc\nd", "b\nc\ne"))
}

func TestReference_Page_EqualsGrammar(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "docs", "cli.md")
	want := cliDoc(t)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // every user may read the documentation
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/cli -run Reference -update")
	if page := strings.ReplaceAll(string(have), "\r\n", "\n"); page != want {
		require.Fail(t, "docs/cli.md is not what the commands say", "%swrite it with: go test ./internal/cli -run Reference -update", lineDiff(page, want))
	}
}

func TestHelp_EveryFlagAndCommand_Described(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		require.True(t, strings.HasSuffix(leaf.Help, "."), "help of %s: %q", commandPath(leaf), leaf.Help)
	}
	for _, f := range allFlags(parser.Model.Node) {
		require.NotEmpty(t, f.Help, "help of --%s", f.Name)
		if name := f.Tag.Get("environ"); name != "" {
			require.Contains(t, f.Help, name, "help of --%s must name its variable", f.Name)
		}
	}
}

const cliIntro = `# The command waymark

After this page you know how a command finds its server, what its output and exit code mean, and what each command and
flag does.

` + "`waymark serve`" + ` is the daemon; the other commands are for operators. Standard output has the result: tables as wide as
the terminal (` + "`COLUMNS`" + `), whole in a pipe; with ` + "`--json`" + ` one JSON document, or one a line from commands that follow.
Standard error has progress, logs, and failures with the next step:

    waymark: no waymark server is running in ~/.local/state/waymark: there is no endpoint.json
    hint: start one with: waymark serve, or name another server with --nats or --context

With ` + "`--json`" + ` a failure is one JSON object on the last line of standard error, also of a wrong command line:

    {"error":"fleet default has no run r1","hint":"list the runs with: waymark runs ls","code":4,"name":"not found"}

Commands in hints can be pasted: they repeat the flags of server and fleet. Ctrl-C ends every command in order, a second
one at once.

## Which server

The first of these that names a server wins:

1. ` + "`--nats`, `--context`" + `: both only if the context names no address; its credentials are for its own.
2. ` + "`NATS_URL`, `NATS_CONTEXT`" + `.
3. The server of ` + "`waymark serve`" + ` in the state directory.
4. The context selected with ` + "`nats context select`" + `.

Credentials on the command line are always used. Those in the environment are used if an address named the server; they
never reach the local server or a context of the command line. A flag wins over its variable, and ` + "`WAYMARK_NATS_URL`" + ` and
its like over ` + "`NATS_URL`" + ` and its like.

` + "`waymark serve`" + ` joins a server of 1 or 2, and else runs its own on 127.0.0.1. Other tools find that one by
` + "`nats --context <state directory>/nats/waymark.json`" + `. Programs with the SDK use 2 to 4.

`

const cliOutro = `
## Files

| file | what |
|---|---|
| state directory | ` + "`--state-dir`, `WAYMARK_STATE_DIR`" + `, else ` + "`$XDG_STATE_HOME/waymark`" + ` or ` + "`~/.local/state/waymark`" + `; on Windows ` + "`%LocalAppData%\\waymark`" + ` |
| ` + "`endpoint.json`" + ` in it | address of the running server |
| ` + "`waymark.lock`" + ` | held by the process that uses the directory |
| ` + "`nats/waymark.json`" + ` | NATS context with the generated credentials, for its owner only |
| ` + "`nats/store/`" + ` | JetStream's files |
| ` + "`$XDG_CONFIG_HOME/nats/context/`" + ` | NATS contexts, shared with the nats command; else ` + "`~/.config/nats/context/`" + ` |
`

// commandPath is a command as typed, without the program's name.
func commandPath(n *kong.Node) string {
	name := n.Name
	for p := n.Parent; p != nil && p.Type == kong.CommandNode; p = p.Parent {
		name = p.Name + " " + name
	}
	return name
}
