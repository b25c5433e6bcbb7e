package transcript

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// DefaultMaxLine bounds one line of a transcript, in bytes.
const DefaultMaxLine = 256 << 20

var utf8BOM = []byte{0xEF, 0xBB, 0xBF}

// lineReader reads lines of any length up to a bound, without a scanner's 64 KiB limit. It strips carriage returns
// before the line feed, and a byte order mark at the beginning.
type lineReader struct {
	r    *bufio.Reader
	max  int
	line int
	read int64
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 256<<10), max: limit}
}

// errLongLine says that a line is longer than the bound; it was skipped to its end.
var errLongLine = errors.New("the line is too long")

// next returns the next line, which the caller may keep, or io.EOF.
func (l *lineReader) next() ([]byte, error) {
	var b []byte
	long := false
	for {
		chunk, err := l.r.ReadSlice('\n')
		l.read += int64(len(chunk))
		if !long && len(b)+len(chunk) > l.max {
			long, b = true, nil
		}
		if !long {
			b = append(b, chunk...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && (!errors.Is(err, io.EOF) || len(b) == 0 && !long) {
			return nil, err
		}
		break
	}
	l.line++
	if long {
		return nil, fmt.Errorf("%w: more than %d bytes", errLongLine, l.max)
	}
	b = bytes.TrimSuffix(b, []byte{'\n'})
	b = bytes.TrimSuffix(b, []byte{'\r'})
	if l.line == 1 {
		b = bytes.TrimPrefix(b, utf8BOM)
	}
	return b, nil
}

// skipBOM drops a byte order mark and returns how many bytes that were.
func skipBOM(r *bufio.Reader) (int, error) {
	head, err := r.Peek(len(utf8BOM))
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if bytes.Equal(head, utf8BOM) {
		return r.Discard(len(utf8BOM))
	}
	return 0, nil
}

// lineAt returns the line (from 1) of a byte offset in a file, 0 if the file cannot be read.
func lineAt(path string, offset int64) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	r := bufio.NewReader(io.LimitReader(f, offset))
	line := 1
	for {
		chunk, err := r.ReadSlice('\n')
		if err == nil && len(chunk) > 0 {
			line++
		} else if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return line
		}
	}
}

// isBlank reports whether a line holds nothing.
func isBlank(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 }

// input is a transcript's file, read according to the options.
type input struct {
	r io.Reader
	o *Options
}

func (in *input) Read(p []byte) (int, error) {
	if in.o.Stop != nil {
		if err := in.o.Stop(); err != nil {
			return 0, err
		}
	}
	n, err := in.r.Read(p)
	if n > 0 && in.o.OnRead != nil {
		in.o.OnRead(n)
	}
	return n, err
}
