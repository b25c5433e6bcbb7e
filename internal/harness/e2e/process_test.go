package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/publisher"
)

// patience bounds every single wait.
const patience = time.Minute

// child is a process that ends when this one does: its standard input is held open here.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   *logBuffer
	line  chan string
	gone  chan struct{}
	err   error
}

// logBuffer keeps the end of a process's output.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > 1<<20 {
		b.buf.Reset()
	}
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(b.buf.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// count counts lines that have a text, as far as they are kept.
func (b *logBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.buf.Bytes(), []byte(text))
}

// environment is this process's without variables that name servers.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "NATS_") && !strings.HasPrefix(e, "WAYMARK_") {
			env = append(env, e)
		}
	}
	return append(env, append(more, "GORACE=atexit_sleep_ms=0 halt_on_error=1")...)
}

func startChild(tb testing.TB, name string, cmd *exec.Cmd) *child {
	tb.Helper()
	c := &child{name: name, cmd: cmd, log: new(logBuffer), line: make(chan string, 1), gone: make(chan struct{})}
	cmd.Stderr = c.log
	stdin, err := cmd.StdinPipe()
	require.NoError(tb, err)
	c.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start(), "starting %s", name)
	go func() {
		r := bufio.NewReader(stdout)
		if line, err := r.ReadString('\n'); err == nil {
			c.line <- strings.TrimSpace(line)
		}
		_, _ = io.Copy(io.Discard, r) // ends with the process
		c.err = cmd.Wait()
		close(c.gone)
	}()
	tb.Cleanup(func() {
		c.kill9(tb)
		if tb.Failed() {
			tb.Logf("%s said last:\n%s", name, c.log)
		}
	})
	return c
}

// kill9 ends the process at once and waits until it has exited.
func (c *child) kill9(tb testing.TB) {
	tb.Helper()
	if err := c.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(tb, err)
	}
	<-c.gone
}

// world is a state directory, the daemon on it, and a journal outside.
type world struct {
	dir    string
	server *child
	starts int
	// flags of the daemon's last start, and the line that it printed when it was ready.
	flags []string
	said  string
}

// newWorld starts a daemon with an embedded server. Flags are those of waymark serve.
func newWorld(tb testing.TB, flags ...string) *world {
	tb.Helper()
	w := &world{dir: tb.TempDir()}
	w.serve(tb, flags...)
	return w
}

func (w *world) state() string   { return filepath.Join(w.dir, "state") }
func (w *world) journal() string { return filepath.Join(w.dir, "outside.jsonl") }

// serve starts the daemon, on the directory and port of the time before. It ends with this process.
func (w *world) serve(tb testing.TB, flags ...string) {
	tb.Helper()
	w.starts++
	w.flags = flags
	args := append([]string{"demo-child", "--json", "serve", "--embedded", "--http", "off", "--quota", "1GiB"}, flags...)
	cmd := exec.CommandContext(context.Background(), binary, args...)
	cmd.Env = environment("WAYMARK_STATE_DIR=" + w.state())
	w.server = startChild(tb, "daemon", cmd)
	select {
	case w.said = <-w.server.line:
	case <-w.server.gone:
		require.Fail(tb, "the daemon ended by itself", "%v: %s", w.server.err, w.server.log)
	case <-time.After(patience):
		require.Fail(tb, "the daemon is not ready", "%s", w.server.log)
	}
}

// cli runs one of the operator's commands and returns its output; it must end well.
func (w *world) cli(tb testing.TB, args ...string) []byte {
	tb.Helper()
	out, stderr, err := w.try(tb, args...)
	require.NoError(tb, err, "waymark %s: %s", strings.Join(args, " "), stderr)
	return out
}

func (w *world) try(tb testing.TB, args ...string) (stdout []byte, stderr string, err error) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), binary, args...)
	cmd.Env = environment("WAYMARK_STATE_DIR=" + w.state())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), errs.String(), err
}

// conn connects as any client on this machine does.
func (w *world) conn(tb testing.TB) *nats.Conn {
	tb.Helper()
	nc, closed, err := dial(tb.Context(), w.state())
	require.NoError(tb, err)
	tb.Cleanup(func() {
		nc.Close()
		<-closed
	})
	return nc
}

// dial returns a connection that reconnects after the server restarts, and a channel that is closed with it.
func dial(ctx context.Context, stateDir string) (*nats.Conn, <-chan struct{}, error) {
	end, err := statedir.Discover(ctx, stateDir)
	if err != nil {
		return nil, nil, err
	}
	opts, err := end.Options()
	if err != nil {
		return nil, nil, err
	}
	closed := make(chan struct{})
	opts = append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	nc, err := nats.Connect(end.URL, opts...)
	if err != nil {
		return nil, nil, err
	}
	return nc, closed, nil
}

func (w *world) jetStream(tb testing.TB) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(w.conn(tb))
	require.NoError(tb, err)
	return js
}

// fleet is the SDK in this process.
func (w *world) fleet(tb testing.TB, executor string) *publisher.Fleet {
	tb.Helper()
	fleet, err := publisher.Connect(tb.Context(), publisher.Config{Conn: w.conn(tb), Executor: executor, PublishTimeout: patience})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, fleet.Close(context.Background())) })
	return fleet
}

// deadLetters counts the daemon's refused events.
func (w *world) deadLetters(tb testing.TB) uint64 {
	tb.Helper()
	stream, err := w.jetStream(tb).Stream(tb.Context(), "WAYMARK_DEADLETTERS_default")
	require.NoError(tb, err)
	return stream.CachedInfo().State.Msgs
}

// lines decodes output of one JSON object a line.
func lines[T any](tb testing.TB, out []byte) []T {
	tb.Helper()
	var list []T
	for line := range bytes.Lines(out) {
		var v T
		require.NoError(tb, json.Unmarshal(bytes.TrimSpace(line), &v), "%s", line)
		list = append(list, v)
	}
	return list
}
