package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// newSeed is the seed of a new key and its public key.
func newSeed(t *testing.T) (seed, public string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	b, err := pair.Seed()
	require.NoError(t, err)
	public, err = pair.PublicKey()
	require.NoError(t, err)
	return string(b), public
}

// command runs the program with an empty environment and returns its exit code and all that it prints.
func command(t *testing.T, dir string, args ...string) (int, string) {
	t.Helper()
	var out lockedBuffer
	code := Run(t.Context(), args, func(name string) string { return map[string]string{"HOME": dir, "XDG_CONFIG_HOME": dir}[name] }, strings.NewReader(""), &out, &out)
	return code, out.String()
}

func TestSecretSeed_InPlaceOfAnotherArgument_IsNotPrinted(t *testing.T) {
	t.Parallel()
	seed, _ := newSeed(t)
	dir := t.TempDir()
	for _, given := range []string{seed, seed[:40], seed + "A"} {
		for _, args := range [][]string{
			{"fleet", "keys", "add", given},
			{"fleet", "keys", "retire", given},
			{"fleet", "keys", "ls", given},
			{"serve", "--http", "off", "--nkey", given},
			{"--nats", "nats://127.0.0.1:1", "--nkey", given, "runs", "ls"},
			{"--nats", "nats://127.0.0.1:1", "--creds", given, "runs", "ls"},
		} {
			code, text := command(t, dir, append([]string{"--state-dir", filepath.Join(dir, "state")}, args...)...)
			require.NotZero(t, code, "%v", args[:2])
			require.NotContains(t, text, given[:16], "%v", args[:2])
			requireHas(t, text, "secret seed")
			requireHas(t, text, "create a new seed if others could see it")
		}
	}
}

func TestPublicKey_Nonsense_IsRefusedWithTheNextStep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"fleet", "keys", "add", "UBAD"}, {"fleet", "keys", "retire", "UBAD"},
	} {
		code, text := command(t, dir, append([]string{"--state-dir", filepath.Join(dir, "state")}, args...)...)
		require.Equal(t, int(failure.Usage), code, "%v: %s", args, text)
		requireHas(t, text, "is not a public key")
		requireHas(t, text, "-pubout")
		require.NotContains(t, text, "serve --help")
	}
	require.NoDirExists(t, filepath.Join(dir, "state"), "no server was started")
}

// The way of docs/backup.md: a fleet with keys goes on on a local server.
func TestRestore_FleetWithKeys_IsServedByALocalServerWithItsKey(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	log := new(lockedBuffer)
	_, stop, err := startDaemonTo(log, []string{"--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Daemon)}, k.getenv)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	_, err = k.executor(t, "one").Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	saved := filepath.Join(k.dir, "saved")
	k.as(t, keyedFleet, access.Daemon, 0, "backup", saved)
	code, text := stop()
	require.Zero(t, code, text)

	lone := []string{"--state-dir", filepath.Join(k.dir, "lone"), "--fleet", keyedFleet}
	local := func(code int, args ...string) string { return k.waymark(t, code, append(lone, args...)...) }
	requireHas(t, local(0, "restore", saved), "serve --nkey FILE")
	text = local(int(failure.Refused), "serve", "--http", "off")
	requireHas(t, text, "serve --nkey FILE")
	requireHas(t, text, "fleet keys add PUBLICKEY")

	// A new key is added while no daemon runs: none would start without it.
	seed, added := newSeed(t)
	file := filepath.Join(k.dir, "new.nk")
	require.NoError(t, os.WriteFile(file, []byte(seed), 0o600))
	requireHas(t, local(int(failure.Refused), "serve", "--http", "off", "--nkey", file), "fleet keys add "+added)
	requireHas(t, local(0, "fleet", "keys", "add", added), added)
	require.Equal(t, 2, strings.Count(local(0, "--nkey", file, "fleet", "keys", "add"), "\nU"), "the same key by its file")
	var keys struct {
		Keys []schema.FleetKey `json:"keys"`
	}
	require.NoError(t, json.Unmarshal([]byte(local(0, "--json", "fleet", "keys")), &keys))
	require.Len(t, keys.Keys, 2)
	requireHas(t, local(0, "fleet", "keys", "retire", added), added)
	text = local(int(failure.Usage), "fleet", "keys", "retire", keys.Keys[0].Key)
	requireHas(t, text, "is the last key of fleet")
	requireHas(t, text, "fleet keys add PUBLICKEY")
	_, unknown := newSeed(t)
	text = local(int(failure.Usage), "fleet", "keys", "retire", unknown)
	requireHas(t, text, "list the fleet's keys: waymark")
	require.NotContains(t, text, "invalid fleet settings")

	// The daemon's own key signs, on a server without a configuration file.
	daemonKey := filepath.Join(k.fleets, keyedFleet+"-daemon.nk")
	_, stop, err = startDaemonTo(log, append(append([]string{}, lone...), "--http", "off", "--nkey", daemonKey), k.getenv)
	require.NoError(t, err)
	defer func() {
		code, text := stop()
		require.Zero(t, code, text)
	}()
	requireHas(t, log.String(), "control events are signed")
	requireHas(t, local(0, "cancel", "r1"), "")
	requireHas(t, local(0, "verify", "--all"), "1 run")
	var got struct {
		Head schema.Head `json:"head"`
	}
	require.NoError(t, json.Unmarshal([]byte(local(0, "--json", "runs", "get", "r1")), &got))
	require.True(t, got.Head.CancelRequested, "the signature counts")
	requireHas(t, local(0, "--nkey", daemonKey, "fleet", "keys"), keys.Keys[0].Key)
}

// The order of docs/security.md: the new key is added before the servers know the old one no more.
func TestFleetKeys_NewKeyAddedFirst_DaemonStartsWithoutAWait(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a key takes effect after a minute")
	}
	t.Parallel()
	k := startKeyed(t)
	daemon := []string{"--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Daemon), "--http", "off"}
	ended := make(chan int, 1)
	log, first := new(lockedBuffer), newLineWriter()
	go func() {
		ended <- Run(t.Context(), append([]string{"serve"}, daemon...), k.getenv, strings.NewReader(""), first, log)
	}()
	<-first.first
	old := k.publicKey(t, keyedFleet)
	seed, added := newSeed(t)
	requireHas(t, k.as(t, keyedFleet, access.Daemon, 0, "fleet", "keys", "add", added), added)
	<-time.After(schema.KeyDelay + time.Second) // as the page says: the new key signs from then on

	require.NoError(t, os.WriteFile(filepath.Join(k.fleets, keyedFleet+"-daemon.nk"), []byte(seed+"\n"), 0o600))
	k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")
	require.NoError(t, k.srv.Reload())
	select {
	case code := <-ended:
		require.Equal(t, int(failure.Unavailable), code, log.String())
	case <-time.After(securedWait):
		require.Fail(t, "the daemon goes on with a key that the server does not know")
	}
	requireHas(t, log.String(), "hint: the server closed the connection for good")
	began := time.Now()
	log = new(lockedBuffer)
	_, stop, err := startDaemonTo(log, daemon, k.getenv)
	require.NoError(t, err)
	defer func() {
		code, text := stop()
		require.Zero(t, code, text)
	}()
	require.Less(t, time.Since(began), schema.KeyDelay/2)
	require.NotContains(t, log.String(), "waiting until the daemon's key takes effect")
	requireHas(t, k.as(t, keyedFleet, access.Daemon, 0, "fleet", "keys", "retire", old), old)
}
