package examples_test

import (
	"flag"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

var update = flag.Bool("update", false, "write the code in the pages")

// pages show code of the examples, or have links to its files.
var pages = []string{
	"../../README.md", "../first-agent.md", "../tools.md", "../people.md", "../sdk.md", "../events.md", "../history.md", "../reliability.md", "../looking.md",
	"../any-language.md",
}

// agent is the program with a provider's client that a page shows.
const agent = "agents/anthropic/main.go"

// snippets are the pieces of a file that the page shows, by name.
func snippets(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?ms)^(?://|#) snippet: ([a-z-]+)\n(.*?)^(?://|#) end of ([a-z-]+)$`).FindAllStringSubmatch(string(text), -1) {
		require.Equal(t, m[1], m[3], file)
		out[m[1]] = strings.Trim(m[2], "\n") + "\n"
	}
	require.Len(t, out, strings.Count(string(text), " snippet: "), "%s has a snippet without an end", file)
	return out
}

var block = regexp.MustCompile("(?s)<!-- from ([a-z_./]+): ([a-z-]+) -->\n```([a-z]+)\n(.*?)```\n")

func TestTheCode_OnThePage_EqualsTestedCode(t *testing.T) {
	t.Parallel()
	shown, linked := map[string]bool{}, map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		got := block.ReplaceAllStringFunc(string(text), func(s string) string {
			m := block.FindStringSubmatch(s)
			code, ok := snippets(t, m[1])[m[2]]
			require.True(t, ok, "%s has no snippet %s", m[1], m[2])
			shown[m[1]+": "+m[2]] = true
			return "<!-- from " + m[1] + ": " + m[2] + " -->\n```" + m[3] + "\n" + code + "```\n"
		})
		if *update {
			require.NoError(t, os.WriteFile(page, []byte(got), 0o644))
			text = []byte(got)
		}
		require.Equal(t, got, string(text), "go test ./docs/examples -update writes it again")
		require.Equal(t, strings.Count(string(text), "```go\n"), strings.Count(string(text), "-->\n```go\n"), "code on %s that no file has", page)
		for _, link := range regexp.MustCompile(`\]\(examples/([^)]+)\)`).FindAllStringSubmatch(got, -1) {
			linked[link[1]] = true
		}
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range append(files, agent, "quickstart/main.go", "shortest/main.go", "request/main.go", "plain.sh", "workers/courier.py", "workers/own.py",
		"tested/agent.go", "tested/agent_test.go") {
		if strings.HasSuffix(file, "_test.go") && filepath.Dir(file) == "." {
			continue
		}
		for name := range snippets(t, file) {
			require.True(t, shown[file+": "+name] || linked[file], "no page shows %s of %s, or has a link to the file", name, file)
		}
	}
}

// maxAgentLines is how long an agent with a real model and a tool may be, imports included and empty lines not.
const maxAgentLines = 30

func TestTheAgent_OnThePages_IsShort(t *testing.T) {
	t.Parallel()
	code := snippets(t, agent)["agent"]
	formatted, err := format.Source([]byte(code))
	require.NoError(t, err)
	require.Equal(t, string(formatted), code)
	require.True(t, strings.HasPrefix(code, "package main\n"), "the whole program")
	lines := strings.FieldsFunc(code, func(r rune) bool { return r == '\n' })
	require.LessOrEqual(t, len(lines), maxAgentLines)
	require.Contains(t, code, "github.com/anthropics/anthropic-sdk-go")
	require.Contains(t, code, "publisher.NewTool")
}

// TestPlainExecutor_OnThePage_MakesRun publishes what the page's commands publish.
func TestPlainExecutor_OnThePage_MakesRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plainRun(t)
	beat := regexp.MustCompile(`(?m)^nats pub (\S+) '(.*)'$`).FindAllStringSubmatch(snippets(t, "plain.sh")["plain"], -1)
	require.Len(t, beat, 1)
	require.Equal(t, schema.HeartbeatSubject("default", "py-1"), beat[0][1])
	require.Contains(t, beat[0][2], `"instance":"s1"`)
	head, err := w.fleet("reader", nil).Head(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, "py-1", head.Executor)
	require.Equal(t, "s1", head.Instance)
	require.Len(t, head.OpenCalls, 1)
	require.EqualValues(t, 3, head.Counts.Events)
	require.Zero(t, head.Counts.DeadLetters+head.Counts.Unknown)
}
