// Command waymark keeps fleets of AI agents recoverable: the daemon and the operator's commands in one binary. The grammar and all commands
// are in internal/cli; this package turns signals into a context, and is the only place that exits.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/waymarkio/waymark/internal/cli"
)

func main() {
	withoutCore()
	// With SIGPIPE ignored, a closed reader is an error of the write, on standard output too.
	signal.Ignore(syscall.SIGPIPE)
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP) // the terminal is closed
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(cli.Run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}
