//go:build unix

package nemesis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// process is one of the world's, which can be ended and started again under the same name.
type process struct {
	name    string
	command func() *exec.Cmd
	logs    string
	// starts counts its lives.
	starts int
	life   *life
	// served: it has reported that it is ready, in the text said.
	served bool
	said   string
}

// life is a process from its start to its end.
type life struct {
	cmd   *exec.Cmd
	stdin io.Closer
	line  chan string
	gone  chan struct{}
	err   error
}

// start starts it. It must not be running.
func (p *process) start() error {
	p.starts++
	p.served = false
	log, err := os.OpenFile(filepath.Join(p.logs, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l := &life{cmd: p.command(), line: make(chan string, 1), gone: make(chan struct{})}
	l.cmd.Stderr = log
	stdin, err := l.cmd.StdinPipe()
	if err != nil {
		return err
	}
	l.stdin = stdin
	stdout, err := l.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(log, "---- start %d at %s\n", p.starts, time.Now().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	if err := l.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() {
		r := bufio.NewReader(stdout)
		if line, err := r.ReadString('\n'); err == nil {
			l.line <- strings.TrimSpace(line)
		}
		_, _ = io.Copy(io.Discard, r) // ends with the process
		l.err = l.cmd.Wait()
		_ = log.Close() // everything was written by then
		close(l.gone)
	}()
	p.life = l
	return nil
}

// ready waits for the line that it prints after its start.
func (p *process) ready(into any) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case line := <-p.life.line:
		p.served, p.said = true, line
		if into == nil {
			return nil
		}
		if err := json.Unmarshal([]byte(line), into); err != nil {
			return fmt.Errorf("%s said %q: %w", p.name, line, err)
		}
		return nil
	case <-p.life.gone:
		return fmt.Errorf("%s ended by itself: %w: see its log", p.name, p.life.err)
	case <-timer.C:
		return fmt.Errorf("%s is not ready after %s: see its log", p.name, patience)
	}
}

// running reports whether it is.
func (p *process) running() bool {
	if p.life == nil {
		return false
	}
	select {
	case <-p.life.gone:
		return false
	default:
		return true
	}
}

// kill ends it like kill -9, and waits until it has exited.
func (p *process) kill() error {
	if p.life == nil {
		return nil
	}
	if err := p.life.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.life.gone
	return nil
}

// await waits until it has ended by itself, and kills it when that takes too long.
func (p *process) await(ctx context.Context) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.life.gone:
		if p.life.err != nil {
			return fmt.Errorf("%s did not end well: %w", p.name, p.life.err)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s does not end within %s", p.name, patience), p.kill())
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.kill())
	}
}
