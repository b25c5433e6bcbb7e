// Command helper is every process of the nemesis's world except the daemons: a nats-server or an executor, depending
// on its environment.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/waymarkio/waymark/internal/harness/nemesis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := nemesis.Main(ctx, os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code) //nolint:forbidigo // this is main
}
