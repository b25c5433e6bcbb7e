package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	withoutCore()
	// With SIGPIPE ignored a reader that went away is an error of the write, on standard output too.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}
