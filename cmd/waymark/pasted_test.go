package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/publisher"
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

	events := k.person(t, "bob", 0, "runs", "get", "r-mail", "--view", "events")
	require.Regexp(t, `run\.input +operator:`+k.people["ann"].Key[:8]+` \(claims: ann\), fork`, events)
	require.NotContains(t, events, k.people["ann"].Key)
	added := k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")
	for name, p := range k.people {
		require.Regexp(t, "operator "+name+" +"+regexp.QuoteMeta(p.Context)+", key "+p.Key+`\n`, added)
	}

	restore := pasted(t, k.person(t, "ann", 0, "mark", "r-mail", "m1"), "restore it with")
	requireHas(t, k.waymark(t, 0, restore...), "mark:m1")

	var history runHistory
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "ann", 0, "--json", "runs", "history", "r-mail")), &history))
	table := k.person(t, "ann", 0, "runs", "history", "r-mail")
	require.Regexp(t, `(?m)^event:r-mail\.\d+\.c\.`, table)
	for _, p := range history.Points {
		require.Contains(t, table, p.Point+" ")
	}
}

// A daemon whose key was not added names the command that adds it. Pasted as it stands, that command adds it.
func TestServe_KeyNotAdded_HintAddsIt(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	require.NoError(t, os.Remove(filepath.Join(k.fleets, keyedFleet+"-daemon.nk")))
	k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")
	require.NoError(t, k.srv.Reload())
	said := k.as(t, keyedFleet, access.Daemon, int(exitRefused), "serve", "--synced")
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
		{"shards", "set", "2"},
		{"fleet", "add", keyedFleet, "--dir", dir, "--offline", "--nats", "nats://127.0.0.1:1"},
	} {
		said := s.waymark(t, int(exitUsage), append(args, "--quota", "2MiB")...)
		requireHas(t, said, "--quota")
		requireHas(t, said, "16MiB")
	}
	require.NoDirExists(t, dir)
}
