package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/tools/transcripts/transcript"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], publisher.Config{}, os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "transcripts:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run reads the files that args name, and writes their runs to the fleet of cfg.
func run(ctx context.Context, args []string, cfg publisher.Config, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("transcripts", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.Fleet, "fleet", cfg.Fleet, "fleet to write to (default: that of WAYMARK_FLEET, or default)")
	flags.StringVar(&cfg.Executor, "executor", "transcripts", "executor of the runs")
	prefix := flags.String("prefix", "", "text before each run id, so that the same file can be written again")
	dry := flags.Bool("dry-run", false, "only read the files")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("no file is named; see: transcripts -help")
	}
	var fleet *publisher.Fleet
	if !*dry {
		if fleet, err = publisher.Connect(ctx, cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()
	}
	for _, path := range flags.Args() {
		runs, err := transcript.Read(path)
		if err != nil {
			return err
		}
		for _, r := range runs {
			r.Rename(*prefix + r.ID)
			if !*dry {
				if err := r.Write(ctx, fleet); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			if _, err := fmt.Fprintf(stdout, "%s\tagent %s\t%d turns\t%d calls\t%d messages\n", r.ID, r.Agent, len(r.Turns), r.Calls(), r.Messages()); err != nil {
				return err
			}
		}
	}
	return nil
}
