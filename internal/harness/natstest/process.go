package natstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// childVariable makes a test binary a server; its value is the configuration.
const childVariable = "WAYMARK_NATSTEST_SERVER"

// processWait bounds each step of a child's life.
const processWait = time.Minute

// mainCalled is set by Main. Without Main the child would run the tests again.
var mainCalled bool

// childReady is the one line a child prints when it serves.
type childReady struct {
	URL     string `json:"url"`
	Port    int    `json:"port"`
	Unclean bool   `json:"unclean"`
	Error   string `json:"error,omitempty"`
	InUse   bool   `json:"in_use,omitempty"`
}

// runChild is the child's main: serve until standard input ends, then close.
func runChild(settings string, stdin io.Reader, stdout, stderr io.Writer) int {
	logger := zerolog.New(stderr)
	fail := func(err error) int {
		answer, _ := json.Marshal(childReady{Error: err.Error(), InUse: errors.Is(err, natsd.ErrPortInUse)}) // strings and a bool
		_, _ = fmt.Fprintf(stdout, "%s\n", answer)                                                           // the parent may have exited
		return 1
	}
	var cfg natsd.Config
	if err := json.Unmarshal([]byte(settings), &cfg, durations()); err != nil {
		return fail(fmt.Errorf("%s: %w", childVariable, err))
	}
	ctx, cancel := context.WithTimeout(context.Background(), processWait)
	defer cancel()
	server, err := natsd.Start(ctx, cfg, logger)
	if err != nil {
		return fail(err)
	}
	answer, err := json.Marshal(childReady{URL: server.URL(), Port: server.Port(), Unclean: server.UncleanStart()})
	if err != nil {
		return fail(errors.Join(err, server.Close()))
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", answer); err != nil {
		return fail(errors.Join(err, server.Close()))
	}
	_, err = io.Copy(io.Discard, stdin)
	if err := errors.Join(err, server.Close()); err != nil {
		logger.Error().Err(err).Msg("stopping the child")
		return 1
	}
	return 0
}

// durations gives time.Duration a form: without it json refuses the type.
func durations() json.Options {
	return json.JoinOptions(
		json.WithMarshalers(json.MarshalFunc(func(d time.Duration) ([]byte, error) { return json.Marshal(int64(d)) })),
		json.WithUnmarshalers(json.UnmarshalFunc(func(data []byte, d *time.Duration) error {
			return json.Unmarshal(data, (*int64)(d))
		})),
	)
}

// Process is a server in a process of its own.
type Process struct {
	cfg     natsd.Config
	ready   childReady
	cmd     *exec.Cmd
	stdin   io.Closer
	running bool
}

// StartProcess starts a server in a child process on a directory of the test's own. The package's TestMain must
// call Main. The child ends with the test.
func StartProcess(tb testing.TB, opts ...Option) *Process {
	tb.Helper()
	require.True(tb, mainCalled, "StartProcess needs TestMain to call natstest.Main")
	p := &Process{cfg: config(tb, opts)}
	tb.Cleanup(func() {
		if p.running {
			p.Stop(tb)
		}
	})
	p.Start(tb)
	return p
}

// Start starts the server again, on the same directory and port, after Kill9 or Stop.
func (p *Process) Start(tb testing.TB) {
	tb.Helper()
	require.False(tb, p.running, "the server process runs already")
	awaitPort(tb, func() error { return p.launch(tb) })
	p.cfg.Port = p.ready.Port
}

func (p *Process) launch(tb testing.TB) error {
	tb.Helper()
	require.Nil(tb, p.cfg.Options, "a function cannot be given to another process")
	settings, err := json.Marshal(p.cfg, durations())
	require.NoError(tb, err)
	binary, err := os.Executable()
	require.NoError(tb, err)
	// Not the test's context: that would kill -9 the child before its clean stop at the test's end.
	cmd := exec.CommandContext(context.Background(), binary)
	// A child built with the race detector would otherwise sleep for a second before it exits.
	race := strings.TrimSpace(os.Getenv("GORACE") + " atexit_sleep_ms=0")
	cmd.Env = append(os.Environ(), "GORACE="+race, childVariable+"="+string(settings))
	logger := &testWriter{tb: tb}
	tb.Cleanup(logger.end)
	cmd.Stderr = logger
	stdin, err := cmd.StdinPipe()
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start(), "starting the server process")

	p.cmd, p.stdin, p.running, p.ready = cmd, stdin, true, childReady{}
	timer := time.AfterFunc(processWait, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	timer.Stop()
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	switch {
	case err != nil:
		p.end()
		return fmt.Errorf("the server process said nothing: %w", err)
	case p.ready.InUse:
		p.end()
		return fmt.Errorf("%w: %s", natsd.ErrPortInUse, p.ready.Error)
	case p.ready.Error != "":
		p.end()
		return errors.New(p.ready.Error)
	}
	return nil
}

// end kills the child and waits for it; its exit status says only that.
func (p *Process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.running = false
}

// Kill9 ends the process at once, like kill -9, and waits until it has exited.
func (p *Process) Kill9(tb testing.TB) {
	tb.Helper()
	require.True(tb, p.running, "the server process does not run")
	require.NoError(tb, p.cmd.Process.Kill())
	err := p.cmd.Wait()
	p.running = false
	var exit *exec.ExitError
	require.ErrorAs(tb, err, &exit, "the server process ended by itself")
}

// Stop lets the process stop cleanly and waits until it has exited.
func (p *Process) Stop(tb testing.TB) {
	tb.Helper()
	require.True(tb, p.running, "the server process does not run")
	require.NoError(tb, p.stdin.Close())
	timer := time.AfterFunc(processWait, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	err := p.cmd.Wait()
	p.running = false
	require.NoError(tb, err, "the server process did not stop cleanly")
}

// PID is the process id, for signals such as SIGSTOP.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// URL is the server's address, without credentials; the same after each Start.
func (p *Process) URL() string { return p.ready.URL }

// StateDir is the server's state directory.
func (p *Process) StateDir() string { return p.cfg.StateDir }

// UncleanStart is the server's report about its last start.
func (p *Process) UncleanStart() bool { return p.ready.Unclean }

// Endpoint is the endpoint that a client on this machine discovers.
func (p *Process) Endpoint(tb testing.TB) natsconn.Endpoint {
	tb.Helper()
	end, err := natsconn.Discover(tb.Context(), p.StateDir())
	require.NoError(tb, err)
	return end
}

// Conn connects with the discovered credentials. The connection comes back after each Start and is closed
// when the test ends.
func (p *Process) Conn(tb testing.TB, opts ...nats.Option) *nats.Conn {
	tb.Helper()
	options, err := p.Endpoint(tb).Options()
	require.NoError(tb, err)
	return connect(tb, p.URL(), append(append(options, connectOptions()...), opts...))
}

// JetStream connects and returns a JetStream client.
func (p *Process) JetStream(tb testing.TB, opts ...nats.Option) jetstream.JetStream {
	tb.Helper()
	return newJetStream(tb, p.Conn(tb, opts...))
}
