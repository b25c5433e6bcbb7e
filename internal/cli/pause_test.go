package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func hasAll(tb testing.TB, text string, wanted ...string) {
	tb.Helper()
	for _, want := range wanted {
		require.Contains(tb, text, want)
	}
}

// The commands under "Stop everything", unchanged.
func TestPause_CommandsOfThePage_StopTheFleet(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "people.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Stop everything")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.Split(strings.TrimSpace(block), "\n")
	require.Len(t, commands, 4)
	w := newPageWorld(t)
	w.run(t, "-euc", "waymark start coder --id queued --task work && waymark start tester --id other --task work --tier small --label team=blue")

	hasAll(t, w.run(t, "-uc", "waymark unpause nosuch; true"), "has no run nosuch")
	hasAll(t, w.run(t, "-euc", commands[0]), "paused", "2 runs", "--all", "the provider bills twice")
	hasAll(t, w.run(t, "-euc", commands[1]), "--all", "the provider bills twice", "waymark-cli")
	hasAll(t, w.run(t, "-euc", "waymark runs ls --status paused"), "queued", "other", "paused")
	hasAll(t, w.run(t, "-euc", "waymark runs ls --stuck"), "no run is stuck", "2 runs are paused", "waymark pause ls")
	for _, view := range []string{"runs get", "runs show", "plan"} {
		text := w.run(t, "-euc", "waymark "+view+" queued")
		require.Regexp(t, `(?m)^status +paused$`, text, view)
		require.Regexp(t, `paused +since \S+T[0-9:]+Z, by waymark-cli`, text, view)
		hasAll(t, strings.Join(strings.Fields(text), " "), "the provider bills twice; ends with: waymark unpause --all")
	}
	hasAll(t, w.run(t, "-euc", "waymark plan queued"), "nothing: the run is paused")
	hasAll(t, w.run(t, "-euc", "waymark release queued"), "nothing to do: the run is paused", "waymark unpause --all")
	hasAll(t, w.run(t, "-euc", "waymark start coder --id late"), "it is paused", "waymark unpause --all")
	hasAll(t, w.run(t, "-euc", "waymark runs get queued"), "by waymark-cli: the provider bills twice")
	hasAll(t, w.run(t, "-euc", "waymark fleet"), "3 live, 0 claimable", "3 paused")
	hasAll(t, w.run(t, "-uc", "waymark resume queued --at record:1; true"), "queued is paused since", "by waymark-cli: the provider bills twice", "waymark unpause --all")
	hasAll(t, w.run(t, "-euc", commands[0]), "paused already")
	hasAll(t, w.run(t, "-euc", commands[2]), "ended the pause of", "3 runs")
	hasAll(t, w.run(t, "-euc", commands[1]), "no pauses")
	hasAll(t, w.run(t, "-uc", commands[2]), "--all is not paused", "waymark pause ls")

	// It ends by itself.
	hasAll(t, w.run(t, "-euc", commands[3]), "paused", "1 run", "--tier small", "until")
	require.Regexp(t, `(?m)^--tier small +.*20\S+T\S+:00Z$`, w.run(t, "-euc", commands[1]))
	require.Regexp(t, `paused +since \S+Z until \S+:00Z, by waymark-cli`, strings.Join(strings.Fields(w.run(t, "-euc", "waymark runs get other")), " "))
	require.Regexp(t, `is paused since \S+Z until \S+:00Z by waymark-cli`, strings.Join(strings.Fields(w.run(t, "-uc", "waymark resume other --at record:1; true")), " "))
	hasAll(t, w.run(t, "-euc", "waymark unpause --tier small"), "ended the pause of")
	for _, until := range []string{"yesterday", "-2h", "2020-01-31T18:00:00Z"} {
		require.Contains(t, strings.Join(strings.Fields(w.run(t, "-uc", "waymark pause --all --reason x --until="+until+"; true")), " "), "is no time to come", until)
	}
	hasAll(t, w.run(t, "-euc", "waymark pause --all --reason x --until 2h && waymark pause ls && waymark unpause --all"), "until")

	// Pauses overlap: a run goes on after the last one.
	w.run(t, "-euc", "waymark pause --tier small --label team=blue --reason why && waymark pause other --reason 'I look'")
	hasAll(t, w.run(t, "-euc", "waymark pause ls"), "--tier small --label team=blue", "other")
	hasAll(t, w.run(t, "-euc", "waymark unpause --tier small --label team=blue"), "runs that another pause selects stay paused", "waymark pause ls")
	hasAll(t, w.run(t, "-euc", "waymark runs ls --status paused"), "other")
	require.NotContains(t, w.run(t, "-euc", "waymark runs ls --status paused"), "queued")
	require.NotContains(t, w.run(t, "-euc", "waymark unpause other"), "stay paused")
	hasAll(t, w.run(t, "-euc", "waymark pause --agent writer --reason why && waymark unpause --agent writer"), "no run is selected now")
	hasAll(t, w.run(t, "-uc", "waymark pause other --all --reason x; true"), "not both")
	hasAll(t, w.run(t, "-euc", "waymark runs ls --status paused"), "no runs")
	for _, wrong := range []string{"pause --reason x", "pause other --all --reason x", "pause --all", "unpause"} {
		require.Contains(t, w.run(t, "-uc", "waymark "+wrong+" || echo refused "), "refused", wrong)
	}
}

// Only an operator pauses, in a fleet with keys, and by the key that the server proved.
func TestPause_EachRole_OnlyAnOperatorMay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon and a dozen commands")
	}
	k := startKeyed(t, "--operator", "ann", "--duties", "separate")
	k.serve(t)
	f := k.executor(t, "worker-7")
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	for _, role := range []access.Role{access.Executor, access.Observer} {
		for _, args := range [][]string{{"pause", "--all", "--reason", "x"}, {"unpause", "--all"}} {
			hasAll(t, k.as(t, keyedFleet, role, int(failure.Refused), args...), "does not permit")
		}
		k.as(t, keyedFleet, role, 0, "pause", "ls")
	}
	head, err := f.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.False(t, head.Paused)

	hasAll(t, k.person(t, "ann", 0, "pause", "--agent", "clerk", "--reason", "it bills twice"), "1 run", k.by("ann"))
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}})
	require.ErrorIs(t, err, publisher.ErrPaused)
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPaused))
	_, err = f.Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrNothing)
	k.person(t, "ann", 0, "unpause", "--agent", "clerk")
	require.Eventually(t, func() bool {
		_, err := f.Claim(t.Context(), publisher.ClaimSpec{})
		return err == nil
	}, securedWait, securedWait/600)
}
