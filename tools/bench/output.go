package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// printTable prints rows, the first of which are titles.
func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// newLogger writes errors to w: text for a person at a terminal, JSON for everything else.
func newLogger(w io.Writer) zerolog.Logger {
	if isTerminal(w) {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(zerolog.ErrorLevel).With().Timestamp().Logger()
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// version returns the version of the sources, as the toolchain stamped it into the binary.
func version() string {
	build, _ := debug.ReadBuildInfo()
	if build == nil {
		return "devel"
	}
	return build.Main.Version
}
