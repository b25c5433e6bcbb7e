package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man" // what Docker's and cobra's manual pages are made with
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1) //nolint:forbidigo // stands in for the shell's
	}
}

var errUsage = errors.New("usage: manpages docs/cli.md waymark.1")

func run(args []string) error {
	if len(args) != 2 {
		return errUsage
	}
	reference, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("reading the reference: %w", err)
	}
	page, err := manPage(reference)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return os.WriteFile(args[1], page, 0o644) //nolint:gosec // every user may read a manual
}

var errNoReference = errors.New("it does not begin with a title")

// manPage returns a page of the reference in the format of man.
func manPage(reference []byte) ([]byte, error) {
	title, rest, found := bytes.Cut(reference, []byte("\n"))
	if !found || !bytes.HasPrefix(title, []byte("# ")) {
		return nil, errNoReference
	}
	var b bytes.Buffer
	b.WriteString("% waymark 1 \"\" \"\" \"Waymark\"\n\n# NAME\n\nwaymark - keeps fleets of AI agents recoverable\n\n# DESCRIPTION\n")
	rest = aboutItself.ReplaceAll(rest, nil)
	table := 0 // lines of the table so far
	for line := range bytes.Lines(rest) {
		row := tableRow.FindSubmatch(line)
		if row == nil {
			table = 0
			if bytes.HasPrefix(line, []byte("## ")) || bytes.HasPrefix(line, []byte("### ")) {
				line = line[1:] // what is a section there is one of the manual
			}
			b.Write(line)
			continue
		}
		if table++; table > 2 { // behind the head of the table and its rule
			cells := strings.Split(strings.ReplaceAll(string(row[1]), `\|`, "\x00"), "|")
			for i := range cells {
				cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
			}
			fmt.Fprintf(&b, "%s\n: %s\n\n", cells[0], strings.Join(cells[1:], "; "))
		}
	}
	return md2man.Render(b.Bytes()), nil
}

// aboutItself matches the reference's remarks on its own form. tableRow matches a line of a table: a manual lists flags
// with their text below, because tables are wider than a terminal.
var (
	aboutItself = regexp.MustCompile(`(?s)\nWritten by a test .*?\n\n`)
	tableRow    = regexp.MustCompile(`^\|(.*)\|\n$`)
)
