package lint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unmarkedCommands finds blocks of commands without a mark in the line above: "<!-- run by `folder.TestX` -->", "<!-- from
// FILE: SNIPPET -->" for code that is tested where it is, or "<!-- not run: why -->".
func unmarkedCommands(name, page string) []string {
	var findings []string
	before := ""
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimSpace(line)
		if line == "```sh" {
			run := strings.HasPrefix(before, "<!-- run by ") && citation.MatchString(before)
			if !run && !strings.HasPrefix(before, "<!-- from ") && !strings.HasPrefix(before, "<!-- not run: ") {
				findings = append(findings, fmt.Sprintf("%s:%d: say above which test runs these commands: <!-- run by `folder.TestX` -->, or <!-- not run: why -->", name, i+1))
			}
		}
		before = line
	}
	return findings
}

func TestCommands_OfPages_SayWhatRunsThem(t *testing.T) {
	t.Parallel()
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".md") {
			report(t, unmarkedCommands(name, read(t, name)))
		}
	})
}

func TestUnmarkedCommands_EachKind_IsFound(t *testing.T) {
	t.Parallel()
	const block = "```sh\nwaymark fleet\n```\n"
	for text, found := range map[string]int{
		"<!-- run by `a/b.TestOne`, elsewhere -->\n" + block:  0,
		"<!-- not run: too long -->\n" + block:                0,
		"1. step\n\n   <!-- not run: why -->\n   " + block:    0,
		"```go\ncode\n```\n":                                  0,
		block:                                                 1,
		"text\n" + block:                                      1,
		"<!-- run by hand -->\n" + block:                      1,
		"<!-- not run: too long -->\n\n" + block:              1,
		"<!-- not run: too long -->\n" + block + "\n" + block: 1,
	} {
		require.Len(t, unmarkedCommands("a.md", text), found, text)
	}
}
