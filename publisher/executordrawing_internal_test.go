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

var updateDrawing = flag.Bool("update", false, "write the drawing in docs/executors.md again")

// drawTransitions is the page's table of what an executor does with a run, and the drawing of it.
func drawTransitions() string {
	var b strings.Builder
	b.WriteString("| what happens | what is published | the executor is done with the run, which is |\n|---|---|---|\n")
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
	b.WriteString("\n```mermaid\nstateDiagram-v2\n    [*] --> in_hand: claimed, started or adopted\n    state \"in hand\" as in_hand\n")
	var order []string
	whens := map[string][]string{}
	for _, t := range transitions {
		if whens[t.outcome()] == nil {
			order = append(order, t.outcome())
		}
		whens[t.outcome()] = append(whens[t.outcome()], t.when)
	}
	for _, outcome := range order {
		id := strings.NewReplacer(" ", "_", ",", "").Replace(outcome)
		fmt.Fprintf(&b, "    state \"%s\" as %s\n    in_hand --> %s: %s\n    %s --> [*]\n", outcome, id, id, strings.Join(whens[outcome], "; "), id)
	}
	b.WriteString("```\n")
	return b.String()
}

// outcome is the outcome in words.
func (t *transition) outcome() string {
	if t.to == "" {
		return "as the work ended it"
	}
	return string(t.to)
}

func TestTheDrawingOfAnExecutorIsWhatItDoes(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "docs", "executors.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	const begin, end = "<!-- executor: made by a test -->\n", "<!-- end of executor -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	got, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *updateDrawing {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+drawTransitions()+end+after), 0o644))
		return
	}
	require.Equal(t, drawTransitions(), got, "go test ./publisher -run Drawing -update writes it again")
}
