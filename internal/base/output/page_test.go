package output

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrintTable_Prose_IsCutOrWrappedOnATerminalAndWholeInAPipe(t *testing.T) {
	t.Parallel()
	prose := strings.TrimSpace(strings.Repeat("word ", 40))
	for _, wraps := range []bool{true, false} {
		columns := []Column{{Title: "id"}, {Title: "says", Shrinks: true, Wraps: wraps}}
		var terminal, pipe bytes.Buffer
		require.NoError(t, Table(Page{&terminal, 80, false}, columns, [][]string{{"id-1", prose}}))
		require.NoError(t, Table(Page{&pipe, 80, true}, columns, [][]string{{"id-1", prose}}))
		for l := range strings.Lines(terminal.String()) {
			require.LessOrEqual(t, len([]rune(l)), 81, l)
		}
		require.Equal(t, !wraps, strings.Contains(terminal.String(), "…"), terminal.String())
		require.Equal(t, wraps, strings.Count(terminal.String(), "word") == 40, terminal.String())
		require.Contains(t, pipe.String(), "id-1  "+prose+"\n")
	}
}

func TestClean_HostileText_CannotSteerTerminal(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"plain":            "plain",
		"日本語 ünïcode":      "日本語 ünïcode",
		"two\nlines\tnow":  "two lines now",
		"red \x1b[31mtext": `red \x1b[31mtext`,
		"bell \a":          `bell \a`,
		"right\u202eleft":  `right\u202eleft`,
		"broken \xff byte": `broken \xff byte`,
		"nul \x00":         `nul \x00`,
		"c1 \u009b31m":     `c1 \u009b31m`,
		"kept \ufffd":      "kept \ufffd",
	}
	for in, want := range tests {
		require.Equal(t, want, Printable(in))
	}
}

func TestIndented_LongValue_CanBePasted(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word  ", 40)
	text := Indented([]byte(`{"a":{"b":"` + long + `"},"n":1}`))
	require.Equal(t, "  {\n    \"a\": {\n      \"b\": \""+long+"\"\n    },\n    \"n\": 1\n  }\n", text)
	require.Equal(t, "  {no\\x1b[31m JSON\n", Indented([]byte("{no\x1b[31m JSON")))
	require.Empty(t, Indented(nil))
}

func TestWrapped_LongLine_KeepsWhatItBeginsWith(t *testing.T) {
	t.Parallel()
	require.Contains(t, Wrapped("one\n  two "+strings.Repeat("word  ", 40), PipeWidth), "\n    two word")
	require.Equal(t, "  a \\x1b[31m b\n", Wrapped("a \x1b[31m b", PipeWidth))
}

// Ids and commands are pasted: a line is wrapped between words only, and a command not at all.
func TestHanging_NarrowTerminal_WrapsBetweenWords(t *testing.T) {
	t.Parallel()
	narrow := Page{io.Discard, 40, false}
	prose, long := strings.Repeat("some words ", 8)+"end", strings.Repeat("x", 60)
	for l := range strings.Lines(Hanging(narrow, "label  ", prose)) {
		require.LessOrEqual(t, len(strings.TrimRight(l, "\n")), 40)
		require.Regexp(t, "^(label|     )  [a-z]", l)
	}
	require.Equal(t, prose, strings.Join(strings.Fields(Hanging(narrow, "", prose)), " "), "nothing is lost")
	require.Contains(t, Hanging(narrow, "label  ", "one "+long+" two"), long)
	for _, command := range []string{"waymark runs get " + prose, "see it with: waymark runs get " + prose} {
		require.Equal(t, "  "+command, Hanging(narrow, "  ", command))
	}
	require.Contains(t, Hanging(narrow, "", "ask waymark settle about "+prose), "\n")
	require.Equal(t, "a "+prose, Hanging(Page{io.Discard, 40, true}, "a ", prose), "a program reads one line")
}
