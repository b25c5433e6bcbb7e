package cli

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/demo"
)

// childCmd runs another command as a process of the demonstration: it ends when its standard input closes.
type childCmd struct {
	Args []string `arg:"" passthrough:"" help:"The command."`
}

// Run runs the command with a context that ends with the parent.
func (c childCmd) Run(ctx context.Context, a *base.App) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A read of standard input that never ends cannot be awaited: this goroutine lives as long as the process.
	go func() {
		_, _ = io.Copy(io.Discard, a.Stdin)
		cancel()
		<-time.After(demo.StopLimit)
		kill(os.Getpid())
	}()
	inner := &base.App{Getenv: a.Getenv, Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr, Now: a.Now}
	err := dispatch(ctx, inner, c.Args)
	if ctx.Err() != nil {
		return nil // the parent has exited, or has ended this process: no reader is left for an error
	}
	return err
}

// kill ends a process like kill -9.
func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // it may have exited
	}
}
