//go:build unix

package worker_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// Frameworks that own their loop, with tools by run.tool: the program is killed in its first tool, before and after the
// effect, and another worker continues the run.
func TestFrameworks_KilledInATool_EachEffectOnce(t *testing.T) {
	t.Parallel()
	packages := os.Getenv("WAYMARK_FRAMEWORKS")
	if packages == "" {
		t.Skip("LangGraph, OpenAI Agents and the AI SDK are not here: make frameworkcheck fetches them")
	}
	kill, err := filepath.Abs("testdata/kill.mjs")
	require.NoError(t, err)
	for _, name := range []string{"langgraph.mjs", "openai-agents.mjs", "ai-sdk.mjs"} {
		for _, when := range []string{"before", "after"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				require.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
				for _, file := range []string{name, "waymark.mjs"} {
					text, err := os.ReadFile(filepath.Join(clients, file))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
				}
				b := newBench(t, "AT="+when)
				b.ledger = filepath.Join(dir, "sent.txt")
				command := []string{"sh", "-c", `cd "$0" && exec node --import "$1" "$2"`, dir, kill, name}
				stop := b.work("one", command)
				b.submit("r1", "Write to the team.")
				require.Eventually(t, func() bool {
					_, err := os.Stat(filepath.Join(dir, "killed"))
					return err == nil
				}, time.Minute, 5*time.Millisecond)
				stop()
				b.work("two", command)
				b.settle("r1")
				result := b.w.Ended("r1")
				require.Equal(t, schema.StatusCompleted, result.Status, "%+v", result.Error)
				require.JSONEq(t, `{"text":"All letters are sent."}`, string(result.Output))
				require.Equal(t, map[string]int{"send Ann": 1, "send Bob": 1}, effectsIn(t, b.ledger))
				require.Equal(t, "two", b.w.State("r1").Head.Executor)
			})
		}
	}
}
