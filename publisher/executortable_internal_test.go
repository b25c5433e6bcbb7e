package publisher

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateTable = flag.Bool("update", false, "write the table in docs/sdk.md again")

// transitionTable is the page's table of what an executor does with a run.
func transitionTable() string {
	var b strings.Builder
	b.WriteString("| what happens | what is published | the run is then |\n|---|---|---|\n")
	for _, t := range transitions {
		var published []string
		if t.wait {
			published = append(published, "`run.waiting` (`tool_in_doubt`)")
		}
		if t.interrupted != "" {
			published = append(published, "`run.interrupted` ("+t.interrupted+")")
		}
		if t.ended != "" {
			published = append(published, "`run.ended` ("+string(t.ended)+")")
		}
		if published == nil {
			published = []string{"nothing"}
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", t.when, strings.Join(published, ", "), t.outcome())
	}
	return b.String()
}

// outcome is the outcome in words.
func (t *transition) outcome() string {
	if t.to == "" {
		return "as the work ended it"
	}
	return string(t.to)
}

func TestSDKPage_TransitionTable_IsWhatAnExecutorDoes(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "docs", "sdk.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	const begin, end = "<!-- executor: made by a test -->\n", "<!-- end of executor -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *updateTable {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+transitionTable()+end+after), 0o644))
		return
	}
	require.Equal(t, transitionTable(), got, "go test ./publisher -run TransitionTable -update writes it again")
}
