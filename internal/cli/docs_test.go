package cli

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/natsconn"
)

var update = flag.Bool("update", false, "write docs/cli.md again")

// cliDoc is the reference, made from the grammar, the table of exit codes and the connection's variables.
func cliDoc(t *testing.T) string {
	t.Helper()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString(cliIntro)
	b.WriteString("## Flags of every command\n\n")
	flagTable(&b, parser.Model.Flags)
	b.WriteString("## Commands\n\n")
	for _, leaf := range parser.Model.Leaves(true) {
		fmt.Fprintf(&b, "### waymark %s\n\n%s\n\n    waymark %s\n\n", commandPath(leaf), prose(leaf.Help), commandUsage(leaf))
		if len(leaf.Positional) > 0 {
			b.WriteString("| argument | |\n|---|---|\n")
			for _, p := range leaf.Positional {
				fmt.Fprintf(&b, "| `%s` | %s |\n", p.Summary(), cell(p.Help))
			}
			b.WriteString("\n")
		}
		flagTable(&b, leaf.Flags)
		if leaf.Detail != "" {
			b.WriteString(prose(leaf.Detail) + "\n\n")
		}
	}
	b.WriteString("## Exit codes\n\n| code | name | meaning |\n|---|---|---|\n")
	for _, e := range failure.Codes {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", e.Code, e.Name, cell(e.Meaning))
	}
	b.WriteString("\n## Environment\n\nA flag wins over its variable.\n\n| variable | flag |\n|---|---|\n")
	told := map[string]bool{} // several commands may have one flag of the same meaning
	for _, f := range allFlags(parser.Model.Node) {
		if name := f.Tag.Get("environ"); name != "" && !told[name+f.Name] {
			told[name+f.Name] = true
			fmt.Fprintf(&b, "| `%s` | `--%s` |\n", name, f.Name)
		}
	}
	b.WriteString("\nThe connection, in pairs of which the first that is set wins:\n\n")
	names := natsconn.Variables()
	for i := 0; i < len(names); i += 2 {
		fmt.Fprintf(&b, "- `%s`, `%s`\n", names[i], names[i+1])
	}
	b.WriteString(cliOutro)
	return b.String()
}

func commandUsage(n *kong.Node) string {
	s := commandPath(n)
	for _, p := range n.Positional {
		s += " " + p.Summary()
	}
	for _, f := range n.Flags {
		if f.Required {
			s += fmt.Sprintf(" --%s=%s", f.Name, f.FormatPlaceHolder())
		}
	}
	if len(n.Flags) > 0 {
		s += " [flags]"
	}
	return s
}

func flagTable(b *strings.Builder, flags []*kong.Flag) {
	rows := 0
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		if rows++; rows == 1 {
			b.WriteString("| flag | |\n|---|---|\n")
		}
		name := "--" + f.Name
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		if f.Short != 0 {
			name = fmt.Sprintf("-%c, %s", f.Short, name)
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", name, cell(f.Help))
	}
	if rows > 0 {
		b.WriteString("\n")
	}
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

func TestReference_Page_EqualsGrammar(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "docs", "cli.md")
	want := cliDoc(t)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // every user may read the documentation
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/cli -run Reference -update")
	require.Equal(t, want, strings.ReplaceAll(string(have), "\r\n", "\n"), "write it with: go test ./internal/cli -run Reference -update")
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

Written by a test from the program's own grammar; change the program, then run
` + "`go test ./internal/cli -run Reference -update`" + `.

One binary: the daemon (` + "`waymark serve`" + `) and the operator's commands. Standard output has the result:
tables as wide as the terminal for people (` + "`COLUMNS`" + ` counts), whole in a pipe, with ` + "`--json`" + ` one JSON
document, or one per line if the output is a stream (events, watch, import). Ids are never cut. Standard error has
progress, logs and failures. A failure is two lines, the error and the next step; of several failures each has
its own line:

    waymark: no waymark server is running in ~/.local/state/waymark: there is no endpoint.json
    hint: start one with: waymark serve, or name another server with --nats or --context

With ` + "`--json`" + ` it is one JSON object on one line, the last of standard error, even if the command line is wrong:

    {"error":"fleet default has no run r1","hint":"list the runs with: waymark runs ls","code":4,"name":"not found"}

The commands in hints and next steps can be pasted: they repeat the flags that named the server and the fleet.
Passwords, tokens and the credentials within an address are never shown; give those in the environment.

Ctrl-C ends every command in order, a second one at once. A reader that goes away (` + "`| head`" + `) is no failure.

## Which server

The first of these that names a server wins:

1. ` + "`--nats`, `--context`" + `: the command line. An address wins over the context's, whose credentials are then used.
2. ` + "`NATS_URL`, `NATS_CONTEXT`" + `: the environment; ` + "`WAYMARK_NATS_URL`" + ` and its like come before them.
3. The server of ` + "`waymark serve`" + ` in the state directory of this user, or that of ` + "`--state-dir`" + `.
4. The context selected with ` + "`nats context select`" + `.

Credentials on the command line are always used. Those in the environment are used when the server was named by an
address on the command line or in the environment; they never reach the local server, or a context named on the command
line.

Programs with the SDK find a server by levels 2 to 4, too, unless they name one: ` + "`publisher.Config`" + `.

` + "`waymark serve`" + ` joins a server of levels 1 and 2, and else runs its own on 127.0.0.1, with ` + "`--embedded`" + ` in any case.
Other tools find that one through its context file: ` + "`nats --context <state directory>/nats/waymark.json kv ls`" + `.

## Taking a run over

` + "`waymark recover RUN --executor NAME`" + ` takes the run over: it opens a new epoch for NAME and fences the run's current
executor. It prints the run's state and the calls in doubt; those with the policy hold wait for
` + "`waymark settle`" + `. An executor without the SDK continues from the output of ` + "`--json`" + ` with the view head: epoch,
next_sequence, last_stream_sequence. Repeated with the same ` + "`--request-id`" + ` it continues the epoch that it opened.
To look without a takeover: ` + "`waymark runs get`" + `. An executor that then neither publishes nor sends heartbeats
counts as gone after ten seconds, and the fleet may claim the run.

## When a run needs a person

` + "`waymark inbox`" + ` lists the runs that need a person and takes the answers, and ` + "`waymark runs get RUN`" + ` prints the next
command, ready to be pasted. Why runs are stuck, and what a run did: [looking.md](looking.md).

| the run | what it means | what comes next |
|---|---|---|
| waits | it asks something, or a tool call needs approval; it costs nothing meanwhile and needs no executor | ` + "`waymark input RUN`" + ` shows the question and answers it |
| has a held call | the call may or may not have had its effect, and its policy requires a person to decide | look outside, then ` + "`waymark settle RUN TURN CALL --how …`" + ` |
| has ended with an open call | the same; cleanup keeps the run until a person has settled the call | the same, but for ` + "`--how rerun`" + `, which needs ` + "`waymark recover RUN --executor NAME --reason reopen`" + ` first |
| is quarantined | several claims in a row made no progress, so no executor can claim it | find out why, then ` + "`waymark release RUN`" + ` |
| hangs | its executor lives and does nothing | ` + "`waymark release RUN --force`" + `, or ` + "`waymark cancel RUN`" + ` |
| offers a hand-off that no executor accepts | no executor runs that agent | ` + "`waymark handoff decline RUN --reason …`" + ` |

` + "`waymark plan RUN`" + ` shows in advance what the next executor does with each call, and ` + "`waymark tree RUN`" + ` shows the run's
relations.

`

const cliOutro = `
## Files

| file | what |
|---|---|
| state directory | ` + "`--state-dir`, `WAYMARK_STATE_DIR`" + `, else ` + "`$XDG_STATE_HOME/waymark`" + ` or ` + "`~/.local/state/waymark`" + `; on Windows ` + "`%LocalAppData%\\waymark`" + ` |
| ` + "`endpoint.json`" + ` in it | address of the running server; exists while it runs |
| ` + "`waymark.lock`" + ` | held by the process that uses the directory |
| ` + "`running.json`, `unclean.json`" + ` | markers of an unclean stop |
| ` + "`nats/waymark.json`" + ` | NATS context with the generated credentials, readable by its owner only |
| ` + "`nats/store/`" + ` | JetStream's files |
| ` + "`$XDG_CONFIG_HOME/nats/context/`" + ` | NATS contexts, shared with the nats command; else ` + "`~/.config/nats/context/`" + ` |

## Health and metrics

` + "`--http`" + ` serves ` + "`/healthz`" + ` (the parts that a restart repairs: the daemon's loops and the embedded server), ` + "`/readyz`" + `
(the connections are up, and every shard's log acknowledged a write in the last ten seconds; 503 while the daemon starts
or stops), each with the part that fails and what to do ([observability.md](observability.md)), and ` + "`/metrics`" + `
(Prometheus, names begin with ` + "`waymark_`" + `; [metrics.md](metrics.md) has them all). On 127.0.0.1 unless told otherwise.
There is no login: on a loopback address only requests that name it by number or as localhost are answered, and nowhere
those that a page of another origin makes through a browser. Refusals are in the log.
`
