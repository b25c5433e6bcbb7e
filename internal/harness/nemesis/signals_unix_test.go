//go:build unix

package nemesis_test

import (
	"context"
	"fmt"
	"syscall"
)

// signal sends one.
func (p *process) signal(s syscall.Signal) error {
	if err := p.life.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s to %s: %w", s, p.name, err)
	}
	return nil
}

// terminate asks it to stop, and waits until it has.
func (p *process) terminate(ctx context.Context) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.await(ctx)
}

// pause stops it, resume continues it.
func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }
