package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/term"
)

// newLogger writes to w: text for a person at a terminal, JSON for everything else.
func newLogger(w io.Writer, level, format string) (zerolog.Logger, error) {
	l, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		return zerolog.Nop(), fail(exitUsage, "use debug, info, warn or error", "log level %q is not known", level)
	}
	// Values may be what somebody else chose: a reason, a name, a subject.
	if format == "console" || format == "auto" && isTerminal(w) {
		safe := func(v any) string { return printable(fmt.Sprintf("%s", v)) }
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, FormatMessage: safe, FormatFieldValue: safe}
	} else {
		w = &escapingWriter{to: w}
	}
	return zerolog.New(w).Level(l).With().Timestamp().Logger(), nil
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor
}
