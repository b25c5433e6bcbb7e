package runs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
)

// fileNamed is what messages call the file of a command line: - is standard input.
func fileNamed(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// readFile reads the file of a command line, up to so many bytes: a longer one ends there. hint is the next step where there is none.
func readFile(a *base.App, file, hint string, limit int64) ([]byte, error) {
	from := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, failure.New(failure.NotFound, hint, "there is no file %s", file)
		}
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, limit))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", fileNamed(file), err)
	}
	return b, nil
}
