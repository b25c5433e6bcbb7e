package main

import (
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// column is a column of a table; right aligns numbers.
type column struct {
	title string
	right bool
}

// printTable prints rows below their titles, two spaces between columns. Without rows it prints nothing.
func printTable(w io.Writer, columns []column, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	rows = append([][]string{titles}, rows...)
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var cells strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if columns[i].right {
				cells.WriteString(space + cell + "  ")
			} else {
				cells.WriteString(cell + space + "  ")
			}
		}
		b.WriteString(strings.TrimRight(cells.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
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
	v, revision := "devel", ""
	if build, ok := debug.ReadBuildInfo(); ok {
		if build.Main.Version != "" && build.Main.Version != "(devel)" {
			v = build.Main.Version
		}
		for _, s := range build.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return strings.TrimSpace(v + " " + revision)
}
