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

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the text below the flags.
func (completionCmd) Help() string {
	return `Completes commands, flags, values, and run ids from the server, if it answers within a second. An update needs no new script.

Examples:
  waymark completion bash > ~/.local/share/bash-completion/completions/waymark
  waymark completion zsh > "${fpath[1]}/_waymark"
  waymark completion fish > ~/.config/fish/completions/waymark.fish`
}

// scripts pass the words up to the cursor to this program. Each line of the answer is a word, a tab and its help; the
// line filesWord makes the shell complete file names.
var scripts = map[string]string{
	"bash": `# completion of waymark for bash
_waymark() {
	local IFS=$'\n' line
	COMPREPLY=()
	while IFS= read -r line; do
		if [ "$line" = "` + filesWord + `" ]; then
			COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
			compopt -o filenames 2>/dev/null
			return
		fi
		COMPREPLY+=("${line%%$'\t'*}")
	done < <("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _waymark waymark
`,
	"zsh": `#compdef waymark
# completion of waymark for zsh
_waymark() {
	local line
	local -a words_ described
	words_=("${(@)words[2,CURRENT]}")
	while IFS= read -r line; do
		if [[ "$line" == "` + filesWord + `" ]]; then
			_files
			return
		fi
		described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done < <("${words[1]}" __complete -- "${words_[@]}" 2>/dev/null)
	_describe waymark described
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
	set -l answer (command $words[1] __complete -- $words[2..-1] 2>/dev/null)
	if test "$answer" = "` + filesWord + `"
		__fish_complete_path (commandline -ct)
	else
		printf '%s\n' $answer
	end
end
complete -c waymark -f -a "(__waymark_complete)"
`,
}

// filesWord stands for file names.
const filesWord = ":files"

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
	Words []string `arg:"" optional:"" passthrough:"" help:"The words after waymark, up to the one to complete."`
}

// Run prints the completions of the last word.
func (c completeCmd) Run(ctx context.Context, a *base.App) error {
	parser, err := newParser(new(cli), a.Getenv, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if words = unsplit(words); len(words) == 0 {
		words = []string{""}
	}
	line := completed{node: parser.Model.Node}
	line.read(words[:len(words)-1])
	var b strings.Builder
	for _, w := range line.words(words[len(words)-1], func() []string { return runIDs(ctx, a, line.server) }) {
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

// unsplit joins words that bash has split at colons, so that a server address is one word: half of an address is
// another server.
func unsplit(words []string) (joined []string) {
	behind := false
	for _, w := range words {
		colon := strings.Trim(w, ":") == "" && w != ""
		if n := len(joined); n > 0 && (colon || behind) {
			joined[n-1] += w
		} else {
			joined = append(joined, w)
		}
		behind = colon
	}
	return joined
}

// completed is a command line up to the word to complete.
type completed struct {
	node *kong.Node
	// positional counts the arguments so far.
	positional int
	// value is the flag whose value comes next; nil for none.
	value *kong.Flag
	// server are the flags that name a server, as given.
	server []string
}

// read reads the words.
func (l *completed) read(words []string) {
	for _, word := range words {
		if l.value != nil {
			if word == "=" {
				continue // bash makes it a word
			}
			l.gave(word)
			continue
		}
		name, value, has := strings.Cut(word, "=")
		if flag := l.flag(name); flag != nil {
			if flag.IsBool() {
				continue
			}
			l.value = flag
			if has {
				l.gave(value)
			}
			continue
		}
		child := slices.IndexFunc(l.node.Children, func(n *kong.Node) bool { return n.Name == word || slices.Contains(n.Aliases, word) })
		if child >= 0 {
			l.node, l.positional = l.node.Children[child], 0
		} else {
			l.positional++
		}
	}
}

// gave records the value of a flag.
func (l *completed) gave(value string) {
	if l.value.Group != nil && l.value.Group.Key == "server" {
		l.server = append(l.server, "--"+l.value.Name, value)
	}
	l.value = nil
}

// flags of the command and of its parents.
func (l *completed) flags() []*kong.Flag {
	var list []*kong.Flag
	for n := l.node; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			if !f.Hidden {
				list = append(list, f)
			}
		}
	}
	return list
}

func (l *completed) flag(word string) *kong.Flag {
	for _, f := range l.flags() {
		if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

// choice is a possible next word.
type choice struct{ word, help string }

// words returns the words that may follow and have the prefix begun.
func (l *completed) words(begun string, runs func() []string) []choice {
	var all []choice
	prefix := ""
	if name, value, has := strings.Cut(begun, "="); has && l.value == nil && l.flag(name) != nil {
		l.value, prefix, begun = l.flag(name), name+"=", value
	}
	switch {
	case l.value != nil:
		all = valuesOf(l.value.Value, runs)
	case strings.HasPrefix(begun, "-"):
		for _, f := range l.flags() {
			all = append(all, choice{"--" + f.Name, f.Help})
		}
	default:
		for _, n := range l.node.Children {
			if !n.Hidden && n.Type == kong.CommandNode {
				all = append(all, choice{n.Name, n.Help})
				for _, alias := range n.Aliases {
					all = append(all, choice{alias, n.Help})
				}
			}
		}
		if args := l.node.Positional; len(args) > 0 {
			// The last argument may take several values.
			all = append(all, valuesOf(args[min(l.positional, len(args)-1)], runs)...)
		}
	}
	if len(all) == 1 && all[0].word == filesWord {
		return all
	}
	all = slices.DeleteFunc(all, func(c choice) bool { return c.word == filesWord || !strings.HasPrefix(c.word, begun) })
	for i := range all {
		all[i].word = prefix + all[i].word
	}
	return all
}

// valuesOf returns the known values of a flag or an argument.
func valuesOf(v *kong.Value, runs func() []string) []choice {
	place := v.Name
	if v.Flag != nil {
		place = v.Flag.PlaceHolder
	}
	switch strings.ToUpper(place) {
	case "RUN":
		var list []choice
		for _, run := range runs() {
			list = append(list, choice{run, ""})
		}
		return list
	case "FILE", "DIR", "FILES", "PATH":
		return []choice{{filesWord, ""}}
	}
	var list []choice
	if v.Enum != "" {
		for word := range strings.SplitSeq(v.Enum, ",") {
			list = append(list, choice{strings.TrimSpace(word), ""})
		}
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
