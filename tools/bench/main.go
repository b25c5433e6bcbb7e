package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

// cli is the grammar.
type cli struct {
	JSON  bool `name:"json" help:"Print JSON, for programs."`
	Quiet bool `short:"q" help:"Print no progress."`

	Run    runCmd    `cmd:"" default:"withargs" help:"Compare Waymark with raw JetStream, on temporary servers of its own. Every event written is read back and verified."`
	Report reportCmd `cmd:"" help:"Print tables of what measurements of Waymark and of other systems wrote: medians, and what they show."`
	Child  childCmd  `cmd:"" hidden:""`
}

// app holds the streams and the global flags of a command.
type app struct {
	cli            *cli
	stdin          io.Reader
	stdout, stderr io.Writer
}

// Exit codes, the same as in the program waymark.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitDamaged     = 6
	exitInterrupted = 130
)

// failure is an error with its exit code.
type failure struct {
	error
	code int
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.error }

// explain finds the exit code of an error.
func explain(ctx context.Context, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return &failure{errors.New("interrupted"), exitInterrupted}
	case errors.Is(err, bench.ErrWrongData), errors.Is(err, bench.ErrResult):
		return &failure{err, exitDamaged}
	case errors.Is(err, bench.ErrUnknownCase), errors.Is(err, bench.ErrOptions):
		return &failure{err, exitUsage}
	}
	return &failure{err, exitFailure}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		f := explain(ctx, err)
		fmt.Fprintln(os.Stderr, "bench:", strings.ReplaceAll(f.Error(), "\n", "\n  "))
		os.Exit(f.code) //nolint:forbidigo // this is main
	}
}

// run parses the command line and runs the command.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	a := &app{cli: new(cli), stdin: stdin, stdout: stdout, stderr: stderr}
	shown := false
	parser, err := kong.New(a.cli,
		kong.Name("bench"),
		kong.Description("Compare Waymark with raw JetStream, and report the results."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { shown = true }), // after --help
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if shown {
		return nil
	}
	if err != nil {
		return &failure{fmt.Errorf("%w: see --help", err), exitUsage}
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(a)
}
