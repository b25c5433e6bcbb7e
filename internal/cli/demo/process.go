package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// StopLimit is how long a process of the demonstration may take to end.
const StopLimit = 8 * time.Second

// processTree starts and kills processes, and leaves none running.
type processTree struct {
	binary, state, logs string
	env                 []string
	processes           []*process
	// heard is called with each line that a process prints.
	heard func(line []byte)
}

func newProcessTree(binary, dir string, environ []string, heard func(line []byte)) (*processTree, error) {
	f := &processTree{binary: binary, state: filepath.Join(dir, "state"), logs: filepath.Join(dir, "logs"), heard: heard}
	// Environment variables of the user must not connect the demonstration to the user's servers.
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "NATS_") && !strings.HasPrefix(name, "WAYMARK_") {
			f.env = append(f.env, e)
		}
	}
	f.env = append(f.env, "WAYMARK_STATE_DIR="+f.state, "GORACE=atexit_sleep_ms=0")
	return f, os.MkdirAll(f.logs, 0o700)
}

// process is one child. Its standard input is held open by the parent: when the parent ends, also by a
// crash, the child reads end of file and ends too.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	// end asks the process to end, and kills it after StopLimit.
	end context.CancelFunc
	// gone is closed when the process has ended; err is how.
	gone chan struct{}
	err  error
}

// start starts this binary with the arguments.
func (f *processTree) start(name string, args ...string) (*process, error) {
	p := &process{
		name: name, gone: make(chan struct{}),
		log: filepath.Join(f.logs, fmt.Sprintf("%02d-%s.log", len(f.processes)+1, name)),
	}
	// Not the context of the command, which would end all at once: the code below ends processes in order.
	ctx, end := context.WithCancel(context.Background())
	p.end = end
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, f.binary, append([]string{"demo-child"}, args...)...)
	p.cmd.Env = f.env
	p.cmd.Stderr = log
	stdin, stdinErr := p.cmd.StdinPipe()
	stdout, stdoutErr := p.cmd.StdoutPipe()
	if err := errors.Join(stdinErr, stdoutErr); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	p.cmd.Cancel, p.cmd.WaitDelay = stdin.Close, StopLimit
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	go p.watch(stdout, log, f.heard)
	f.processes = append(f.processes, p)
	return p, nil
}

// watch reads the child's output and waits for its end.
func (p *process) watch(stdout io.Reader, log io.Closer, heard func(line []byte)) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		heard(lines.Bytes())
	}
	p.err = errors.Join(lines.Err(), p.cmd.Wait(), log.Close())
	close(p.gone)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.gone
	return nil
}

// stop asks the process to end, and waits until it is gone.
func (p *process) stop() error {
	select {
	case <-p.gone:
		return nil
	default:
	}
	p.end()
	<-p.gone
	if !p.cmd.ProcessState.Success() {
		return p.failed("did not end well")
	}
	return nil
}

// failed is an error with the last lines of the process's log.
func (p *process) failed(what string) error {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Errorf("%s %s (%w)", p.name, what, p.err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return fmt.Errorf("%s %s: %s", p.name, what, bytes.Join(lines[max(0, len(lines)-3):], []byte(" | ")))
}

// stopAll stops every process in reverse order: the executors before the server.
func (f *processTree) stopAll() error {
	var errs []error
	for _, p := range slices.Backward(f.processes) {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}
