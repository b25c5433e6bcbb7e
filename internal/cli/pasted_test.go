package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// pasted returns the words of the command that follows a label in an output.
func pasted(t *testing.T, output, label string) []string {
	t.Helper()
	found := regexp.MustCompile(regexp.QuoteMeta(label) + ` *waymark ([^\n;]+)`).FindStringSubmatch(output)
	require.NotNil(t, found, "%s", output)
	return strings.Fields(found[1])
}

// What a person copies from an output is whole: commands, points, and the keys that tell who approved.
func TestOutput_FleetWithOperators_IsWholeWhereItIsPasted(t *testing.T) {
	t.Parallel()
	k := startKeyed(t, "--operator", "ann,bob")
	k.serve(t)
	r, err := k.executor(t, "worker-7").Start(t.Context(), publisher.RunSpec{ID: "r-mail"})
	require.NoError(t, err)
	wait(t.Context(), t, r, "fork")
	k.person(t, "ann", 0, "input", "r-mail", "fork", "--text", "yes", "--by", "ann")

	events := k.person(t, "bob", 0, "events", "r-mail", "--all", "--no-follow")
	require.Regexp(t, `run\.input +operator:`+k.people["ann"].Key[:8]+` \(claims: ann\), fork`, events)
	require.NotContains(t, events, k.people["ann"].Key)
	added := k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")
	for name, p := range k.people {
		require.Regexp(t, "operator "+name+" +"+regexp.QuoteMeta(p.Context)+", key "+p.Key+`\n`, added)
	}

	show := pasted(t, k.person(t, "ann", 0, "checkpoint", "r-mail", "--name", "m1"), "show it with")
	requireHas(t, k.waymark(t, 0, show...), "mark:m1")

	var history struct {
		Points []struct {
			Point string `json:"point"`
		} `json:"points"`
	}
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "ann", 0, "--json", "runs", "history", "r-mail")), &history))
	table := k.person(t, "ann", 0, "runs", "history", "r-mail")
	require.Regexp(t, `(?m)^event:r-mail\.\d+\.c\.`, table)
	for _, p := range history.Points {
		require.Contains(t, table, p.Point+" ")
	}
}

// The next step of a change of a fleet has its flags: pasted unchanged, it makes the change.
func TestFleetAdd_OfflineChange_NextStepMakesIt(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	said := k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline", "--shards", "1", "--quota", "96MiB", "--checkpoints", "7", "--verify", "tools.>")
	require.Contains(t, said, " --quota 96MiB --shards 1 --checkpoints 7 --verify 'tools.>'\n")
	require.NoError(t, k.srv.Reload())
	words := pasted(t, said, "then run again:")
	require.NotContains(t, words, "--offline")
	for i := range words {
		words[i] = strings.Trim(words[i], "'")
	}
	said = k.waymark(t, 0, words...)
	require.Regexp(t, `shards +1\n`, said)
	require.Regexp(t, `log +96(\.0)? ?MiB a shard\n`, said)
	require.Contains(t, said, "1. unless it has a running daemon, start one: waymark serve --fleet "+keyedFleet+" --context ")
}

// A role that may not back up, or not start a run, learns which one may.
func TestRefused_BackupAndStart_NameTheRole(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	k.serve(t)
	said := k.as(t, keyedFleet, access.Operator, int(failure.Refused), "backup", "take", filepath.Join(k.dir, "backup"))
	requireHas(t, said, "for one of these roles: daemon (")
	said = k.as(t, keyedFleet, access.Observer, int(failure.Refused), "start", "coder", "--id", "r1")
	requireHas(t, said, "for one of these roles: executor, operator")
}

// A daemon whose key was not added names the command that adds it. Pasted unchanged, that command adds it.
func TestServe_KeyNotAdded_HintAddsIt(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	require.NoError(t, os.Remove(filepath.Join(k.fleets, keyedFleet+"-daemon.nk")))
	k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")
	require.NoError(t, k.srv.Reload())
	said := k.as(t, keyedFleet, access.Daemon, int(failure.Refused), "serve", "--synced")
	add := pasted(t, said, "add it:")
	require.Equal(t, 1, strings.Count(strings.Join(add, " "), "--context"), "%s", said)
	public := strings.TrimSpace(k.publicKey(t, keyedFleet))
	require.Equal(t, public, add[len(add)-1], "%s", said)
	require.Equal(t, strings.Count(said, "waymark --"), strings.Count(said, "--fleet"), "each command names the fleet once: %s", said)
	requireHas(t, k.waymark(t, 0, add...), public)
}

// A quota that no fleet can have is refused by the flag's name and in its unit, before a file is written.
func TestQuotaFlag_TooSmall_NamesFlagAndUnit(t *testing.T) {
	t.Parallel()
	s := &secured{dir: t.TempDir()}
	dir := filepath.Join(s.dir, "fleets")
	for _, args := range [][]string{
		{"serve"},
		{"fleet", "add", keyedFleet, "--dir", dir, "--offline", "--nats", "nats://127.0.0.1:1"},
	} {
		said := s.waymark(t, int(failure.Usage), append(args, "--quota", "2MiB")...)
		requireHas(t, said, "--quota")
		requireHas(t, said, "16MiB")
	}
	require.NoDirExists(t, dir)
}

// What no server can make is refused before a file or a stream is made.
func TestFleetAdd_TooManyShardsOrReplicas_MakesNothing(t *testing.T) {
	t.Parallel()
	s := &secured{dir: t.TempDir()}
	dir := filepath.Join(s.dir, "fleets")
	said := s.waymark(t, int(failure.Usage), "fleet", "add", keyedFleet, "--dir", dir, "--offline", "--nats", "nats://127.0.0.1:1", "--shards", "2000")
	requireHas(t, said, "--shards 2000")
	requireHas(t, said, "use 1 to 256")
	require.NoDirExists(t, dir)
	server := natstest.Start(t)
	said = s.waymark(t, int(failure.Usage), "--context", server.NATSD().Endpoint().Context, "fleet", "add", keyedFleet, "--replicas", "3")
	requireHas(t, said, "is a lone server")
	requireHas(t, said, "--replicas 1")
	nc, err := server.NATSD().Endpoint().Connect()
	require.NoError(t, err)
	defer nc.Close()
	js, err := nc.JetStream()
	require.NoError(t, err)
	for name := range js.StreamNames() {
		t.Errorf("stream %s was made", name)
	}
}

// Ids are pasted into the next command: no width of a terminal cuts one. A program that reads the output gets all of it.
func TestOutput_LongIDs_AreWholeAtEveryWidth(t *testing.T) {
	t.Parallel()
	where, _, fleet := provisioned(t)
	s := &surface{where: where, dir: t.TempDir()}
	_, stop, err := startDaemon(append([]string{"--http", "off", "--silence", "10m"}, where...), s.env)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	id := func(begin string) string {
		return begin + strings.Repeat("-long", 12)[:schema.MaxName-len(begin)-1] + "z"
	}
	live, ended, call, asks := id("live"), id("ended"), id("call"), id("asks")
	for _, run := range []string{live, ended} {
		r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: run, Task: strings.Repeat("mend the roof ", 8)})
		require.NoError(t, err)
		turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		if run == ended {
			_, err = turn.Answer(t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, "done")})
			require.NoError(t, err)
			require.NoError(t, r.End(t.Context(), publisher.RunEnd{}))
			continue
		}
		keys, err := turn.Answer(t.Context(), publisher.Answer{
			Message: textMessage(schema.RoleAssistant, "I pay"), Calls: []publisher.ToolCall{{ID: call, Name: "pay", Replay: schema.ReplayHold}},
		})
		require.NoError(t, err)
		require.NoError(t, turn.Begin(t.Context(), keys[0]))
		wait(t.Context(), t, r, asks)
	}
	require.Eventually(t, func() bool {
		_, stdout, _ := s.ask(t, "", "cleanup", "--max-age", "0d", "--grace", "1s", "--dry-run", "--quiet")
		return strings.Contains(stdout, ended)
	}, startLimit, 100*time.Millisecond)
	for _, test := range []struct {
		words string
		ids   []string
	}{
		{"runs ls", []string{live, ended}},
		{"runs get " + live, []string{live, call, asks}},
		{"runs get " + live + " --view state", []string{live, call, asks}},
		{"events " + live + " --all --no-follow", nil},
		{"events --all --no-follow", []string{live, ended}},
		{"plan " + live, []string{live, call, asks}},
		{"cleanup --max-age 0d --grace 1s --dry-run", []string{ended}},
	} {
		for _, columns := range []string{"80", "100", "200", ""} {
			code, stdout, stderr := s.ask(t, columns, strings.Fields(test.words)...)
			require.Zero(t, code, "%s: %s", test.words, stderr)
			for _, id := range test.ids {
				require.Contains(t, stdout, id, "%s at %s", test.words, columns)
			}
			if columns == "" {
				require.NotContains(t, stdout, "…", "%s in a pipe", test.words)
			}
		}
	}
	for _, columns := range []string{"80", ""} {
		_, stdout, _ := s.ask(t, columns, "doctor")
		require.NotContains(t, stdout, "…", "doctor at %q", columns)
	}
	_, stdout, _ := s.ask(t, "80", "erase", ended)
	require.Contains(t, stdout, ended)
	require.Regexp(t, `(?m)^digest +[0-9a-f]{64}$`, stdout)
}
