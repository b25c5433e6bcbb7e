package cli

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
	"unicode/utf8"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
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

// securedFleetBlocks are the commands of docs/security.md that the page says TestSecuredFleetPage runs, block by block.
func securedFleetBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	require.NoError(t, err)
	const mark = "<!-- run by `internal/cli.TestSecuredFleetPage_AllBlocks_PastedTwice` -->\n"
	for _, b := range regexp.MustCompile("(?s)"+mark+"```sh\n(.*?)```\n").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, b[1])
	}
	require.Len(t, blocks, strings.Count(string(text), mark))
	require.NotEmpty(t, blocks)
	return blocks
}

// columns is the width of the terminal that the pages' commands are pasted into.
const columns = 100

// unwrapped begin the lines that a terminal wraps: events, notes, failures with their hints, the daemon's ready line, and steps
// that are whole to be pasted, doctor's included.
var unwrapped = regexp.MustCompile(`^(\{|waymark: |hint: |note: |waymark is ready|an executor of agent |it was already submitted|\d\. |  do: )`)

func requireWidth(t *testing.T, output string) {
	t.Helper()
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if !unwrapped.MatchString(line) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), columns, "%s", line)
		}
	}
}

// All blocks of the secured fleet in docs/security.md in order, twice in a row in the same directory, each time in a fresh shell: only ports are others,
// and the programs are built before.
func TestSecuredFleetPage_AllBlocks_PastedTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the page's steps, twice, with three servers and three daemons")
	}
	if runtime.GOOS == "windows" {
		t.Skip("the page is for a POSIX shell")
	}
	steps := strings.Join(securedFleetBlocks(t), "")
	modules, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	require.NoError(t, err)
	version := regexp.MustCompile(`nats-server/v2@(v\S+)`).FindStringSubmatch(steps)
	require.NotNil(t, version)
	require.Contains(t, string(modules), "github.com/nats-io/nats-server/v2 "+version[1]+"\n", "the page installs the version that is tested")

	clone, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(filepath.Join(root, "deploy"), filepath.Join(clone, "deploy")))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(clone, "greeter"), "./docs/examples/shortest")
	build.Dir = root
	built, err := build.CombinedOutput()
	require.NoError(t, err, "%s", built)
	client, route, monitor, http := natstest.FreePorts(t, 3)[0], natstest.FreePorts(t, 3)[0], natstest.FreePorts(t, 3)[0], natstest.FreePorts(t, 3)[0]
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
		swap(line, "ln -sf '"+at+"' "+program+"\n")
	}
	swap("go build -o greeter ./docs/examples/shortest\n", "")
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

	t.Cleanup(func() { // what a failure has left
		if t.Failed() {
			logs, err := filepath.Glob(filepath.Join(clone, "rehearsal", "*.log"))
			require.NoError(t, err)
			for _, file := range logs {
				b, err := os.ReadFile(file)
				require.NoError(t, err)
				t.Logf("%s ends with: %s", filepath.Base(file), b[max(0, len(b)-2000):])
			}
		}
		files, err := filepath.Glob(filepath.Join(clone, "rehearsal", "*.pid"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				continue
			}
			if p, err := os.FindProcess(pid); err == nil && t.Failed() {
				_ = p.Kill() // most often it has ended
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), pathLimit)
	defer cancel()
	// The commands that stop the servers do not wait for them; under load a second paste would find their ports taken.
	awaitEnd := func() {
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
	}
	var shown string
	// The second time, the run that was reopened is continued.
	for range 2 {
		text := pasteInto(ctx, t, clone, steps)
		awaitEnd()
		for _, want := range []string{
			"included in  " + filepath.Join(clone, "rehearsal", "fleets.conf"), "streams and buckets  exist",
			"hello-1", "hello-2", "one daemon folds each shard, and no event waits longer than 10s", "sync_interval is always", "waymark_fleet_waiting_events",
			" 0 damaged", "\nok\n",
		} {
			requireHas(t, text, want)
		}
		require.Len(t, regexp.MustCompile(`(?m)^reopened +the run can be claimed$`).FindAllString(text, -1), 1)
		require.NotContains(t, text, "FAILED")
		requireWidth(t, strings.ReplaceAll(text, clone, "~/waymark"))
		shown += text
	}
	conf, err := os.ReadFile(filepath.Join(clone, "rehearsal", "fleets.conf"))
	require.NoError(t, err)
	require.Len(t, regexp.MustCompile(`(?m)^include `).FindAll(conf, -1), 1)

	t.Run("no key is in a command line, an environment, a status page, a log or an output", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(clone, "rehearsal", "*.log"))
		require.NoError(t, err)
		require.Len(t, files, 8)
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

// pasteInto runs commands in a fresh shell in a directory that is the home directory, too, and returns all that they print.
func pasteInto(ctx context.Context, t *testing.T, dir, steps string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(dir, "output"))
	require.NoError(t, err)
	shell := exec.CommandContext(ctx, "sh", "-euc", steps)
	// Not into a pipe: daemons that the shell leaves behind would keep it open.
	shell.Dir, shell.Stdout, shell.Stderr = dir, out, out
	shell.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0", "COLUMNS=" + strconv.Itoa(columns)}
	failed := shell.Run()
	require.NoError(t, out.Close())
	text, err := os.ReadFile(filepath.Join(dir, "output"))
	require.NoError(t, err)
	require.NoError(t, failed, "%s", text)
	return string(text)
}
