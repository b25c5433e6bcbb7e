//go:build unix

package day_test

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
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
)

// process is a server, a daemon or an executor, which can be ended and started again under its name.
type process struct {
	name    string
	command func(life string) *exec.Cmd
	logs    string

	mu     sync.Mutex
	starts int
	cmd    *exec.Cmd
	gone   chan struct{}
	// said is the line that it prints once it is ready.
	said string
}

// start starts a life of it, and waits until it has printed its line. It must not be running.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts++
	log, err := os.OpenFile(filepath.Join(p.logs, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd, gone, line := p.command(p.life()), make(chan struct{}), make(chan string, 1)
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe() // a process ends when it closes
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(log, "---- start %d at %s\n", p.starts, time.Now().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	go func() {
		r := bufio.NewReader(stdout)
		if text, err := r.ReadString('\n'); err == nil {
			line <- strings.TrimSpace(text)
		}
		_, _ = io.Copy(io.Discard, r) // ends with the process
		_ = cmd.Wait()                // most are killed
		_, _ = stdin.Close(), log.Close()
		close(gone)
	}()
	p.cmd, p.gone = cmd, gone
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case p.said = <-line:
		return nil
	case <-gone:
		return fmt.Errorf("%s ended by itself: see its log", p.name)
	case <-timer.C:
		return fmt.Errorf("%s is not ready after %s: see its log", p.name, patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// life names the current one.
func (p *process) life() string { return fmt.Sprintf("%s/%d", p.name, p.starts) }

// end sends a signal and waits for the exit.
func (p *process) end(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s to %s: %w", s, p.name, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.gone:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill() // it may have exited
		<-p.gone
		return fmt.Errorf("%s did not end within %s after %s", p.name, patience, s)
	}
}

// field is a member of the line that it printed.
func (p *process) field(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var said map[string]any
	if json.Unmarshal([]byte(p.said), &said) != nil {
		return ""
	}
	text, _ := said[name].(string)
	return text
}
