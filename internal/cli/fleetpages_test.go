package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
)

// A second and a third team come, a key is revoked and a team goes, by the commands of docs/deploy.md. The teams that stay go
// on, and nothing of the one that went is left on the server.
func TestFleetPages_TeamsComeAndOneGoes_OthersGoOn(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a server and three daemons")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the pages are for a POSIX shell")
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "deploy.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)<!-- run by `internal/cli.TestFleetPages[^\n]+\n```sh\n(.*?)```\n").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 3)
	s := &secured{dir: t.TempDir(), logs: new(serverLog)}
	s.fleets = filepath.Join(s.dir, "fleets")
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	file, pid, includes, store := filepath.Join(s.dir, "nats.conf"), filepath.Join(s.dir, "nats.pid"), filepath.Join(s.dir, "fleets.conf"), filepath.Join(s.dir, "nats")
	require.NoError(t, os.WriteFile(includes, nil, 0o600))
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "listen: %q\npid_file: %q\njetstream { store_dir: %q, max_file_store: 20G }\nsystem_account: SYS\naccounts { SYS {}\ninclude \"fleets.conf\"\n}\n",
		address, pid, store), 0o600))
	var log bytes.Buffer
	ctx, end := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, "nats-server", "-c", file)
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		end()
		_ = server.Wait() // it was killed
		if t.Failed() {
			t.Log(log.String())
		}
	})
	shell := func(commands string) {
		t.Helper()
		commands = strings.NewReplacer("/etc/waymark", s.dir, "--signal reload", "--signal reload="+pid).Replace(commands)
		sh := exec.CommandContext(t.Context(), "sh", "-euc", commands)
		sh.Env = []string{"HOME=" + s.dir, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}
		out, err := sh.CombinedOutput()
		require.NoError(t, err, "%s\n%s", commands, out)
	}
	require.Eventually(t, func() bool {
		_, err := os.Stat(pid)
		return err == nil
	}, securedWait, pollEvery)
	began := time.Now()
	stops := make(map[string]func() (int, string))
	for _, fleet := range []string{"search", "payments", "payments-2"} {
		add := []string{"fleet", "add", fleet, "--dir", s.fleets}
		s.waymark(t, 0, append(add, "--offline", "--quota", "64MiB", "--nats", "nats://"+address, "--include", includes, "--operator", "ann,bob")...)
		shell("nats-server --signal reload; nats-server --signal reload")
		require.Eventually(t, func() bool {
			var out lockedBuffer
			code := Run(t.Context(), add, s.getenv, strings.NewReader(""), &out, &out)
			if code == int(failure.Unavailable) {
				shell("nats-server --signal reload") // as it says
			}
			return code == 0
		}, securedWait, pollEvery)
		_, stop, err := startDaemon([]string{"--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced"}, s.getenv)
		require.NoError(t, err)
		t.Cleanup(func() { stop() })
		stops[fleet] = stop
		s.as(t, fleet, access.Executor, 0, "start", "coder", "--id", "r-"+fleet)
		t.Logf("fleet %s works after %s", fleet, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	ann := func(code failure.Code) {
		s.waymark(t, int(code), "--fleet", "search", "--context", filepath.Join(s.fleets, "search-operator.ann.json"), "runs", "ls")
	}
	ann(failure.OK)
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(s.fleets, "search-operator.ann.nk"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(s.fleets, "search-operator.ann.nk")))
	s.waymark(t, 0, "fleet", "add", "search", "--dir", s.fleets)
	shell("nats-server --signal reload")
	require.Eventually(t, func() bool {
		nc, err := nats.Connect(address, nkey)
		if err == nil {
			nc.Close()
		}
		return err != nil
	}, securedWait, pollEvery)
	t.Logf("a key is revoked after %s", time.Since(began).Round(time.Millisecond))

	// Not while it is served, not with another name, not without the permission, and not by another key.
	began = time.Now()
	require.Eventually(t, func() bool { // while a server reloads, JetStream may not answer
		var out lockedBuffer
		code := Run(t.Context(), []string{"--fleet", "payments", "--context", s.context("payments", access.Daemon), "fleet", "rm", "payments"}, s.getenv, strings.NewReader(""), &out, &out)
		return code == int(failure.Conflict) && strings.Contains(out.String(), "lease fold.payments.0 is held")
	}, securedWait, pollEvery)
	code, text := stops["payments"]()
	require.Zero(t, code, text)
	said := s.as(t, "payments", access.Daemon, int(failure.Usage), "fleet", "rm", "search")
	requireHas(t, said, "this would remove fleet payments")
	s.waymark(t, int(failure.Refused), "--fleet", "payments", "--context", filepath.Join(s.fleets, "payments-operator.bob.json"), "fleet", "rm", "payments")
	said = s.as(t, "payments", access.Daemon, int(failure.Refused), "fleet", "rm", "payments")
	requireHas(t, said, "waymark fleet rm payments --dir DIR")
	for _, block := range blocks {
		shell(block[1])
	}
	t.Logf("a fleet is removed after %s", time.Since(began).Round(time.Millisecond))
	left, err := filepath.Glob(filepath.Join(s.fleets, "*payments*"))
	require.NoError(t, err)
	require.NotEmpty(t, left)
	for _, name := range left {
		require.Contains(t, filepath.Base(name), "payments-2")
	}
	streams, err := filepath.Glob(filepath.Join(store, "jetstream", access.AccountOf(access.Daemon, "payments"), "streams", "*"))
	require.NoError(t, err)
	require.Empty(t, streams)
	for _, fleet := range []string{"search", "payments-2"} {
		require.Eventually(t, func() bool { // the reload may have closed connections
			var out lockedBuffer
			return Run(t.Context(), []string{"--fleet", fleet, "--context", s.context(fleet, access.Observer), "verify", "--all"}, s.getenv, strings.NewReader(""), &out, &out) == 0
		}, securedWait, pollEvery)
		s.as(t, fleet, access.Observer, 0, "runs", "get", "r-"+fleet)
	}
	require.FileExists(t, filepath.Join(s.dir, "payments-last", "manifest.json"))
}

// In an account that fleets share, exactly the streams and keys of one are deleted, and a removal that was broken off continues.
func TestFleetRm_SharedAccount_OthersKeepTheirs(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	where := []string{"--context", server.NATSD().Endpoint().Context}
	run := func(code failure.Code, args ...string) string {
		var out bytes.Buffer
		require.Equal(t, int(code), Run(t.Context(), append(where, args...), env(), strings.NewReader(""), &out, &out), &out)
		return out.String()
	}
	nc, err := server.NATSD().Endpoint().Connect()
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := func() (list []string) {
		for name := range js.StreamNames(t.Context()).Name() {
			list = append(list, name)
		}
		return list
	}
	leases := func(fleet string) int {
		info, err := js.Stream(t.Context(), "KV_WAYMARK_LEASES")
		require.NoError(t, err)
		state, err := info.Info(t.Context(), jetstream.WithSubjectFilter("$KV.WAYMARK_LEASES.fold."+fleet+".*"))
		require.NoError(t, err)
		return len(state.State.Subjects)
	}
	for _, fleet := range []string{"one", "one-2"} {
		run(failure.OK, "fleet", "add", fleet, "--quota", "64MiB", "--shards", "2")
		_, stop, err := startDaemon(append(where, "--http", "off", "--fleet", fleet), env())
		require.NoError(t, err)
		require.Eventually(t, func() bool { return leases(fleet) == 2 }, securedWait, pollEvery)
		code, text := stop()
		require.Zero(t, code, text)
	}
	before := names()
	require.NoError(t, js.DeleteStream(t.Context(), "WAYMARK_EVENTS_one_0")) // as a removal that was killed
	run(failure.OK, "--fleet", "one", "fleet", "rm", "one")
	require.Equal(t, []int{0, 2}, []int{leases("one"), leases("one-2")})
	require.Len(t, names(), len(before)-8, "three for each shard, and two of the fleet: %v", names())
	run(failure.OK, "--fleet", "one", "fleet", "rm", "one") // the last answer was lost
	run(failure.OK, "fleet", "add", "one", "--quota", "64MiB", "--shards", "1")
	run(failure.OK, "--fleet", "one", "fleet", "rm", "one")
	require.Contains(t, strings.Join(names(), " "), "WAYMARK_EVENTS_one-2_1")
	run(failure.OK, "--fleet", "one-2", "fleet", "rm", "one-2")
	require.Empty(t, names())
}
