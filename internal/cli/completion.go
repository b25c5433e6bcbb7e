package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the text below the flags.
func (completionCmd) Help() string {
	return `Completes commands, flags and their values.

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
func (c completeCmd) Run(a *base.App) error {
	parser, err := newParser(new(cli), a.Getenv, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	words := strings.Split(strings.TrimPrefix(strings.Join(c.Line, " "), "-- "), " ")
	begun, before := words[len(words)-1], words[1:max(len(words)-1, 1)] // without the program
	var b strings.Builder
	for _, w := range choices(parser.Model.Node, before, begun) {
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

// choices returns the commands, flags and values that can follow before and that begin with begun.
func choices(node *kong.Node, before []string, begun string) []choice {
	var pending *kong.Flag // its value comes next
	arguments := 0
	for _, word := range before {
		child := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == word || slices.Contains(n.Aliases, word) })
		switch {
		case word == "":
		case pending != nil:
			pending = nil
		case strings.HasPrefix(word, "-"):
			pending = flagNamed(node, word)
		case child >= 0:
			node = node.Children[child]
		default:
			arguments++
		}
	}
	prefix := ""
	if name, value, has := strings.Cut(begun, "="); has && strings.HasPrefix(name, "-") {
		pending, prefix, begun = flagNamed(node, name), name+"=", value
	}
	var all []choice
	values := func(v *kong.Value) {
		for _, word := range v.EnumSlice() {
			all = append(all, choice{word, ""})
		}
	}
	switch args := node.Positional; {
	case pending != nil:
		values(pending.Value)
	case strings.HasPrefix(begun, "-"):
		for _, f := range slices.Concat(node.AllFlags(true)...) {
			all = append(all, choice{"--" + f.Name, f.Help})
		}
	case arguments < len(args):
		values(args[arguments])
	default:
		for _, n := range node.Children {
			if !n.Hidden {
				all = append(all, choice{n.Name, n.Help})
			}
		}
	}
	all = slices.DeleteFunc(all, func(c choice) bool { return c.word == "" || !strings.HasPrefix(c.word, begun) })
	for i := range all {
		all[i].word = prefix + all[i].word
	}
	return all
}

// flagNamed is the flag of a word that takes a value.
func flagNamed(node *kong.Node, word string) *kong.Flag {
	for _, f := range slices.Concat(node.AllFlags(false)...) {
		if !f.IsBool() && (word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short)) {
			return f
		}
	}
	return nil
}
