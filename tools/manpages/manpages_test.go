package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

const reference = "../../docs/cli.md"

func TestManPage_EachCommand_IsThere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "waymark.1")
	require.NoError(t, run([]string{reference, file}))
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	text, err := os.ReadFile(reference)
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^### (waymark .+)$`).FindAllSubmatch(text, -1)
	require.Greater(t, len(commands), 40)
	shown := string(page)
	man, err := exec.LookPath("man")
	if err == nil {
		out, err := exec.CommandContext(t.Context(), man, "-l", "--warnings", "-P", "cat", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NotContains(t, string(out), "warning:")
		shown = regexp.MustCompile(".\b").ReplaceAllString(string(out), "") // overstruck for bold
	} else {
		t.Log("man is not here: that it takes the page is NOT TESTED")
	}
	for _, c := range commands {
		require.Contains(t, shown, string(c[1]))
	}
	require.NotContains(t, shown, "| flag |")
	require.NotContains(t, shown, "Written by a test")
	require.Regexp(t, `(?m)^ +--quota=SIZE\n +Size of the fleet`, shown, "a flag has its text below")
}

func TestManPage_NoReference_SaysSo(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, run(nil), errUsage)
	require.ErrorContains(t, run([]string{"missing.md", "x"}), "reading the reference")
	empty := filepath.Join(t.TempDir(), "empty.md")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.ErrorIs(t, run([]string{empty, "x"}), errNoReference)
}
