package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// surfaceCommand is a command that takes a run.
type surfaceCommand struct {
	words string // RUN is the run
	// writes: on a run that is there the command may write.
	writes bool
}

// surfaceCommands are all commands that take a run.
var surfaceCommands = []surfaceCommand{
	{words: "runs get RUN"},
	{words: "runs get RUN --view state"},
	{words: "runs get RUN --full"},
	{words: "runs show RUN"},
	{words: "runs history RUN"},
	{words: "artifacts RUN"},
	{words: "events RUN --all --no-follow"},
	{words: "plan RUN"},
	{words: "verify RUN"},
	{words: "diff RUN RUN"},
	{words: "input RUN"},
	{words: "runs get RUN --at end"},
	{words: "checkpoint RUN --name here", writes: true},
	{words: "signal RUN note --payload 1 --id s1", writes: true},
	{words: "signal RUN note --text wait --id s2", writes: true},
	{words: "settle RUN 1 c1 --how rerun", writes: true},
	{words: "settle RUN 1 c1 --how rerun --epoch 1", writes: true},
	{words: "input RUN i1 --text yes", writes: true},
	{words: "input RUN i1 --text yes --event RUN.1.1.x", writes: true},
	{words: "release RUN", writes: true},
	{words: "cancel RUN", writes: true},
	{words: "handoff answer RUN --accept other", writes: true},
	{words: "handoff answer RUN --decline no", writes: true},
	{words: "handoff answer RUN --close done", writes: true},
	{words: "fork RUN --as RUN-f", writes: true},
	{words: "reopen RUN", writes: true},
	{words: "pause set RUN --reason why", writes: true},
	{words: "unpause RUN", writes: true},
	{words: "resume RUN --at record:1 --dry-run"},
	{words: "checkpoint RUN --unset k --force", writes: true},
	{words: "resume RUN --at record:1 --force", writes: true},
	{words: "erase RUN", writes: true},
}

// surfaceRuns are the states of a run that every command meets.
var surfaceRuns = []string{"empty", "unknown", "live", "held", "ended", "removed"}

// surface is one server with one daemon, and runs in all states.
type surface struct {
	where  []string
	dir    string
	stream jetstream.Stream
}

func (s *surface) env(name string) string {
	if name == "WAYMARK_STATE_DIR" {
		return s.dir
	}
	return ""
}

// ask runs a command line to its end.
func (s *surface) ask(t *testing.T, columns string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	var out, complaints bytes.Buffer
	getenv := func(name string) string {
		if name == "COLUMNS" {
			return columns
		}
		return s.env(name)
	}
	code = Run(ctx, append(slices.Clone(args), s.where...), getenv, strings.NewReader(""), &out, &complaints)
	return code, out.String(), complaints.String()
}

// last is the sequence of the log's last message.
func (s *surface) last(t *testing.T) uint64 {
	t.Helper()
	info, err := s.stream.Info(t.Context())
	require.NoError(t, err)
	return info.State.LastSeq
}

// surfaceRun is the run that a command meets. Commands that write have one of their own in each state.
func surfaceRun(state string, i int, c surfaceCommand) string {
	switch {
	case state == "empty":
		return ""
	case !c.writes:
		return state + "-0"
	}
	return fmt.Sprintf("%s-%d", state, i)
}

func newSurface(t *testing.T) *surface {
	t.Helper()
	where, js, fleet := provisioned(t)
	names := schema.NamesOf(schema.DefaultFleet, 0)
	s := &surface{where: where, dir: t.TempDir()}
	ids := map[string][]string{}
	for _, state := range surfaceRuns {
		for i, c := range surfaceCommands {
			if id := surfaceRun(state, i, c); id != "" && !slices.Contains(ids[state], id) {
				ids[state] = append(ids[state], id)
			}
		}
	}
	for _, state := range surfaceRuns {
		for _, id := range ids[state] {
			if state == "unknown" {
				continue
			}
			r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id})
			require.NoError(t, err)
			turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{textMessage(schema.RoleUser, "go")}})
			require.NoError(t, err)
			if state == "held" {
				keys, err := turn.Answer(t.Context(), publisher.Answer{
					Message: textMessage(schema.RoleAssistant, "I pay"), Calls: []publisher.ToolCall{{ID: "c1", Name: "pay", Replay: schema.ReplayHold}},
				})
				require.NoError(t, err)
				require.NoError(t, turn.Begin(t.Context(), keys[0]))
			}
			if state == "ended" || state == "removed" {
				require.NoError(t, r.End(t.Context(), publisher.RunEnd{}))
			}
		}
	}
	_, stop, err := startDaemon(append([]string{"--http", "off", "--silence", "10m"}, s.where...), s.env)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	s.stream, err = js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	for _, id := range ids["held"] {
		require.NoError(t, takeOver(t.Context(), js.Conn(), id, "me", schema.TakeoverRequest))
	}
	for _, id := range ids["removed"] {
		require.Eventually(t, func() bool { code, _, _ := s.ask(t, "", "erase", id); return code == 0 }, securedWait, pollEvery)
	}
	return s
}

// surfaceChanging finds what differs from one run of the test to the next.
var surfaceChanging = regexp.MustCompile(`(?:\bat )?\d{4}-\d\d-\d\dT[\d:.]+Z|\bat \d+\b|\d\d:\d\d:\d\d\.\d+|\b[0-9a-f]{32,}\b|\.[0-9a-f]{8}\b|(seq|event):\S+|revision \d+|http://127\.0\.0\.1:\d+`)

// surfaceContext is how a hint names the server of the test.
var surfaceContext = regexp.MustCompile(` --context \S+`)

// surfaceStream finds the position of an event in the log, which depends on the order of the runs.
var surfaceStream = regexp.MustCompile(`^(… )\d+ `)

// surfaceOne finds a count of one before a plural. Codes and flags are no words.
var surfaceOne = regexp.MustCompile(`(?m)(?:^|[ (;:])1 (?:[a-z]+ )?(?:events|runs|turns|messages|calls|results|gaps|segments|checkpoints|places|payloads|letters|` +
	`steps|shards|streams|checks|claims|forks|things|points|tokens|tries|breaches|days|logs|files)\b`)

// surfaceLine is the first line that a person sees.
func surfaceLine(stdout, stderr string) string {
	said := stderr
	if stdout != "" {
		said = stdout
	}
	first, _, _ := strings.Cut(strings.TrimLeft(said, "\n"), "\n")
	first = strings.Join(strings.Fields(surfaceChanging.ReplaceAllString(first, "…")), " ")
	first = surfaceContext.ReplaceAllString(first, "")
	first = surfaceStream.ReplaceAllString(first, "$1… ")
	if len(first) > 110 {
		first = first[:110] + "…"
	}
	return first
}

// TestSurface_EveryCommand_AsRecorded holds the whole surface against one server with one daemon.
func TestSurface_EveryCommand_AsRecorded(t *testing.T) {
	t.Parallel()
	s := newSurface(t)
	t.Run("TerminalWidth_IsKeptAndUsed", s.widths)
	if testing.Short() {
		t.Log("short: the widths alone, not each command with each state")
		return
	}
	t.Run("EveryCommandAndState_SaysWhatItDid", s.states)
}

func TestSurface_CommandsThatTakeARun_AreAllThere(t *testing.T) {
	t.Parallel()
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		path := commandPath(leaf)
		if _, ok := commandLine(leaf, "x"); !ok || path == "runs ls" { // of which --parent is a filter
			continue
		}
		require.True(t, slices.ContainsFunc(surfaceCommands, func(c surfaceCommand) bool { return strings.HasPrefix(c.words+" ", path+" ") }),
			"waymark %s is held against no state of a run: give it a line in surfaceCommands", path)
	}
}

// states holds every command that takes a run against every state of a run: the table of exit
// codes and first lines is testdata/surface.txt. A command that only reads, and one that fails, leaves the log as it was.
func (s *surface) states(t *testing.T) {
	var table strings.Builder
	var problems []string
	for i, c := range surfaceCommands {
		fmt.Fprintf(&table, "%s\n", c.words)
		for _, state := range surfaceRuns {
			id := surfaceRun(state, i, c)
			args := strings.Fields(c.words)
			for j := range args {
				args[j] = strings.ReplaceAll(args[j], "RUN", id)
			}
			before := s.last(t)
			code, stdout, stderr := s.ask(t, "", args...)
			said := surfaceLine(stdout, stderr)
			if id != "" {
				said = strings.ReplaceAll(said, id, "RUN")
			}
			fmt.Fprintf(&table, "  %-8s %d  %s\n", state, code, said)
			expect := func(ok bool, what string) {
				if !ok {
					problems = append(problems, fmt.Sprintf("%q %s: exit %d: %s%s", args, what, code, stdout, stderr))
				}
			}
			expect(said != "", "says nothing")
			expect(!surfaceOne.MatchString(stdout+stderr), "counts one as many")
			expect(c.writes && code == 0 || s.last(t) == before, "wrote to the log")
			expect(code == 0 || strings.Contains("\n"+stderr, "\nwaymark: "), "fails without a reason")
			expect(state != "empty" || code == int(failure.Usage), "takes an empty id")
			// Erasing a removed run again shows the receipt again.
			left := state == "removed" && strings.HasPrefix(c.words, "erase ")
			expect(state != "unknown" && state != "removed" || left || code == int(failure.NotFound), "finds a run")
		}
	}
	require.Empty(t, problems, strings.Join(problems, "\n"))
	file := filepath.Join("testdata", "surface.txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(table.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), table.String(), "read the table, then: go test ./internal/cli -run Surface -update")
}

// shownCommand finds a line that is a command, or ends with one.
var shownCommand = regexp.MustCompile(`(^|: +)waymark `)

// widths asks for tables in terminals of several widths.
func (s *surface) widths(t *testing.T) {
	for _, words := range []string{
		"runs ls --limit 3", "fleet", "events held-0 --all --no-follow", "events --all --no-follow", "runs history held-0",
		"doctor", "runs get held-0", "plan held-0", "verify ended-0", "help",
	} {
		longest := map[int]int{}
		for _, width := range []int{80, 100, 200} {
			args := strings.Fields(words)
			_, stdout, stderr := s.ask(t, strconv.Itoa(width), args...)
			require.NotEmpty(t, stdout, "%s: %s", words, stderr)
			require.NotRegexp(t, surfaceOne, stdout)
			table, _, _ := strings.Cut(stdout, "\nwhat to do:\n") // what is to be done is pasted, and not cut
			if words == "runs get held-0" {
				table += stderr
			}
			for l := range strings.Lines(table) {
				if shownCommand.MatchString(l) {
					continue // it is pasted
				}
				longest[width] = max(longest[width], len([]rune(strings.TrimRight(l, "\n"))))
			}
			require.LessOrEqual(t, longest[width], width, "%s:\n%s", words, stdout)
		}
		if words == "events --all --no-follow" {
			require.Greater(t, longest[200], 100, "%s uses a wide terminal", words) // the tables of fleet are narrow
		}
	}
}
