package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

// errFailed says that tests failed. They have been printed.
var errFailed = errors.New("tests failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		if !errors.Is(err, errFailed) {
			fmt.Fprintln(os.Stderr, "tiers:", err)
		}
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("say what to do: test, left or all")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	switch args[0] {
	case "test":
		t := tester{stdout: stdout, stderr: stderr}
		flags.StringVar(&t.record, "record", "", "write what became of each test into `file`")
		flags.BoolVar(&t.long, "long", false, "only the tests that -short leaves out")
		flags.BoolVar(&t.skipLong, "skip-long", false, "only the tests of which -short leaves out nothing")
		flags.BoolVar(&t.ram, "ram", false, "temporary files in memory, where there is room")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return t.run(ctx, flags.Args())
	case "left", "all":
		dir := flags.String("dir", "", "the `folder` of the records")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		outcomes, err := readRecords(*dir)
		if err != nil {
			return err
		}
		if args[0] == "left" {
			printLeft(stdout, outcomes)
			return nil
		}
		return all(stdout, os.DirFS("."), outcomes)
	default:
		return fmt.Errorf("there is no %q: say test, left or all", args[0])
	}
}
