package cli

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
)

// hostileTexts are what a terminal, or a reader of a log, must not take at its word.
var hostileTexts = []string{
	"line\r\n{\"level\":\"info\",\"message\":\"forged\"}", "\x1b[2J\x1b]0;title\x07", "\u009b31mred", "\u202egnp.exe", "\u2066isolated\u2069", "a\u200bb",
	"\x00nul", "\x7fdel", "\U000e0041tag", "back\bspace", "\ufeffbom", "bad\xff\xfeutf8", "\u2028separator",
}

// requireTame fails if a text has anything but printable characters and newlines.
func requireTame(t *testing.T, text string) {
	t.Helper()
	for l := range strings.Lines(text) {
		l = strings.TrimSuffix(l, "\n")
		require.Equal(t, output.Printable(l), l, "a terminal would obey this")
	}
}

func TestEscape_JSON_MeansTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text") + rapid.SampledFrom(hostileTexts).Draw(t, "hostile")
		plain, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		safe := output.Escaped(plain)
		var want, have string
		if err := errors.Join(json.Unmarshal(plain, &want), json.Unmarshal(safe, &have)); err != nil || want != have {
			t.Fatalf("%q became %q: %v", want, have, err)
		}
		if output.Printable(string(safe)) != string(safe) {
			t.Fatalf("%q is not tame", safe)
		}
		// Written in pieces it is the same.
		var b strings.Builder
		w := &output.EscapingWriter{To: &b}
		for len(plain) > 0 {
			n := rapid.IntRange(1, len(plain)).Draw(t, "n")
			if _, err := w.Write(plain[:n]); err != nil {
				t.Fatal(err)
			}
			plain = plain[n:]
		}
		if b.String() != string(safe) {
			t.Fatalf("in pieces: %q, want %q", b.String(), safe)
		}
	})
}

func TestLog_HostileText_StaysOneLine(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "console"} {
		for _, hostile := range hostileTexts {
			var out lockedBuffer
			log, err := base.NewLogger(&out, "info", format)
			require.NoError(t, err)
			log.Warn().Str("reason", hostile).Strs("list", []string{hostile}).Err(errors.New(hostile)).Bytes("bytes", []byte(hostile)).
				Any("any", map[string]string{"k": hostile}).Msg(hostile)
			text := out.String()
			require.Equal(t, 1, strings.Count(text, "\n"), "%s: %q", format, text)
			if format == "console" {
				// The program's own colours aside.
				for _, own := range []string{"\x1b[90m", "\x1b[33m", "\x1b[31m", "\x1b[36m", "\x1b[1m", "\x1b[0m"} {
					text = strings.ReplaceAll(text, own, "")
				}
			} else {
				require.True(t, json.Valid([]byte(text)), text)
			}
			requireTame(t, text)
		}
	}
}
