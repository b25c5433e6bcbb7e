package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// startLimit bounds the wait for a daemon to be ready or gone.
const startLimit = 2 * time.Minute

// pollEvery is how often a test looks whether something has come.
const pollEvery = 5 * time.Millisecond

// withProgram runs the tests with the program waymark in the path. It has the race detector only in whole runs; the daemons run in the
// test's process and have it when the tests do.
type withProgram struct{ m *testing.M }

func (w withProgram) Run() int {
	return testbin.Main(w.m.Run, true, func(programs []string) {
		dir := filepath.Dir(programs[0])
		if err := os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
			panic(err)
		}
	}, "../../cmd/waymark")
}

func TestMain(m *testing.M) {
	testscript.Main(withProgram{m}, map[string]func(){"nats-server": natsServer})
}

func TestScripts_Short_Pass(t *testing.T) {
	t.Parallel()
	runScripts(t, "script")
}

func TestScripts_Long_Pass(t *testing.T) {
	if testing.Short() {
		t.Skip("short: scripts that fill a log of 16 MiB")
	}
	t.Parallel()
	runScripts(t, "longscript")
}

// stopsEarly finds testscript's own stop.
var stopsEarly = regexp.MustCompile(`(?m)^\s*(\[[^\]]*\]\s*)*stop\b`)

// runScripts runs testdata/DIR/*.txtar. In addition to testscript's commands they have:
//
//	waymark …            the program, in a process of its own
//	serve [flags]        a daemon in this process, ready when the command returns; its ready line is in
//	                     $READY, and URL, CONTEXT and HTTP are set from it
//	halt                 ends it as Ctrl-C would and fails unless it ended well (stop is testscript's: it ends the
//	                     script as passed, and is refused)
//	join, stop2          the same for a second daemon
//	agent RUN open|done  publishes a small run, as an executor without the SDK would
//	takeover RUN EXECUTOR [REASON]
//	                     takes a run over, as an executor without the SDK would; with ! the daemon must refuse it
//	publish RUN FILE     publishes the events of a file, one a line, as the run's executor
//	same FILE FILE       compares two JSON files as values
//	fill RUN MIB         publishes a run of that size with the SDK; with ! until the fleet is full
//	get URL STATUS       requests a URL; the body becomes standard output
//	until waymark …      runs the program until it prints something, for what the folder does in its own time
//	exits N waymark …    runs the program and fails unless it exits with N
func runScripts(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotRegexp(t, stopsEarly, string(text), "%s: stop ends a script as passed, whatever stands below: use halt to end the daemon", file)
	}
	testscript.Run(t, testscript.Params{
		Dir:         filepath.Join("testdata", dir),
		WorkdirRoot: t.TempDir(), // the default is $GOTMPDIR, which is on the disk where the tests' files are in memory
		Setup: func(env *testscript.Env) error {
			for name, value := range map[string]string{
				"WAYMARK_STATE_DIR": filepath.Join(env.WorkDir, "state"),
				"XDG_CONFIG_HOME":   filepath.Join(env.WorkDir, "config"),
				"HOME":              filepath.Join(env.WorkDir, "home"),
				"WAYMARK_HTTP":      "127.0.0.1:0",
				"WAYMARK_QUOTA":     "64MiB",
				"WAYMARK_SILENCE":   "10m",               // the executors of scripts send no heartbeats
				"GORACE":            "atexit_sleep_ms=0", // a race-built process would wait a second at its end
			} {
				env.Setenv(name, value)
			}
			env.Values[serverKey("serve")] = new(scriptServer)
			env.Values[serverKey("join")] = new(scriptServer)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waymark":  scriptWaymark,
			"serve":    scriptServe("serve"),
			"halt":     scriptStop("serve"),
			"join":     scriptServe("join"),
			"stop2":    scriptStop("join"),
			"exits":    scriptExits,
			"get":      scriptGet,
			"agent":    scriptRun,
			"publish":  scriptPublish,
			"takeover": scriptTakeover,
			"same":     scriptSame,
			"fill":     scriptFill,
			"until":    scriptUntil,
			"note":     scriptNote,
		},
	})
}

type serverKey string

// scriptServer is the daemon that a script runs.
type scriptServer struct {
	stop func() (int, string)
}

func scriptServe(which serverKey) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		server, _ := ts.Value(which).(*scriptServer)
		if neg || server.stop != nil {
			ts.Fatalf("a daemon runs already, or use: exits N waymark serve …")
		}
		line, stop, err := startDaemon(args, ts.Getenv)
		if err != nil {
			ts.Fatalf("%v", err)
		}
		server.stop = stop
		ts.Defer(func() {
			if server.stop != nil {
				server.stop()
			}
		})
		if which != "serve" {
			return
		}
		ts.Setenv("READY", line)
		for name, pattern := range map[string]string{
			"URL": ` url=(\S+)`, "CONTEXT": ` context=(\S+)`, "HTTP": ` http=(\S+)`,
			"HTTPADDR": ` http=http://(\S+)`, "PORT": ` url=\S+:(\d+)`,
		} {
			if found := regexp.MustCompile(pattern).FindStringSubmatch(line); found != nil {
				ts.Setenv(name, found[1])
			}
		}
	}
}

func scriptStop(which serverKey) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, _ []string) {
		server, _ := ts.Value(which).(*scriptServer)
		if server.stop == nil {
			ts.Fatalf("no daemon runs")
		}
		code, stderr := server.stop()
		server.stop = nil
		ts.Logf("[stderr]\n%s", stderr)
		if code != 0 {
			ts.Fatalf("the daemon ended with %d", code)
		}
	}
}

func scriptWaymark(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec("waymark", args...)
	switch _, ended := errors.AsType[*exec.ExitError](err); {
	case err != nil && !ended:
		ts.Fatalf("%v", err)
	case ended && !neg:
		ts.Fatalf("%v, though it was to end well", err)
	case err == nil && neg:
		ts.Fatalf("it ended well, though it was to fail")
	}
}

// scriptNote sets a variable to what the first group of an expression matches in the latest stdout, or stderr.
func scriptNote(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: note NAME EXPRESSION")
	}
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout") + ts.ReadFile("stderr"))
	if len(found) < 2 {
		ts.Fatalf("no output matches %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command [args…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		code = fmt.Sprint(exit.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until command [args…]")
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	for {
		if err := ts.Exec(args[0], args[1:]...); err != nil {
			ts.Fatalf("%v", err)
		}
		if ts.ReadFile("stdout") != "" {
			return
		}
		select {
		case <-again.C:
		case <-limit.C:
			ts.Fatalf("nothing was printed within %s", startLimit)
		}
	}
}

// startDaemon runs serve in this process and returns its ready line, and what stops it.
func startDaemon(args []string, getenv func(string) string) (line string, stop func() (int, string), err error) {
	return startDaemonTo(new(lockedBuffer), args, getenv)
}

// startDaemonTo is startDaemon with its log for the test to read.
func startDaemonTo(stderr *lockedBuffer, args []string, getenv func(string) string) (line string, stop func() (int, string), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	stdout := newLineWriter()
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, append([]string{"serve"}, args...), getenv, strings.NewReader(""), stdout, stderr)
	}()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	stop = sync.OnceValues(func() (int, string) {
		cancel()
		return <-done, stderr.String()
	})
	select {
	case line = <-stdout.first:
		return line, stop, nil
	case code := <-done:
		cancel()
		return "", nil, fmt.Errorf("the daemon ended with %d before it was ready:\n%s", code, stderr)
	case <-limit.C:
		code, text := stop()
		return "", nil, fmt.Errorf("the daemon was not ready within %s and then ended with %d:\n%s", startLimit, code, text)
	}
}

// lineWriter hands over the first line that is written to it.
type lineWriter struct {
	first chan string
	once  sync.Once
	buf   lockedBuffer
}

func newLineWriter() *lineWriter { return &lineWriter{first: make(chan string, 1)} }

func (w *lineWriter) Write(p []byte) (int, error) {
	n, err := w.buf.Write(p)
	if line, _, ok := strings.Cut(w.buf.String(), "\n"); ok {
		w.once.Do(func() { w.first <- line })
	}
	return n, err
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// questionOf is the id of the event that asks a question now.
func questionOf(tb testing.TB, f *publisher.Fleet, run, interrupt string) string {
	tb.Helper()
	head, err := f.Head(tb.Context(), run)
	require.NoError(tb, err)
	i := slices.IndexFunc(head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == interrupt })
	require.NotEqual(tb, -1, i, "run %s does not wait for %s", run, interrupt)
	return head.Interrupts[i].Position.ID
}
