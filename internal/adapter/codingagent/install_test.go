package codingagent_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/codingagent"
)

const command = `'/opt/way mark' agent hook`

func TestInstall_AnySettings_UninstallGivesThemBack(t *testing.T) {
	t.Parallel()
	all, err := codingagent.Claude.Installed([]byte("{}"), command)
	require.NoError(t, err)
	for _, text := range []string{
		strings.ReplaceAll(string(all), "agent hook", "hook of a person"),
		"{}", "{ }", "{}\n", "{\n}\n", `{"model":"opus"}`, `{"hooks":{}}`, `{ "hooks" : { } , "a":1}`, `{"hooks":{"Stop":[],"PreToolUse":[ ]}}`,
		"{\n  \"model\": \"m\",\r\n\t\"hooks\": {\n    \"PreToolUse\": [\n      {\"matcher\": \"Bash\", \"hooks\": [{\"type\": \"command\", \"command\": \"lint\"}]}\n    ],\n    \"Notification\": [ {\"hooks\":[]} ]\n  },\n  \"z\": [1, 2.50, \"\\u00e9\"]\n}",
	} {
		for _, d := range []*codingagent.Dialect{codingagent.Claude, codingagent.Codex} {
			with, err := d.Installed([]byte(text), command)
			require.NoError(t, err, text)
			var read struct {
				Hooks map[string][]struct {
					Hooks []struct{ Command string }
				}
			}
			require.NoError(t, json.Unmarshal(with, &read), "%s", with)
			for _, event := range []string{"SessionStart", "PreToolUse", "PostToolUse", "Stop", "SessionEnd"} {
				groups := read.Hooks[event]
				require.Equal(t, "exec "+command+" --of "+d.Name, groups[len(groups)-1].Hooks[0].Command, "%s: %s", event, with)
			}
			again, err := d.Installed(with, command)
			require.NoError(t, err)
			require.Equal(t, string(with), string(again), "installed twice")
			without, err := d.Installed(with, "")
			require.NoError(t, err)
			require.Equal(t, text, string(without))
			moved, err := d.Installed(with, "'/other' agent hook")
			require.NoError(t, err)
			require.NotContains(t, string(moved), "way mark' agent")

			var indented bytes.Buffer // as the agent writes it when a person changes a setting
			require.NoError(t, json.Indent(&indented, with, "", "  "))
			without, err = d.Installed(indented.Bytes(), "")
			require.NoError(t, err, "%s %s", text, indented.String())
			require.NotContains(t, string(without), "waymark")
			var was, is struct{ Z any }
			require.NoError(t, json.Unmarshal([]byte(text), &was))
			require.NoError(t, json.Unmarshal(without, &is))
			require.Equal(t, was.Z, is.Z)
			if bytes.Contains([]byte(text), []byte("lint")) {
				require.JSONEq(t, text, string(without), "without empty arrays of the person")
			}
		}
	}
}

func TestInstall_FileItCannotRead_IsLeft(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "settings.json")
	mixed := `{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"mine"},{"type":"command","command":"exec ` + command + ` --of claude"}]}]}}`
	for text, problem := range map[string]string{
		"": "is not a JSON object", "[]": "is not a JSON object", "{\"a\":1,}": "is not a JSON object", "{} // why": "is not a JSON object",
		`{"hooks":[]}`: "its hooks are no object", `{"hooks":{"Stop":{}}}`: "its hooks are no object", mixed: "remove it by hand",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		err := (&codingagent.Worker{Dialect: codingagent.Claude, Hook: command}).Install(file, nil)
		require.ErrorContains(t, err, problem, text)
		require.ErrorContains(t, err, file)
		now, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, text, string(now))
	}
}

func TestInstall_File_KeepsItsModeAndIsRemovedIfItWasCreated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "new", "settings.json")
	var printed bytes.Buffer
	change := func(want, command string) {
		t.Helper()
		var said bytes.Buffer
		require.NoError(t, (&codingagent.Worker{Dialect: codingagent.Claude, Hook: command, Stderr: &said}).Install(file, nil))
		require.Contains(t, said.String(), want)
	}
	require.NoError(t, (&codingagent.Worker{Dialect: codingagent.Claude, Hook: command}).Install(file, &printed))
	require.NoFileExists(t, file)
	change("nothing to change", "")
	change("written", command)
	change("nothing to change", command)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, printed.String(), string(text))
	change("removed", "")
	require.NoFileExists(t, file)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "target"), []byte("{}"), 0o644)) //nolint:gosec // a mode to keep
	require.NoError(t, os.Symlink(filepath.Join(dir, "target"), file))
	change("written", command)
	info, err := os.Lstat(filepath.Join(dir, "target"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
	info, err = os.Lstat(file)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
}

// FuzzInstall: what install adds to a settings file, uninstall takes away again.
func FuzzInstall(f *testing.F) {
	for _, text := range []string{"{}", `{"hooks":{}}`, `{ "hooks" : {"Stop" : [ ], "x":[{}] } }`, `{"a":{"hooks":{"Stop":[]}},"hooks":{"Stop":[1]}}`, `{"hooks":[]}`, `[`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		with, err := codingagent.Claude.Installed(text, command)
		if err != nil || bytes.Contains(text, []byte("agent hook")) {
			return
		}
		without, err := codingagent.Claude.Installed(with, "")
		require.NoError(t, err)
		require.Equal(t, string(text), string(without))
	})
}
