package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/tools/walks"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, ".", os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// options say what to measure in addition to the code, the imports and the names.
type options struct {
	files  string
	walks  bool
	types  int
	binary bool
}

func run(ctx context.Context, root string, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("structure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var o options
	flags.StringVar(&o.files, "files", "", "the arrows between the files of one `package`, by its folder (consumer/... for those below, too)")
	flags.BoolVar(&o.walks, "walks", false, "the walks of "+walks.Page+": functions, files, stays and returns")
	flags.IntVar(&o.types, "types", 10, "how many types to list, those with the most methods; 0 is all")
	flags.BoolVar(&o.binary, "binary", false, "build cmd/waymark and say the size of the stripped binary")
	against := flags.String("against", "", "measure a git `revision`, too, and the difference")
	flags.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "structure measures the code in the current folder; go doc ./tools/structure says how it counts.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag: structure -h lists them", flags.Arg(0))
	}
	now, err := measure(ctx, root, o)
	if err != nil {
		return err
	}
	var before []section
	if *against != "" {
		if before, err = measureRevision(ctx, root, *against, o); err != nil {
			return err
		}
	}
	if o.files != "" && !slices.ContainsFunc(slices.Concat(now, before), func(s section) bool { return strings.HasPrefix(s.title, filesTitle) }) {
		return fmt.Errorf("there is no package %q: structure without flags lists them", o.files)
	}
	if *against == "" {
		printSections(stdout, now)
	} else {
		printDifference(stdout, *against, before, now)
	}
	return nil
}

// measure returns all sections of the tree below root.
func measure(ctx context.Context, root string, o options) ([]section, error) {
	t, err := readTree(root)
	if err != nil {
		return nil, err
	}
	sections := append(t.lines(), t.imports(), t.exported(), t.methods(o.types))
	linked, err := t.linked(ctx, o.binary)
	if err != nil {
		return nil, err
	}
	sections = append(sections, linked)
	if o.files != "" {
		files, err := t.filesOf(ctx, o.files)
		if err != nil {
			return nil, err
		}
		sections = append(sections, files...)
	}
	if o.walks {
		walked, err := t.walks()
		if err != nil {
			return nil, err
		}
		sections = append(sections, walked...)
	}
	return sections, nil
}
