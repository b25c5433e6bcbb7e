//go:build unix

package nemesis_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// lone is a daemon with its embedded server on a state directory, and no proxy before it.
type lone struct {
	dir    string
	server *process
	flags  []string
}

// newLone starts a daemon. Flags are those of waymark serve.
func newLone(tb testing.TB, flags ...string) *lone {
	tb.Helper()
	w := &lone{dir: tb.TempDir()}
	w.serve(tb, flags...)
	return w
}

func (w *lone) state() string { return filepath.Join(w.dir, "state") }

// launch starts a process that is killed at the end of the test. If the test fails, it shows the end of its log.
func launch(tb testing.TB, name string, command func() *exec.Cmd) *process {
	tb.Helper()
	p := &process{name: name, logs: tb.TempDir(), command: command}
	tb.Cleanup(func() {
		require.NoError(tb, p.kill())
		if tb.Failed() {
			b, err := os.ReadFile(filepath.Join(p.logs, name+".log"))
			tb.Logf("%s said last (%v):\n%s", name, err, b[max(0, len(b)-4096):])
		}
	})
	require.NoError(tb, p.start())
	return p
}

// serve starts the daemon, on the directory and port of the time before.
func (w *lone) serve(tb testing.TB, flags ...string) {
	tb.Helper()
	w.flags = flags
	if w.server == nil {
		w.server = launch(tb, "daemon", func() *exec.Cmd {
			return w.waymark(append([]string{"demo-child", "--json", "serve", "--embedded", "--http", "off", "--quota", "1GiB"}, w.flags...)...)
		})
	} else {
		require.NoError(tb, w.server.start())
	}
	require.NoError(tb, w.server.ready(nil))
}

// kill kills the daemon with its server.
func (w *lone) kill(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, w.server.kill())
}

// waymark is a command on the state directory.
func (w *lone) waymark(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), waymarkBinary, args...)
	cmd.Env = testbin.Environment("WAYMARK_STATE_DIR=" + w.state())
	return cmd
}

// cli runs one of the operator's commands and returns its output; it must end well.
func (w *lone) cli(tb testing.TB, args ...string) []byte {
	tb.Helper()
	out, stderr, err := w.try(tb, args...)
	require.NoError(tb, err, "waymark %s: %s", strings.Join(args, " "), stderr)
	return out
}

func (w *lone) try(tb testing.TB, args ...string) (stdout []byte, stderr string, err error) {
	tb.Helper()
	cmd := w.waymark(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), errs.String(), err
}

// conn connects as any client on this machine does.
func (w *lone) conn(tb testing.TB) *nats.Conn {
	tb.Helper()
	end, err := natsconn.Discover(tb.Context(), w.state())
	require.NoError(tb, err)
	opts, err := end.Options()
	require.NoError(tb, err)
	nc, err := nats.Connect(end.URL, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))...)
	require.NoError(tb, err)
	tb.Cleanup(func() { closeConn(nc) })
	return nc
}

func (w *lone) jetStream(tb testing.TB) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(w.conn(tb))
	require.NoError(tb, err)
	return js
}

// fleet is the SDK in this process.
func (w *lone) fleet(tb testing.TB, executor string) *publisher.Fleet {
	tb.Helper()
	return connected(tb, publisher.Config{Conn: w.conn(tb), Executor: executor, PublishTimeout: patience})
}

func connected(tb testing.TB, cfg publisher.Config) *publisher.Fleet {
	tb.Helper()
	fleet, err := publisher.Connect(tb.Context(), cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, fleet.Close(context.Background())) })
	return fleet
}

// deadLetters counts the daemon's refused events.
func (w *lone) deadLetters(tb testing.TB) uint64 {
	tb.Helper()
	stream, err := w.jetStream(tb).Stream(tb.Context(), schema.DeadLetterStream("default"))
	require.NoError(tb, err)
	return stream.CachedInfo().State.Msgs
}

func text(role, s string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(s)}}
}

// awaitStatus waits until a run has a status.
func awaitStatus(t *testing.T, fleet *publisher.Fleet, run string, status schema.Status) {
	t.Helper()
	require.Eventually(t, func() bool {
		head, err := fleet.Head(t.Context(), run)
		return err == nil && head.Status == status
	}, patience, 50*time.Millisecond, "run %s never becomes %s", run, status)
}
