package cli

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// typed parses a command line and returns the flags with the prompt of the command.
func typed(tb testing.TB, getenv func(string) string, args ...string) (*cli, prompt.Prompt) {
	tb.Helper()
	c := new(cli)
	parser, err := newParser(c, getenv, io.Discard, io.Discard)
	require.NoError(tb, err)
	_, err = parser.Parse(args)
	require.NoError(tb, err, "%q", args)
	return c, base.PromptOf(&c.Flags, getenv)
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestShownCommand_Server_SameAsShowing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args string
		env  []string
		want string
	}{
		"no flag":                             {"", nil, ""},
		"an address":                          {"--nats nats://a:1,nats://b:2", nil, "--nats nats://a:1,nats://b:2 "},
		"an address with a password":          {"--nats nats://ann:secret@a:1,tls://token@b:2", nil, "--nats nats://a:1,tls://b:2 "},
		"a context":                           {"--context prod", nil, "--context prod "},
		"a context and its address":           {"--context prod --nats a", nil, "--nats a --context prod "},
		"credentials":                         {"--nats a --creds my.creds", nil, "--nats a --creds my.creds "},
		"a password":                          {"--nats a --user ann --password secret", nil, "--nats a --user ann "},
		"a token":                             {"--nats a --token secret", nil, "--nats a "},
		"keys":                                {"--nkey k --tls-ca ca --tls-cert c --tls-key p", nil, "--nkey k --tls-ca ca --tls-cert c --tls-key p "},
		"a state directory":                   {"--state-dir /var/lib/w", nil, "--state-dir /var/lib/w "},
		"all from the environment":            {"", []string{"WAYMARK_STATE_DIR", "/x", "NATS_URL", "a"}, ""},
		"a state directory over another's":    {"--state-dir y", []string{"WAYMARK_STATE_DIR", "/x"}, "--state-dir y "},
		"a fleet":                             {"--fleet blue", nil, "--fleet blue "},
		"a fleet from the environment":        {"", []string{"WAYMARK_FLEET", "blue"}, "--fleet blue "},
		"the usual fleet":                     {"--fleet default", nil, ""},
		"the usual fleet over another's":      {"--fleet default", []string{"WAYMARK_FLEET", "blue"}, "--fleet default "},
		"output flags are of the one command": {"--json -q --timeout 3s --nats a", nil, "--nats a "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, p := typed(t, env(test.env...), append(strings.Fields(test.args), "runs", "ls")...)
			require.Equal(t, "waymark "+test.want+"runs get r", p.Command("runs get r"))
		})
	}
}

func TestShownCommand_InShell_MeansTheSame(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skipf("there is no shell to paste into: %s", err)
	}
	for _, odd := range []string{"plain", "a b", "it's", "$(exit 7)", "`exit 7`", "-x", "--json", "a;exit 7", `\`, `"`, "*", "~", "=", "ü"} {
		c, p := typed(t, env(), "--state-dir="+odd, "--context="+odd, "--creds="+odd, "--fleet=blue", "runs", "ls")
		shown := p.Command("input r " + schema.ShellWord("it's $(exit 7)"))
		out, err := exec.CommandContext(t.Context(), sh, "-c", `waymark() { printf '%s\0' "$@"; }; `+shown).Output()
		require.NoError(t, err, shown)
		words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		again, _ := typed(t, env(), words...)
		require.Equal(t, c.StateDir, again.StateDir, shown)
		require.Equal(t, c.Conn, again.Conn, shown)
		require.Equal(t, c.Fleet, again.Fleet, shown)
		require.Equal(t, "it's $(exit 7)", again.Input.Interrupt)
	}
}

func TestHint_FailedCommand_NamesSameServer(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	dir := t.TempDir() + "/no one's"
	require.Equal(t, int(failure.Unavailable), Run(t.Context(), []string{"--state-dir", dir, "runs", "ls"}, env("HOME", t.TempDir()), nil, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "hint: start one with: waymark --state-dir "+schema.ShellWord(dir)+" serve, or name another")
}

// What a command says about its run can be pasted: the id stands where the text has RUN.
func TestHint_CommandNamesARun_TheIDStandsInIt(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"plan r-1": "r-1", "runs get r-1": "r-1", "events": "", "runs ls": "",
	} {
		parser, err := newParser(new(cli), env(), io.Discard, io.Discard)
		require.NoError(t, err)
		parsed, err := parser.Parse(strings.Fields(args))
		require.NoError(t, err)
		require.Equal(t, want, runOf(parsed), args)
	}
	var said strings.Builder
	failure.Report(t.Context(), publisher.ErrRunEnded, prompt.Prompt{Flags: "--fleet f ", Run: "r-1"}, &said)
	require.Contains(t, said.String(), "hint: see how it ended: waymark --fleet f runs get r-1")
}
