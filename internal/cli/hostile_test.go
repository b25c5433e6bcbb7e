package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
)

// hostileCommand is a command that prints what others chose: something of the run hostile, or of a file from outside. In its
// words TEXT is the hostile text, ODD a conversation of it, and BACKUP a place.
type hostileCommand struct {
	role access.Role
	// shows: it must come to its end. Of the others it does not matter what becomes of them.
	shows bool
	args  []string
}

// hostileCommands are run in this order by TestHostileInput_EveryCommand_ChangesNothing. A new command that prints what others chose needs
// a line.
var hostileCommands = []hostileCommand{
	{access.Operator, true, []string{"runs", "ls"}},
	{access.Operator, true, []string{"runs", "ls", "--json"}},
	{access.Operator, true, []string{"runs", "get", "hostile"}},
	{access.Operator, true, []string{"runs", "get", "hostile", "--json"}},
	{access.Operator, true, []string{"runs", "get", "hostile", "--view", "state"}},
	{access.Operator, true, []string{"runs", "get", "hostile", "--view", "state", "--json"}},
	{access.Operator, true, []string{"runs", "history", "hostile"}},
	{access.Operator, true, []string{"runs", "history", "hostile", "--json"}},
	{access.Operator, true, []string{"events", "hostile", "--all", "--no-follow"}},
	{access.Operator, true, []string{"events", "hostile", "--all", "--no-follow", "--json"}},
	{access.Operator, true, []string{"runs", "ls", "--stuck"}},
	{access.Operator, true, []string{"runs", "ls", "--stuck", "--json"}},
	{access.Operator, true, []string{"runs", "show", "hostile"}},
	{access.Operator, true, []string{"runs", "show", "hostile", "--json"}},
	{access.Operator, true, []string{"runs", "get", "hostile", "--full"}},
	{access.Operator, true, []string{"inbox"}},
	{access.Operator, true, []string{"inbox", "--json"}},
	{access.Operator, true, []string{"verify", "--all"}},
	{access.Operator, true, []string{"events", "hostile2", "--all", "--no-follow"}},
	{access.Operator, true, []string{"events", "hostile2", "--all", "--no-follow", "--json"}},
	{access.Operator, true, []string{"events", "hostile2", "--all", "--no-follow", "--json", "--raw"}},
	{access.Operator, true, []string{"events", "--all", "--no-follow", "--json"}},
	{access.Operator, true, []string{"plan", "hostile"}},
	{access.Operator, true, []string{"plan", "hostile", "--json"}},
	{access.Operator, true, []string{"verify", "hostile"}},
	{access.Operator, true, []string{"diff", "hostile", "r1"}},
	{access.Operator, true, []string{"diff", "hostile", "r1", "--json"}},
	{access.Operator, true, []string{"fleet"}},
	{access.Operator, true, []string{"fleet", "executors"}},
	{access.Operator, true, []string{"doctor"}},
	{access.Operator, true, []string{"doctor", "--json"}},
	{access.Operator, true, []string{"artifacts", "hostile"}},
	{access.Operator, false, []string{"artifacts", "hostile", "a\u202e\x1b[31m"}},
	{access.Operator, false, []string{"input", "hostile"}},
	{access.Operator, false, []string{"input", "hostile", "i\u202e\u2066", "--text", "TEXT"}},
	{access.Operator, false, []string{"input", "hostile", "i\u202e\u2066", "--text", "TEXT", "--event", "e\u202e\u2066"}},
	{access.Operator, false, []string{"settle", "hostile", "1", "c1\u202e", "--how", "rerun"}},
	{access.Operator, false, []string{"settle", "hostile", "1", "c1\u202e", "--how", "rerun", "--epoch", "1"}},
	{access.Operator, false, []string{"checkpoint", "hostile", "--name", "n\u202e\u2066"}},
	{access.Operator, false, []string{"signal", "hostile", "n\u202e\u2066", "--text", "x\u202e\x1b[31m"}},
	{access.Operator, false, []string{"signal", "hostile", "n\u202e\u2066", "--payload", "\"x\u202e\\u001b[31m\"", "--id", "s\u202e\u2066"}},
	{access.Operator, false, []string{"handoff", "check", "ODD.jsonl"}},
	{access.Operator, false, []string{"handoff", "answer", "hostile", "h\u202e", "--accept", "hostile-child"}},
	{access.Operator, false, []string{"handoff", "answer", "hostile", "h\u202e", "--decline", "TEXT"}},
	{access.Operator, false, []string{"handoff", "answer", "hostile", "h\u202e", "--close", "TEXT"}},
	{access.Operator, false, []string{"start", "coder", "--id", "hostile", "--task", "TEXT"}},
	{access.Operator, false, []string{"fork", "hostile", "--as", "hostile-fork"}},
	{access.Operator, false, []string{"checkpoint", "hostile", "--unset", "k\u202e\u2066", "--name", "n\u202e\u2066"}},
	{access.Operator, false, []string{"resume", "hostile", "--at", "record:2", "--dry-run"}},
	{access.Operator, false, []string{"runs", "get", "hostile", "--at", "mark:m\u202e\u2066"}},
	{access.Operator, false, []string{"release", "hostile", "--force"}},
	{access.Operator, false, []string{"cancel", "hostile", "--reason", "TEXT"}},
	{access.Operator, false, []string{"reopen", "hostile"}},
	{access.Operator, false, []string{"pause", "hostile", "--reason", "TEXT"}},
	{access.Operator, false, []string{"pause", "ls"}},
	{access.Operator, false, []string{"unpause", "hostile"}},
	{access.Operator, false, []string{"limit", "--each", "k\u202e\u2066", "--at-work", "100"}},
	{access.Operator, false, []string{"limit", "ls"}},
	{access.Operator, false, []string{"limit", "rm", "--each", "k\u202e\u2066"}},
	{access.Operator, false, []string{"schedule", "set", "hostile", "coder", "--cron", "0 0 29 2 *", "--task", "TEXT"}},
	{access.Operator, false, []string{"schedule", "ls"}},
	{access.Operator, false, []string{"schedule", "run", "hostile"}},
	{access.Operator, false, []string{"schedule", "rm", "hostile"}},
	{access.Operator, false, []string{"erase", "hostile", "--reason", "TEXT"}},
	{access.Operator, false, []string{"cleanup", "--dry-run", "--max-age", "1s"}},
	{access.Operator, false, []string{"fleet", "retention"}},
	{access.Operator, false, []string{"fleet", "keys", "ls"}},
	{access.Operator, false, []string{"fleet", "keys", "add", "TEXT"}},
	{access.Operator, false, []string{"fleet", "keys", "retire", "TEXT"}},
	{access.Daemon, false, []string{"backup", "BACKUP"}},
	{access.Daemon, false, []string{"backup", "verify", "BACKUP", "--runs"}},
	{access.Daemon, false, []string{"restore", "BACKUP"}},
}

// notHostile are the commands that print nothing that others chose.
var notHostile = []string{
	"serve",                     // its log is searched in the same test
	"demo",                      // it makes its runs itself
	"worker",                    // its log is zerolog's, in JSON, or escaped by the same logger as that of serve
	"mcp",                       // it prints what it got; its log is that of worker
	"ui",                        // its pages are shown hostile text by internal/look/inspector and tools/uicheck
	"fleet add",                 // the ids that it refuses are in another test
	"fleet rm",                  // it names the fleet's own streams
	"agent run",                 // its output is the agent's
	"agent serve", "agent hook", // its output is for the agent
	"agent install", "agent uninstall", // they ask no server
}

func TestHostileCommands_EachCommand_IsAmongThem(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		command, _, _ := strings.Cut(strings.TrimPrefix(leaf.FullPath(), "waymark "), " (") // its aliases
		short, _ := strings.CutSuffix(command, " "+leaf.Name)
		runs := func(c hostileCommand) bool {
			line := strings.Join(c.args, " ")
			return line == command || strings.HasPrefix(line, command+" ") || leaf.Parent.DefaultCmd == leaf && (line == short || strings.HasPrefix(line, short+" "))
		}
		require.True(t, slices.Contains(notHostile, command) || slices.ContainsFunc(hostileCommands, runs),
			"waymark %s is not run on hostile text: give it a line in hostileCommands, or in notHostile if it prints nothing that others chose", command)
	}
}

// tame runs a command and fails if it prints anything that a terminal would obey. It returns the exit code.
func (s *secured) tame(t *testing.T, fleet string, role access.Role, args ...string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	var out lockedBuffer
	code := Run(ctx, append([]string{"--context", s.context(fleet, role), "--fleet", fleet}, args...), s.getenv, strings.NewReader(""), &out, &out)
	requireTame(t, out.String())
	require.NotContains(t, "\n"+out.String(), "\n"+`{"level":"info","message":"forged"}`, "%q: a line of its own", args)
	return code
}
