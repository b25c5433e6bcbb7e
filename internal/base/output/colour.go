package output

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/text"
)

// Coloured reports whether w is a terminal that shows colours: see https://no-color.org and https://force-color.org.
func Coloured(w io.Writer, getenv func(string) string) bool {
	if getenv("NO_COLOR") != "" {
		return false
	}
	return getenv("FORCE_COLOR") != "" || getenv("TERM") != "dumb" && IsTerminal(w)
}

// Below is the stream below a page.
func Below(w io.Writer) io.Writer {
	if p, ok := w.(Page); ok {
		return p.Writer
	}
	return w
}

// Painted is a text in a colour; none leaves it as it is.
func Painted(s string, colours text.Colors) string {
	if len(colours) == 0 || s == "" {
		return s
	}
	return colours.EscapeSeq() + s + text.EscapeReset
}
