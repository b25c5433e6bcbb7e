package codingagent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// stopLimit is how long an agent may take to end.
const stopLimit = 10 * time.Second

// process is an agent with a bridge for its hooks.
type process struct {
	*Worker
	args []string
	dir  string // working directory; empty means the one of this process
	// run of the session id, which was taken over, and its state; nil for a new session.
	run   *publisher.Run
	state *schema.State
	id    string
	// agent is a process that waymark has not started: its hooks find the bridge by the file.
	agent *os.Process
	file  string
	// fixed: all sessions of the process belong to the run. input is then the prompt.
	fixed bool
	input io.Reader
}

// ended is how an agent has ended.
type ended struct {
	// run of its latest session; nil if no hook was called.
	run *publisher.Run
	// exit is the error of the process, stopped why Waymark ended it.
	exit, stopped error
	// last message of the model.
	last string
}

// wait runs the agent until it has ended. The context ends it.
func (p *process) wait(ctx context.Context) (*ended, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	files, err := os.MkdirTemp("", "waymark-agent-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(files) }()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = listener.Close() }()
	at := Endpoint{URL: "http://" + listener.Addr().String(), Token: rand.Text()}
	file := cmp.Or(p.file, filepath.Join(files, "bridge.json"))
	text, err := json.Marshal(at)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(file) }()
	run := func() error { return p.watch(ctx) }
	if p.agent == nil {
		cmd, err := p.command(ctx, at, file)
		if err != nil {
			return nil, err
		}
		run = cmd.Run
	}
	config := Config{Dialect: p.Dialect, Tools: p.Tools, Token: at.Token, Stop: stop}
	if !p.fixed {
		config.Open = func(ctx context.Context, id string) (*publisher.Run, *schema.State, error) {
			return p.open(ctx, id, false)
		}
		config.Left = func(ctx context.Context, run *publisher.Run, last string) error {
			return p.finish(ctx, &ended{run: run, last: last})
		}
	}
	bridge := New(ctx, config, p.id, p.run, p.state)
	server := &http.Server{Handler: bridge, ReadHeaderTimeout: stopLimit, BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) }}
	go func() { _ = server.Serve(listener) }() // it ends with Close
	end := &ended{exit: run()}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if server.Shutdown(limit) != nil { // hooks that are being recorded
		_ = server.Close()
	}
	end.run, end.stopped, end.last = bridge.Close(), context.Cause(ctx), bridge.Last()
	if (end.run == nil && p.agent == nil || !bridge.called.Load()) && end.stopped == nil {
		return nil, failure.New(failure.General, "hooks may be switched off, for example by --bare or disableAllHooks", "%s recorded nothing: no hook was called (%s)", p.Program, exitText(end.exit))
	}
	return end, nil
}

// exitText says how a process has ended.
func exitText(err error) string { return cmp.Or(err, errors.New("exit status 0")).Error() }

// command is the agent's command line with its hooks, which find the bridge by the file.
func (p *process) command(ctx context.Context, at Endpoint, file string) (*exec.Cmd, error) {
	own, err := p.Dialect.Arguments(at, p.Hook+" "+Quoted(file), filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, p.Program, slices.Concat(own, p.args)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = p.dir, p.Stdin, p.Stdout, p.Stderr
	if p.fixed {
		cmd.Stdin = p.input
	}
	cmd.Env = append(os.Environ(), Supervised+"=1")
	for _, name := range []string{"NO_PROXY", "no_proxy"} { // its hooks are requests to the bridge
		direct := cmp.Or(os.Getenv(name), os.Getenv("NO_PROXY"), os.Getenv("no_proxy"))
		cmd.Env = append(cmd.Env, name+"="+strings.TrimPrefix(direct+",127.0.0.1", ","))
	}
	cmd.Cancel = func() error {
		if cmd.Process.Signal(syscall.SIGTERM) != nil {
			return cmd.Process.Kill() // Windows has no such signal
		}
		return nil
	}
	cmd.WaitDelay = stopLimit
	return cmd, nil
}

// Quoted is a word of a shell.
func Quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// Ask passes the input of a hook on to the bridge that a file names, and returns the answer.
func Ask(ctx context.Context, file string, input []byte) ([]byte, error) {
	var at Endpoint
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	if err != nil {
		return nil, fmt.Errorf("the session's bridge is gone: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.URL, bytes.NewReader(input))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+at.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	reply, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", strings.TrimSpace(string(reply)))
	}
	return reply, err
}

// errGone is the end of an agent that waymark has not started: it has not said that its session ends.
var errGone = errors.New("its process is gone")

// watch waits for the end of an agent. The end of the context asks the agent to end.
func (p *process) watch(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = p.agent.Signal(syscall.SIGTERM) })() // it may have ended
	_, err := io.WriteString(p.Stdout, "ready\n")
	for err == nil && p.agent.Signal(syscall.Signal(0)) == nil {
		<-time.After(time.Second)
	}
	return errGone
}

// Watch is the bridge of an agent that runs already, as the process pid: its hooks find it by the file. It returns once
// the agent has gone.
func (w *Worker) Watch(ctx context.Context, pid int, file string) error {
	agent, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return (&process{Worker: w, agent: agent, file: file}).record(ctx)
}
