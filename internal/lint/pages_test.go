package lint_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// maxPageLine is the longest line of a page, in characters.
const maxPageLine = 120

// singleLink is a line that is one link, which cannot be wrapped, with its list marker and punctuation.
var singleLink = regexp.MustCompile(`^\s*(?:[-*+] |\d+\. )?(?:\S{0,2}\[[^\]]*\]\([^)\s]*\)|\S+)\S{0,2}$`)

// longLines returns the lines of a page beyond maxPageLine, outside tables, code blocks and single links.
func longLines(name, text string) []string {
	var findings []string
	fenced, indented, blank := false, false, true
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(trimmed, "|"), trimmed == "":
		case strings.HasPrefix(line, "    ") && (blank || indented):
			indented, blank = true, false
			continue
		case utf8.RuneCountInString(line) > maxPageLine && !singleLink.MatchString(line):
			findings = append(findings, fmt.Sprintf("%s:%d: %d characters: wrap the line at %d", name, i+1, utf8.RuneCountInString(line), maxPageLine))
		}
		indented, blank = false, trimmed == ""
	}
	return findings
}

func TestPages_Lines_HaveAtMost120Characters(t *testing.T) {
	t.Parallel()
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".md") {
			report(t, longLines(name, read(t, name)))
		}
	})
}

func TestLongLines_EachKindOfLine_IsFoundOrExempt(t *testing.T) {
	t.Parallel()
	words := strings.Repeat("word ", 24) + "word" // 124 characters
	link := "[text of a link](https://example.org/" + strings.Repeat("a", 100) + ")"
	for _, test := range []struct {
		name, text string
		found      int
	}{
		{"a paragraph", words, 1},
		{"a heading", "# " + words, 1},
		{"an item", "- " + words, 1},
		{"an item's second paragraph", "- a\n\n  " + words, 1},
		{"a continued item", "- a\n    " + words, 1},
		{"behind a code block", "```\ncode\n```\n" + words, 1},
		{"behind an indented code block", "a\n\n    code\n" + words, 1},
		{"a link among words", link + " " + words, 1},
		{"120 characters that are more bytes", strings.Repeat("é ", 60), 0},
		{"a table", "| " + words + " |", 0},
		{"a code block", "```sh\n" + words + "\n```", 0},
		{"an indented code block", "a\n\n    " + words + "\n    " + words, 0},
		{"a link", link, 0},
		{"a link in an item", "- " + link + ".", 0},
		{"an address", "https://example.org/" + strings.Repeat("a", 120), 0},
	} {
		require.Len(t, longLines("a.md", test.text), test.found, test.name)
	}
}
