package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// words are the arguments that a shell makes of a printed command, with its placeholders filled in.
func words(t *testing.T, command string) []string {
	t.Helper()
	command, ok := strings.CutPrefix(strings.ReplaceAll(command, " JSON", ` '"done"'`), "waymark ")
	require.True(t, ok, command)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "set -- "+command+`; for a; do printf '%s\n' "$a"; done`).Output()
	require.NoError(t, err, command)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

var printedSettlement = regexp.MustCompile(`waymark [^\n;]*\bsettle [^\n;]+`)

// Each command that settles a call is accepted as it is printed: by plan, runs get and inbox, in text and in JSON.
func TestSettle_CommandsAsPrinted_AreAccepted(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	ids := []string{"c1", "-x", "it's", "a b"}
	for name, state := range map[string]struct {
		becomes  func(run string)
		commands int
		inbox    bool
	}{
		"running":     {func(string) {}, 0, false},
		"interrupted": {func(run string) { w.write(run, schema.RunInterrupted, 0, `{"reason":"shutdown"}`) }, 3, true},
		"waiting": {func(run string) {
			w.write(run, schema.RunWaiting, 1, `{"interrupt_id":"q","reason":"human_input"}`)
			w.write(run, schema.RunInterrupted, 0, `{"reason":"waiting"}`)
		}, 3, true},
		"doubt": {func(run string) {
			require.NoError(t, takeOver(t.Context(), w.js.Conn(), run, "e2", schema.TakeoverRequest))
		}, 3, true},
		"ended": {func(run string) {
			w.write(run, schema.RunEnded, 0, `{"status":"failed","error":{"type":"t","message":"m"}}`)
		}, 2, true},
	} {
		for at := range max(state.commands, 1) {
			id := ids[at]
			run := fmt.Sprintf("%s-%d", name, at)
			call := fmt.Sprintf(`{"tool_call_id":%q,"name":"mail","replay":"hold"}`, id)
			w.write(run, schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
			w.write(run, schema.TurnStarted, 1, `{"turn":1}`)
			w.write(run, schema.ToolCalled, 1, call)
			w.write(run, schema.ToolReturned, 1, fmt.Sprintf(`{"tool_call_id":%q,"result":1}`, id))
			w.write(run, schema.ToolCalled, 1, call) // the second of its id
			state.becomes(run)

			printed := printedSettlement.FindAllString(w.told("plan", run), -1)
			require.Len(t, printed, state.commands, run)
			var plan schema.Plan
			require.NoError(t, json.Unmarshal([]byte(w.told("plan", run, "--json")), &plan))
			require.Len(t, plan.Calls[0].Commands, state.commands, run)
			all := append(printed, plan.Calls[0].Commands...)
			_, _, said := w.ask("", "runs", "get", run)
			held := printedSettlement.FindAllString(said, -1)
			if state.inbox {
				require.Equal(t, printed, held, run)
				require.Eventually(t, func() bool { // the list comes from checkpoints
					list := printedSettlement.FindAllString(w.told("inbox"), -1)
					return !slices.ContainsFunc(printed, func(command string) bool { return !slices.Contains(list, command) })
				}, time.Minute, pollEvery, run)
			} else if state.commands > 0 {
				require.Contains(t, said, "how to settle them: waymark ", run)
			}
			for _, command := range all {
				c, _ := typed(t, func(string) string { return "" }, words(t, command)...)
				require.Equal(t, []any{run, int32(1), id, 2, uint32(1)}, []any{c.Settle.Run_, c.Settle.Turn, c.Settle.Call, int(c.Settle.Occurrence), c.Settle.Epoch}, command)
			}
			if state.commands == 0 {
				code, _, complaint := w.ask("", "settle", run, "1", id, "--occurrence", "2", "--how", "abandoned")
				require.Equal(t, 5, code)
				require.Contains(t, complaint, "its executor still runs it")
				require.Contains(t, complaint, "waymark plan "+run)
				continue
			}
			code, text := runWith(t, func(string) string { return "" }, words(t, printed[at])...)
			require.Zero(t, code, "%s\n%s", printed[at], text)
			settled, err := w.fleet.Get(t.Context(), run)
			require.NoError(t, err)
			require.EqualValues(t, 1, settled.Head.Counts.Settled, printed[at])
			require.Zero(t, settled.Head.Counts.DeadLetters, printed[at])
			if name == "interrupted" {
				require.Equal(t, schema.StatusInterrupted, settled.Head.Status)
				require.EqualValues(t, 2, settled.Head.Epoch, "the settlement opened the epoch that puts the call in doubt")
			}
		}
	}
}

// The commands in the SDK's error are accepted once the run is as the text says.
func TestHeldError_Commands_AreAccepted(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	call := publisher.ToolCall{ID: "c1", Name: "mail", Replay: publisher.Hold}
	// Its outcome is unknown.
	breaks := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { panic("it broke") }
	begun := func(id string) (*publisher.Run, error) {
		run, err := w.fleet.Start(t.Context(), publisher.RunSpec{ID: id})
		require.NoError(t, err)
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		_, err = turn.Answer(t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, "I write"), Calls: []publisher.ToolCall{call}})
		require.NoError(t, err)
		_, err = turn.Tool(t.Context(), call, breaks)
		return run, err
	}
	accepted := func(err error) {
		t.Helper()
		held, ok := errors.AsType[*publisher.HeldError](err)
		require.True(t, ok, "%v", err)
		commands := printedSettlement.FindAllString(held.Command, -1)
		require.Len(t, commands, 3, held.Command)
		for _, command := range commands {
			typed(t, func(string) string { return "" }, words(t, command)...)
		}
		code, out, complaint := w.ask("", words(t, commands[0])...)
		require.Zero(t, code, "%s\n%s%s", commands[0], out, complaint)
	}
	run, err := begun("r1")
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
	accepted(err)

	_, err = begun("r2")
	require.Error(t, err)
	again, err := w.fleet.Resume(t.Context(), "r2", publisher.ResumeSpec{})
	require.NoError(t, err)
	_, err = again.Turn(1).Tool(t.Context(), call, breaks)
	accepted(err)
}
