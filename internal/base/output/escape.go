package output

import (
	"fmt"
	"io"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escaped is a JSON document in which all characters that a terminal could obey or show wrongly are escaped: controls
// above ASCII, direction overrides, characters without width. Its meaning is unchanged. The JSON encoder has already
// escaped the characters that JSON forbids in strings, such as ESC.
func Escaped(document []byte) []byte {
	clean := true
	for _, c := range document {
		if c >= 0x7f {
			clean = false
			break
		}
	}
	if clean {
		return document
	}
	out := make([]byte, 0, len(document)+16)
	for i := 0; i < len(document); {
		r, size := utf8.DecodeRune(document[i:])
		switch {
		case r < 0x7f, r != utf8.RuneError && unicode.IsPrint(r):
			out = append(out, document[i:i+size]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += size
	}
	return out
}

// EscapingWriter writes JSON in the form of [Escaped]. It is safe for concurrent use.
type EscapingWriter struct {
	mu sync.Mutex
	To io.Writer
	// part is the beginning of a character whose rest is not written yet.
	part []byte
}

// Write implements io.Writer.
func (w *EscapingWriter) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := append(w.part, text...)
	whole := len(b)
	for back := 1; back <= min(utf8.UTFMax-1, len(b)); back++ {
		if utf8.RuneStart(b[len(b)-back]) {
			if !utf8.FullRune(b[len(b)-back:]) {
				whole = len(b) - back
			}
			break
		}
	}
	if _, err := w.To.Write(Escaped(b[:whole])); err != nil {
		return 0, err
	}
	w.part = append([]byte(nil), b[whole:]...)
	return len(text), nil
}
