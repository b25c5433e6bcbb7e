package base

import (
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// NewLogger writes to w: text to a terminal, JSON otherwise.
func NewLogger(w io.Writer, level, format string) (zerolog.Logger, error) {
	l, err := zerolog.ParseLevel(level)
	if err != nil || level == "" {
		return zerolog.Nop(), failure.New(failure.Usage, "use debug, info, warn or error", "log level %q is not known", level)
	}
	// Values may come from outside: a reason, a name, a subject.
	if format == "console" || format == "auto" && output.IsTerminal(w) {
		safe := func(v any) string { return output.Printable(fmt.Sprintf("%s", v)) }
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", FormatMessage: safe, FormatFieldValue: safe}
	} else {
		w = &output.EscapingWriter{To: w}
	}
	return zerolog.New(w).Level(l).Hook(timestamp{}), nil
}

// timestamp adds the time to each line, in milliseconds. The format of zerolog's own is a variable of the whole process.
type timestamp struct{}

func (timestamp) Run(e *zerolog.Event, _ zerolog.Level, _ string) {
	e.Str(zerolog.TimestampFieldName, time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"))
}
