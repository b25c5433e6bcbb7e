package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
)

// typedOffline runs a command line in this process, with an environment that names no server.
func typedOffline(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	dir := t.TempDir()
	getenv := func(name string) string {
		if name == "WAYMARK_STATE_DIR" {
			return dir
		}
		return ""
	}
	code = Run(t.Context(), args, getenv, strings.NewReader(""), &out, &complaints)
	return code, out.String(), complaints.String()
}

// commandLine is a command with values for what it needs, and id wherever it takes a run. ok: it takes one.
func commandLine(leaf *kong.Node, id string) (args []string, ok bool) {
	args = strings.Fields(commandPath(leaf))
	for _, p := range leaf.Positional {
		switch {
		case p.Name == "run":
			args, ok = append(args, id), true
		case p.Required:
			args = append(args, "1")
		}
	}
	for _, f := range leaf.Flags {
		switch {
		case f.PlaceHolder == "RUN":
			args, ok = append(args, "--"+f.Name+"="+id), true
		case f.Required && f.Enum != "":
			args = append(args, "--"+f.Name+"="+f.EnumSlice()[0])
		case f.Required:
			args = append(args, "--"+f.Name+"=1")
		}
	}
	return args, ok
}

func TestRunID_EmptyOrInvalid_EveryCommandRefusesIt(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	commands := 0
	for _, leaf := range parser.Model.Leaves(true) {
		for _, id := range []string{"", "a/b", "-x", "a.b", strings.Repeat("x", 65)} {
			args, ok := commandLine(leaf, id)
			if !ok {
				continue
			}
			commands++
			if strings.HasPrefix(id, "-") { // an argument, and no flag
				at := slices.Index(args, id)
				if at < 0 {
					continue
				}
				args = append(append(slices.Delete(slices.Clone(args), at, len(args)), args[at+1:]...), "--", id)
				if len(leaf.Positional) > 1 {
					continue
				}
			}
			code, stdout, stderr := typedOffline(t, args...)
			require.Equal(t, int(failure.Usage), code, "%q: %s", args, stderr)
			require.Empty(t, stdout, "%q", args)
			require.Contains(t, stderr, "is not a valid name: use 1 to 64 of", "%q", args)
			require.Contains(t, stderr, "ids look like: fix-login-2026-01-31", "%q", args)
		}
	}
	require.Greater(t, commands, 80)
}

func TestRunsLs_AgentThatIsNoName_IsRefused(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := typedOffline(t, "runs", "ls", "--agent", "no good")
	require.Equal(t, int(failure.Usage), code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, `--agent "no good"`)
}

func TestFlag_EmptyValue_IsNotTakenForNone(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"runs", "ls", "--status", ""},
		{"runs", "ls", "--agent="},
		{"runs", "ls", "--since", ""},
		{"runs", "ls", "--tier", ""},
		{"start", "coder", "--tier", ""},
		{"runs", "ls", "--completion", ""},
		{"runs", "ls", "--nats", ""},
		{"runs", "ls", "--context", ""},
		{"runs", "ls", "--state-dir", ""},
		{"fleet", "add", "x", "--duties", ""},
		{"signal", "x", "note", "--payload", ""},
		{"runs", "get", "x", "--view", ""},
	} {
		code, stdout, stderr := typedOffline(t, args...)
		require.Equal(t, int(failure.Usage), code, "%q: %s", args, stderr)
		require.Empty(t, stdout, "%q", args)
		flag, _, _ := strings.Cut(args[len(args)-1], "=")
		if flag == "" {
			flag = args[len(args)-2]
		}
		require.Contains(t, stderr, flag, "%q", args)
	}
}

func TestCommand_Mistyped_IsNamed(t *testing.T) {
	t.Parallel()
	code, _, stderr := typedOffline(t, "runz")
	require.Equal(t, int(failure.Usage), code)
	require.Contains(t, stderr, `did you mean "runs"?`)
}

func TestVersion_Flag_ShowsVersions(t *testing.T) {
	t.Parallel()
	code, flag, stderr := typedOffline(t, "--version")
	require.Zero(t, code, stderr)
	for _, want := range []string{"waymark ", "commit ", runtime.Version()} {
		require.Contains(t, flag, want)
	}
}

func TestFailure_JSON_IsOneObject(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"runs", "get", "x", "--json"}, {"--json", "nonsense"}, {"runs", "get", "", "--json"}, {"runs", "ls", "--nope", "--json"}, {"get", "--json"},
	} {
		code, stdout, stderr := typedOffline(t, args...)
		require.NotZero(t, code, "%q", args)
		require.Empty(t, stdout, "%q", args)
		var said struct {
			Error, Hint, Name string
			Code              int
		}
		require.NoError(t, json.Unmarshal([]byte(stderr), &said), "%q: %s", args, stderr)
		require.Equal(t, code, said.Code, "%q", args)
		require.NotEmpty(t, said.Error, "%q", args)
		require.NotEmpty(t, said.Hint, "%q", args)
		require.NotEmpty(t, said.Name, "%q", args)
	}
	_, _, stderr := typedOffline(t, "runs", "get", "x", "--", "--json")
	require.NotContains(t, stderr, "{", "what stands behind -- is no flag")
}
