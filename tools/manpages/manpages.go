package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

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
	return os.WriteFile(args[1], page, 0o644) //nolint:gosec // everybody may read a manual
}

var errNoReference = errors.New("it does not begin with a title")

// manPage is a page of the reference in the language of man.
func manPage(reference []byte) ([]byte, error) {
	title, rest, found := bytes.Cut(reference, []byte("\n"))
	if !found || !bytes.HasPrefix(title, []byte("# ")) {
		return nil, errNoReference
	}
	var b bytes.Buffer
	b.WriteString("% waymark 1 \"\" \"\" \"Waymark\"\n\n# NAME\n\nwaymark - keeps fleets of AI agents recoverable\n\n# DESCRIPTION\n")
	// What is a section there is one of the manual.
	for line := range bytes.Lines(rest) {
		if bytes.HasPrefix(line, []byte("## ")) || bytes.HasPrefix(line, []byte("### ")) {
			line = line[1:]
		}
		b.Write(line)
	}
	return md2man.Render(b.Bytes()), nil
}
