package cli

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// complete returns the words that may stand in place of the last of a line.
func complete(t *testing.T, words ...string) []string {
	t.Helper()
	getenv := func(string) string { return "" }
	var out bytes.Buffer
	require.Zero(t, Run(t.Context(), []string{"__complete", "--", "waymark " + strings.Join(words, " ")}, getenv, nil, &out, io.Discard))
	var list []string
	for line := range strings.Lines(out.String()) {
		word, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		list = append(list, word)
	}
	return list
}

// Every command and every flag that help shows is completed.
func TestComplete_Grammar_OffersEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		path := strings.Fields(commandPath(leaf))
		for i := range path {
			require.Contains(t, complete(t, append(append([]string{}, path[:i]...), path[i][:1])...), path[i])
		}
		flags := complete(t, append(path, "--")...)
		for _, f := range leaf.Flags {
			require.Equal(t, !f.Hidden, strings.Contains(strings.Join(flags, " ")+" ", "--"+f.Name+" "), "%v --%s", path, f.Name)
		}
		require.Contains(t, flags, "--json")
	}
}

func TestComplete_Values_OffersFlagsAndArguments(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"settle r 1 c --how re":         {"rerun"},
		"settle r 1 c --how=re":         {"--how=rerun"},
		"settle --epoch 2 r 1 c --how ": {"rerun", "verified", "adopted", "abandoned", "decided"},
		"completion f":                  {"fish"},
		"inb":                           {"inbox"},
		"--ver":                         {"--version"},
		"--fleet inbox fleet sh":        {"show"},
		"-q fleet sh":                   {"show"},
		"runs ls --pare":                {"--parent"},
		"events --no":                   {"--no-follow"},
		"no-such-command --j":           {"--json"},
		"runs get fix-":                 nil,
		"cleanup --max-age ":            nil, // the shell completes file names
	} {
		require.ElementsMatch(t, want, complete(t, strings.Split(line, " ")...), line)
	}
	require.Contains(t, complete(t), "serve")
}

// The scripts in the shells themselves, as far as those are there.
func TestCompletion_Scripts_InTheirShells(t *testing.T) {
	if testing.Short() {
		t.Skip("short: builds the program")
	}
	t.Parallel()
	dir := t.TempDir()
	built, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "waymark"), "../../cmd/waymark").CombinedOutput()
	require.NoError(t, err, "%s", built)
	for shell, ask := range map[string]string{
		"bash": `source "$1"; COMP_LINE="waymark settle r 1 c --how re"; COMP_POINT=${#COMP_LINE}; _waymark waymark re --how; printf '%s\n' "${COMPREPLY[@]}"`,
		"zsh":  `autoload -U compinit; compinit -u -d "$1.dump"; _describe() { print -l -- ${(P)2} }; source "$1"; words=(waymark settle r 1 c --how re); CURRENT=7; _waymark`,
		"fish": `source $argv[1]; complete -C "waymark settle r 1 c --how re"`,
	} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("%s is not here: its completion is NOT TESTED", shell)
			}
			var script bytes.Buffer
			require.Zero(t, Run(t.Context(), []string{"completion", shell}, func(string) string { return "" }, nil, &script, io.Discard))
			file := filepath.Join(t.TempDir(), "script")
			require.NoError(t, os.WriteFile(file, script.Bytes(), 0o600))
			args := []string{"-c", ask, shell, file}
			if shell == "fish" {
				args = []string{"-c", ask, file}
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Regexp(t, `^rerun\b`, string(out))
		})
	}
}

// commandPath is a command as typed, without the program's name.
func commandPath(n *kong.Node) string {
	name := n.Name
	for p := n.Parent; p != nil && p.Type == kong.CommandNode; p = p.Parent {
		name = p.Name + " " + name
	}
	return name
}
