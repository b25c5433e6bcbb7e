package cli

import (
	"encoding/json"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

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
		shown := schema.Command(p.Command("input"), "", "r", "it's $(exit 7)")
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
	require.Contains(t, stderr.String(), "hint: start one with: waymark"+schema.Flag("state-dir", dir)+" serve, or name another")
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

// shellWords are the words of the first command of a text, by the rules of a POSIX shell. The command ends where a shell
// would end it.
func shellWords(text string) (words []string) {
	word, in, quote := "", false, rune(0)
	rest := []rune(text + "\n")
	for i := 0; i < len(rest); i++ {
		switch r := rest[i]; {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'':
			quote, in = r, true
		case r == '\\':
			i++
			word, in = word+string(rest[i]), true
		case strings.ContainsRune(" \n;()|&<>", r):
			if in {
				words, word, in = append(words, word), "", false
			}
			if r != ' ' {
				return words
			}
		default:
			word, in = word+string(r), true
		}
	}
	return words
}

// Executors choose the ids of calls, questions and marks. Each printed command, pasted into a shell and parsed
// by this program, names the ids that it is about, and the server of the command that printed it.
func TestPrintedCommands_HostileIDs_MeanWhatIsShown(t *testing.T) {
	t.Parallel()
	where, _, fleet := provisioned(t)
	s := &surface{where: where, dir: t.TempDir()}
	_, stop, err := startDaemon(append([]string{"--http", "off", "--silence", "10m"}, where...), s.env)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	ids := map[string]string{"r0": "-x", "r1": "--nats=nats://127.0.0.1:5099", "r2": "--", "r3": `it's "$(exit 7)";`, "r4": "a b`exit 7`"}
	typedHere, _ := typed(t, s.env, append([]string{"runs", "ls"}, where...)...)
	seen := map[string]int{}
	check := func(run, output string) {
		for _, at := range regexp.MustCompile(`(?m)(^|[ :$])waymark `).FindAllStringIndex(output, -1) {
			words := shellWords(output[at[1]:])
			c := new(cli)
			parser, err := newParser(c, s.env, io.Discard, io.Discard)
			require.NoError(t, err)
			parsed, err := parser.Parse(words)
			require.NoError(t, err, "%q of %s", words, output[at[0]:])
			require.Equal(t, typedHere.Conn, c.Conn, "%q", words)
			of := runOf(parsed)
			if of == "" {
				continue
			}
			if run != "" {
				require.Equal(t, run, of, "%q", words)
			}
			command := strings.Join(strings.Fields(regexp.MustCompile(`<.*?>`).ReplaceAllString(parsed.Command(), "")), " ")
			for name, id := range map[string]string{
				"input": c.Input.Interrupt, "settle": c.Settle.Call,
				"runs get": strings.TrimPrefix(c.Runs.Get.At, "mark:"), "resume": strings.TrimPrefix(c.Resume.At, "mark:"),
			} {
				if name == command && id != "" {
					require.Equal(t, ids[of], id, "%q", words)
					seen[name+" "+of]++
				}
			}
		}
	}
	for run, id := range ids {
		r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: run})
		require.NoError(t, err)
		turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		keys, err := turn.Answer(t.Context(), publisher.Answer{
			Message: textMessage(schema.RoleAssistant, "I pay"), Calls: []publisher.ToolCall{{ID: id, Name: "pay", Replay: schema.ReplayHold}},
		})
		require.NoError(t, err)
		require.NoError(t, turn.Begin(t.Context(), keys[0]))
		wait(t.Context(), t, r, id)
		code, stdout, stderr := s.ask(t, "", "release", run, "--force")
		require.Zero(t, code, stderr)
		check(run, stdout+stderr)
		for _, args := range [][]string{
			{"runs", "get", run}, {"runs", "show", run}, {"plan", run}, {"input", run}, {"checkpoint", run, "--name=" + id},
		} {
			code, stdout, stderr := s.ask(t, "", args...)
			require.Zero(t, code, "%q: %s", args, stderr)
			check(run, stdout+"\n"+stderr)
		}
		var plan struct{ Calls []schema.PlanCall }
		_, stdout, _ = s.ask(t, "", "plan", run, "--json")
		require.NoError(t, json.Unmarshal([]byte(stdout), &plan))
		for _, call := range plan.Calls {
			for _, command := range call.Commands { // it names no server
				words := shellWords(strings.TrimPrefix(command, "waymark "))
				again, _ := typed(t, s.env, words...)
				require.Equal(t, []any{run, id}, []any{again.Settle.Run_, again.Settle.Call}, command)
			}
		}
	}
	require.Eventually(t, func() bool {
		_, stdout, _ := s.ask(t, "", "inbox")
		check("", stdout)
		return strings.Count(stdout, "waymark ") >= 2*len(ids)
	}, startLimit, 100*time.Millisecond)
	for run := range ids {
		for _, command := range []string{"input", "settle", "runs get", "resume"} {
			require.NotZero(t, seen[command+" "+run], "no %s of %s was printed", command, run)
		}
	}
}
