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
	"sync"
	"time"
)

// Bounds on the life of the demonstration's processes.
const (
	startLimit = 30 * time.Second
	StopLimit  = 8 * time.Second
)

// processTree is the process tree of a demonstration: it starts and kills processes, and leaves none running.
type processTree struct {
	binary string
	state  string
	logs   string
	env    []string

	mu        sync.Mutex
	processes []*process
	started   int
}

func newProcessTree(binary, dir string, environ []string) (*processTree, error) {
	f := &processTree{binary: binary, state: filepath.Join(dir, "state"), logs: filepath.Join(dir, "logs")}
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
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   string
	// first is closed after the first line of output.
	first chan struct{}
	// gone is closed when the process has ended; err is how.
	gone chan struct{}
	err  error
}

// start starts this binary with the arguments.
func (f *processTree) start(name string, args ...string) (*process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started++
	p := &process{
		name: name, first: make(chan struct{}), gone: make(chan struct{}),
		log: filepath.Join(f.logs, fmt.Sprintf("%02d-%s.log", f.started, name)),
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	// Not the context of the command, which would end all at once: the code below ends processes in order.
	p.cmd = exec.CommandContext(context.Background(), f.binary, append([]string{"demo-child"}, args...)...)
	p.cmd.Env = f.env
	p.cmd.Stderr = log
	stdin, stdinErr := p.cmd.StdinPipe()
	stdout, stdoutErr := p.cmd.StdoutPipe()
	if err := errors.Join(stdinErr, stdoutErr); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	go p.watch(stdout, log)
	f.processes = append(f.processes, p)
	return p, nil
}

// watch reads the child's output and waits for its end.
func (p *process) watch(stdout io.Reader, log io.Closer) {
	r := bufio.NewReader(stdout)
	if _, err := r.ReadString('\n'); err == nil {
		close(p.first)
	}
	_, _ = io.Copy(io.Discard, r) // ends with the process
	p.err = errors.Join(p.cmd.Wait(), log.Close())
	close(p.gone)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.gone
	return nil
}

// stop asks the process to end, and kills it if that takes too long.
func (p *process) stop() error {
	_ = p.stdin.Close() // the process may be gone
	limit := time.NewTimer(StopLimit)
	defer limit.Stop()
	select {
	case <-p.gone:
		return nil
	case <-limit.C:
		return errors.Join(p.kill(), fmt.Errorf("%s did not stop within %s and was killed", p.name, StopLimit))
	}
}

// ready waits for the first line of output.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("it took too long"))
	defer cancel()
	select {
	case <-p.first:
		return nil
	case <-p.gone:
		return p.failed("ended before it was ready")
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", p.name, context.Cause(ctx))
	}
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
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(f.processes) {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}
