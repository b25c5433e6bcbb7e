package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the text below the flags.
func (completionCmd) Help() string {
	return `Run ids come from the server, if it answers within a second.

Examples:
  waymark completion bash > ~/.local/share/bash-completion/completions/waymark
  waymark completion zsh > "${fpath[1]}/_waymark"
  waymark completion fish > ~/.config/fish/completions/waymark.fish`
}

// scripts pass the line up to the cursor to this program. Each line of the answer is a word, a tab and its help. Without
// an answer the shell completes file names.
var scripts = map[string]string{
	"bash": `# completion of waymark for bash
_waymark() {
	local line
	COMPREPLY=()
	while IFS= read -r line; do
		line="${line%%$'\t'*}"
		COMPREPLY+=("${line#--*=}")
	done < <("$1" __complete -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
complete -o default -F _waymark waymark
`,
	"zsh": `#compdef waymark
# completion of waymark for zsh
_waymark() {
	local line
	local -a described
	while IFS= read -r line; do
		described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done < <("${words[1]}" __complete -- "${(@)words[1,CURRENT]}" 2>/dev/null)
	if (( $#described )); then
		_describe waymark described
	else
		_files
	fi
}
if [ "$funcstack[1]" = "_waymark" ]; then
	_waymark "$@"
else
	compdef _waymark waymark
fi
`,
	"fish": `# completion of waymark for fish
function __waymark_complete
	set -l words (commandline -opc) (commandline -ct)
	set -l answer (command $words[1] __complete -- $words 2>/dev/null)
	if set -q answer[1]
		printf '%s\n' $answer
	else
		__fish_complete_path (commandline -ct)
	end
end
complete -c waymark -f -a "(__waymark_complete)"
`,
}

// Run prints the script.
func (c completionCmd) Run(a *base.App) error {
	_, err := io.WriteString(a.Stdout, scripts[c.Shell])
	if err != nil {
		return fmt.Errorf("writing the script: %w", err)
	}
	return nil
}

// completeCmd answers the scripts.
type completeCmd struct {
	Line []string `arg:"" optional:"" passthrough:"" help:"The command line up to the cursor, as one word or several."`
}

// Run prints the words that can stand at the cursor.
func (c completeCmd) Run(ctx context.Context, a *base.App) error {
	parser, err := newParser(new(cli), a.Getenv, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	words := strings.Split(strings.TrimPrefix(strings.Join(c.Line, " "), "-- "), " ")
	begun := words[len(words)-1]
	before := slices.DeleteFunc(words[:len(words)-1], func(w string) bool { return w == "" })
	if len(before) > 0 {
		before = before[1:] // the program
	}
	list, err := choices(parser, before, begun, func(server []string) []string { return runIDs(ctx, a, server) })
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, w := range list {
		b.WriteString(w.word)
		if w.help != "" {
			b.WriteString("\t" + output.Printable(w.help))
		}
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(a.Stdout, b.String()); err != nil {
		return fmt.Errorf("writing the words: %w", err)
	}
	return nil
}

// choice is a possible next word.
type choice struct{ word, help string }

// choices returns the words that can follow before and that begin with begun. runs returns the runs of a server, which
// flags name.
func choices(parser *kong.Kong, before []string, begun string, runs func(server []string) []string) ([]choice, error) {
	// A flag without its value, which comes next, ends the trace with an error.
	traced, pending := before, ""
	if len(before) > 0 && strings.HasPrefix(before[len(before)-1], "-") {
		traced, pending = before[:len(before)-1], before[len(before)-1]
	}
	line, err := kong.Trace(parser, traced)
	if err != nil {
		return nil, fmt.Errorf("reading the command line: %w", err)
	}
	node := line.Selected()
	switch {
	case node == nil:
		node = parser.Model.Node
	case node.Parent.DefaultCmd == node && !slices.Contains(traced, node.Name):
		node = node.Parent // the trace went on to the default command
	}
	flags := slices.Concat(node.AllFlags(true)...)
	known := func() []string {
		if line.Error != nil {
			return nil // it may name a server that was not read
		}
		return runs(serverFlags(line))
	}

	prefix := ""
	if name, value, has := strings.Cut(begun, "="); has && strings.HasPrefix(name, "-") {
		pending, prefix, begun = name, name+"=", value
	}
	var all []choice
	switch value := flagNamed(flags, pending); {
	case value != nil && !value.IsBool():
		all = valuesOf(value.Value, known)
	case prefix == "" && strings.HasPrefix(begun, "-"):
		for _, f := range flags {
			all = append(all, choice{"--" + f.Name, f.Help})
		}
	case prefix == "":
		all = commandsAndArguments(line, node, known)
	}
	all = slices.DeleteFunc(all, func(c choice) bool { return c.word == "" || !strings.HasPrefix(c.word, begun) })
	for i := range all {
		all[i].word = prefix + all[i].word
	}
	return all, nil
}

// serverFlags are the flags of a line that name a server.
func serverFlags(line *kong.Context) (flags []string) {
	for _, p := range line.Path {
		if p.Flag != nil && p.Flag.Group != nil && p.Flag.Group.Key == "server" {
			flags = append(flags, fmt.Sprintf("--%s=%v", p.Flag.Name, line.FlagValue(p.Flag)))
		}
	}
	return flags
}

func flagNamed(flags []*kong.Flag, word string) *kong.Flag {
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) })
	if i < 0 {
		return nil
	}
	return flags[i]
}

// commandsAndArguments are the commands below a node, and the values of its next argument.
func commandsAndArguments(line *kong.Context, node *kong.Node, runs func() []string) (all []choice) {
	for _, n := range node.Children {
		if !n.Hidden && n.Type == kong.CommandNode {
			for _, name := range append([]string{n.Name}, n.Aliases...) {
				all = append(all, choice{name, n.Help})
			}
		}
	}
	given := 0
	for _, p := range line.Path {
		if p.Positional != nil {
			given++
		}
	}
	if args := node.Positional; len(args) > 0 {
		// The last argument may take several values.
		all = append(all, valuesOf(args[min(given, len(args)-1)], runs)...)
	}
	return all
}

// valuesOf returns the known values of a flag or an argument; none for a file.
func valuesOf(v *kong.Value, runs func() []string) (list []choice) {
	place := v.Name
	if v.Flag != nil {
		place = v.Flag.PlaceHolder
	}
	words := v.EnumSlice()
	if strings.EqualFold(place, "run") {
		words = runs()
	}
	for _, word := range words {
		list = append(list, choice{word, ""})
	}
	return list
}

// mostRuns bounds the completed runs: the newest.
const mostRuns = "200"

// runIDs returns the newest runs of a command line's server, or none if it does not answer soon: a shell waits for it.
func runIDs(ctx context.Context, a *base.App, server []string) []string {
	var out bytes.Buffer
	inner := &base.App{Getenv: a.Getenv, Stdout: &out, Stderr: io.Discard, Now: a.Now, Refuse: a.Refuse}
	args := append([]string{"runs", "ls", "--json", "--quiet", "--limit", mostRuns}, server...)
	if dispatch(ctx, inner, append(args, "--timeout", "1s")) != nil {
		return nil
	}
	var list schema.ListReply
	if json.Unmarshal(out.Bytes(), &list) != nil {
		return nil
	}
	ids := make([]string, len(list.Runs))
	for i := range list.Runs {
		ids[i] = list.Runs[i].Run
	}
	return ids
}
