package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
)

// demoChildCmd runs another command as a process of the demonstration: it ends when its standard input does.
type demoChildCmd struct {
	Args []string `arg:"" passthrough:"" help:"The command."`
}

// Run runs the command with a context that ends with the parent.
func (c demoChildCmd) Run(ctx context.Context, a *base.App) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Nobody can await a read of standard input that never ends: this goroutine lives as long as the process.
	go func() {
		_, _ = io.Copy(io.Discard, a.Stdin)
		cancel()
		<-time.After(demoStopLimit)
		kill(os.Getpid())
	}()
	inner := &base.App{Getenv: a.Getenv, Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr, Now: a.Now}
	err := dispatch(ctx, inner, c.Args)
	if ctx.Err() != nil {
		return nil // the parent is gone, or wants this process gone: there is nobody to tell
	}
	return err
}

// kill ends a process as kill -9 does.
func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // it may be gone
	}
}

// demoProgramCmd are the harmless commands that the demonstration's agents run as processes of their own, so that it
// needs no shell and no program of the system.
type demoProgramCmd struct {
	What string `arg:"" enum:"lines,sha256" help:"What to print."`
	File string `arg:"" help:"File to look at."`
}

// Run prints the number of lines or the checksum.
func (c demoProgramCmd) Run(a *base.App) error {
	b, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.Stdout, demoPrograms[c.What](b))
	return err
}
