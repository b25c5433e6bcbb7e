package cli

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
)

// complete returns the words that may stand in place of the last of a line.
func complete(t *testing.T, stateDir string, words ...string) []string {
	t.Helper()
	getenv := func(name string) string { return map[string]string{"WAYMARK_STATE_DIR": stateDir}[name] }
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
	nowhere := t.TempDir()
	for _, leaf := range parser.Model.Leaves(true) {
		path := strings.Fields(commandPath(leaf))
		for i := range path {
			require.Contains(t, complete(t, nowhere, append(append([]string{}, path[:i]...), path[i][:1])...), path[i])
		}
		flags := complete(t, nowhere, append(path, "--")...)
		for _, f := range leaf.Flags {
			require.Equal(t, !f.Hidden, strings.Contains(strings.Join(flags, " ")+" ", "--"+f.Name+" "), "%v --%s", path, f.Name)
		}
		require.Contains(t, flags, "--json")
	}
}

func TestComplete_Values_OffersFlagsAndArguments(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	f := w.Fleet("ex-1", nil)
	for _, run := range []string{"fix-login", "fix-logout", "other"} {
		_, err := f.Submit(t.Context(), publisher.RunSpec{ID: run, Agent: "coder"})
		require.NoError(t, err)
	}
	for _, c := range []struct {
		line string
		want []string
	}{
		{"settle r 1 c --how re", []string{"rerun"}},
		{"settle r 1 c --how=re", []string{"--how=rerun"}},
		{"runs get fix-", []string{"fix-login", "fix-logout"}},
		{"runs get --view state oth", []string{"other"}},
		{"plan oth", []string{"other"}},
		{"completion f", []string{"fish"}},
		{"inb", []string{"inbox"}},
		{"--ver", []string{"--version"}},
		{"fleet sh", []string{"show"}},
		{"runs ls --pare", []string{"--parent"}},
		{"events --no", []string{"--no-follow"}},
		{"no-such-command --j", []string{"--json"}},
	} {
		// A shell does not wait for a busy daemon: without an answer in time there are no runs to offer.
		var got []string
		require.Eventually(t, func() bool {
			got = complete(t, w.StateDir(), strings.Split(c.line, " ")...)
			return len(got) == len(c.want)
		}, 30*time.Second, time.Millisecond, c.line)
		require.ElementsMatch(t, c.want, got, c.line)
	}
	require.Empty(t, complete(t, w.StateDir(), "cleanup", "--report", ""), "the shell completes file names")
	require.Empty(t, complete(t, t.TempDir(), "runs", "get", "fix-"), "no server: no runs, and no error")
	require.Contains(t, complete(t, w.StateDir()), "serve")
}

// A server that flags name is asked with all of its flags, and no other server is asked for a line that cannot be read.
func TestComplete_NamedServer_AsksThatServer(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	const address = "nats://127.0.0.1:4999"
	for line, server := range map[string][]string{
		"--token T --nats " + address + " runs get":   {"--token=T", "--nats=" + address},
		"--nats=" + address + " runs get":             {"--nats=" + address},
		"runs get --nats " + address + " --no-such x": nil,
	} {
		var asked []string
		_, err := choices(parser, strings.Fields(line), "", func(server []string) []string {
			asked = server
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, server, asked, line)
	}
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
