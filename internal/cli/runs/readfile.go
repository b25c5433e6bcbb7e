package runs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// fileNamed is the name of a file in messages: - is standard input.
func fileNamed(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// readFile reads a file from the command line. missing is the hint if there is none, large the hint if it exceeds
// limit.
func readFile(a *base.App, file, missing string, limit int64, large string) ([]byte, error) {
	from := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, failure.New(failure.NotFound, missing, "file %s does not exist", file)
		}
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // it was only read
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", fileNamed(file), err)
	case int64(len(b)) > limit:
		return nil, failure.New(failure.Usage, large, "%s has more than %s", fileNamed(file), output.Bytes(limit))
	}
	return b, nil
}
