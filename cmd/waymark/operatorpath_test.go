package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// natsServer is the official program nats-server: the same library by the same calls.
func natsServer() {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	opts, err := server.ConfigureOptions(flags, os.Args[1:], server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		server.PrintAndDie(err.Error())
	}
	s, err := server.NewServer(opts)
	if err != nil {
		server.PrintAndDie(err.Error())
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		server.PrintAndDie(err.Error())
	}
	s.WaitForShutdown()
}

// pathLimit bounds all steps of the page together.
const pathLimit = 8 * time.Minute

// threePorts returns the first of three ports in a row that are free.
func threePorts(t *testing.T) int {
	t.Helper()
	for range 1000 {
		first := freePorts(t, 1)[0]
		if first+2 > 1<<16-1 {
			continue
		}
		free := true
		for port := first; port < first+3; port++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if free = err == nil; !free {
				break
			}
			require.NoError(t, l.Close())
		}
		if free {
			return first
		}
	}
	require.Fail(t, "there are no three free ports in a row")
	return 0
}

// triedSteps are the commands of the README that it says are tried.
func triedSteps(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "<!-- tried: cmd/waymark/operatorpath_test.go -->\n")
	require.True(t, ok)
	section, _, ok := strings.Cut(rest, "<!-- end of tried -->")
	require.True(t, ok)
	var script strings.Builder
	blocks := regexp.MustCompile("(?s)(<!-- not run -->\n)?```sh\n(.*?)```\n").FindAllStringSubmatch(section, -1)
	require.Len(t, blocks, strings.Count(section, "```")/2)
	for _, b := range blocks {
		if b[1] == "" {
			script.WriteString(b[2])
		}
	}
	return script.String()
}

// The README's way to a secured fleet, from a clone to three servers and three daemons, as it stands there: only ports are others, and
// the two programs are not built again.
func TestTheReadmesWayToASecuredFleetIsAsItSays(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the README's steps, with three servers and three daemons")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the page is for a POSIX shell")
	}
	steps := triedSteps(t)
	modules, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	require.NoError(t, err)
	version := regexp.MustCompile(`nats-server/v2@(v\S+)`).FindStringSubmatch(steps)
	require.NotNil(t, version)
	require.Contains(t, string(modules), "github.com/nats-io/nats-server/v2 "+version[1]+"\n", "the page installs the version that is tested")

	clone, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	for _, part := range []string{"deploy", "internal"} {
		require.NoError(t, os.Symlink(filepath.Join(root, part), filepath.Join(clone, part)))
	}
	client, route, monitor, http := threePorts(t), threePorts(t), threePorts(t), threePorts(t)
	swap := func(old, text string) {
		require.Contains(t, steps, old)
		steps = strings.ReplaceAll(steps, old, text)
	}
	for _, program := range []string{"waymark", "nats-server"} {
		at, err := exec.LookPath(program)
		require.NoError(t, err)
		line := map[string]string{
			"waymark": "go build -o waymark ./cmd/waymark\n", "nats-server": `GOBIN="$PWD" go install github.com/nats-io/nats-server/v2@` + version[1] + "\n",
		}[program]
		swap(line, "ln -s '"+at+"' "+program+"\n")
	}
	swap("rehearse.sh rehearsal\n", fmt.Sprintf("rehearse.sh rehearsal %d %d %d %d\n", client, route, monitor, http))
	for i := range 3 {
		swap("127.0.0.1:"+strconv.Itoa(4222+i), "127.0.0.1:"+strconv.Itoa(client+i))
	}
	swap("127.0.0.1:8222", "127.0.0.1:"+strconv.Itoa(monitor))
	swap("127.0.0.1:9477", "127.0.0.1:"+strconv.Itoa(http))
	swap("9476", strconv.Itoa(http-1))
	if runtime.GOOS == "linux" {
		// What others on the machine could see of them, before the first one is killed.
		swap("kill -9 ", fmt.Sprintf(`for f in rehearsal/*.pid; do tr '\0' '\n' < "/proc/$(cat "$f")/cmdline"; tr '\0' '\n' < "/proc/$(cat "$f")/environ"; done > seen
for page in varz 'connz?auth=1&subs=1' 'jsz?config=1&streams=1&consumers=1&accounts=1' accountz 'accountz?acc=FLEET_payments_executor' routez 'subsz?subs=1'; do
  curl -sf "http://127.0.0.1:%d/$page" >> seen
done
curl -sf http://127.0.0.1:%d/metrics >> seen
kill -9 `, monitor, http))
	}

	out, err := os.Create(filepath.Join(clone, "output"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), pathLimit)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-euc", steps)
	shell.Dir, shell.Stdout, shell.Stderr = clone, out, out
	shell.Env = []string{"HOME=" + clone, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}
	t.Cleanup(func() { // what a failure has left
		files, err := filepath.Glob(filepath.Join(clone, "rehearsal", "*.pid"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				continue
			}
			if p, err := os.FindProcess(pid); err == nil && t.Failed() {
				_ = p.Kill() // most often it has ended
			}
		}
	})
	failed := shell.Run()
	require.NoError(t, out.Close())
	text, err := os.ReadFile(filepath.Join(clone, "output"))
	require.NoError(t, err)
	require.NoError(t, failed, "%s", text)

	for _, want := range []string{
		"copy " + filepath.Join(clone, "rehearsal", "fleets", "fleet-payments.conf") + " to each server", "streams and buckets  there",
		"harbour-001", "3 imported", "each of 1 shards is folded by one daemon", "sync_interval is always", "waymark_fleet_waiting_events",
		" 0 damaged", "\nok\n",
	} {
		requireHas(t, string(text), want)
	}
	require.Regexp(t, `(?m)^epoch +2$`, string(text), "it was taken over")
	require.NotContains(t, string(text), "FAILED")

	t.Run("it ends", func(t *testing.T) {
		for _, first := range []int{client, route, monitor, http} {
			for port := first; port < first+3; port++ {
				require.Eventually(t, func() bool {
					c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
					if err == nil {
						_ = c.Close()
					}
					return err != nil
				}, startLimit, pollEvery, "something still listens on %d", port)
			}
		}
	})

	t.Run("no key is in a command line, an environment, a status page, a log or an output", func(t *testing.T) {
		shown := string(text)
		files, err := filepath.Glob(filepath.Join(clone, "rehearsal", "*.log"))
		require.NoError(t, err)
		require.Len(t, files, 7)
		if runtime.GOOS == "linux" {
			files = append(files, filepath.Join(clone, "seen"))
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			shown += string(b)
		}
		requireHas(t, shown, "WAYMARK_payments")
		secrets, err := filepath.Glob(filepath.Join(clone, "rehearsal", "fleets", "*.nk"))
		require.NoError(t, err)
		require.Len(t, secrets, 4)
		for _, file := range append(secrets, filepath.Join(clone, "rehearsal", "store-key.conf")) {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Zero(t, info.Mode().Perm()&0o077, "%s is readable by others", file)
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			secret := strings.Trim(strings.TrimPrefix(strings.TrimSpace(string(b)), "key: "), `"`)
			require.Greater(t, len(secret), 40)
			require.NotContains(t, shown, secret, "%s", file)
		}
	})
}

// The README's first run, pasted twice in a row on the same machine: the second time finds what the first one left.
func TestReadme_FirstRun_PastedTwice(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the commands are a Unix shell's")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "In another terminal,")
	require.True(t, found)
	_, rest, _ = strings.Cut(rest, "```sh\n")
	block, _, _ := strings.Cut(rest, "```")
	require.Contains(t, block, "./waymark import")
	state := t.TempDir()
	_, stop, err := startDaemon([]string{"--http", "off"}, env("WAYMARK_STATE_DIR", state))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	for round := range 2 {
		for line := range strings.Lines(block) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(line, "./waymark", "waymark"))
			cmd.Dir = filepath.Join("..", "..")
			cmd.Env = append(os.Environ(), "WAYMARK_STATE_DIR="+state, "WAYMARK_FLEET=", "NATS_URL=", "NATS_CONTEXT=", "COLUMNS=100")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "round %d: %s%s", round+1, line, out)
			for said := range strings.Lines(string(out)) {
				if !strings.HasPrefix(said, "{") { // an exported transcript
					require.LessOrEqual(t, len([]rune(strings.TrimRight(said, "\n"))), 100, "%s%s", line, said)
				}
			}
		}
	}
}
