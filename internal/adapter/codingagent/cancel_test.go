package codingagent_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/codingagent"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// A session that no process resumes is ended by waymark cancel: a worker carries it out without an agent.
func TestServe_InterruptedSessionIsCancelled_EndsWithoutAnAgent(t *testing.T) {
	t.Parallel()
	for _, inTool := range []bool{false, true} {
		w := waymarktest.Start(t)
		first := bridge(t, w.Fleet("one", nil), codingagent.Codex, nil)
		first.hook("UserPromptSubmit", map[string]any{"prompt": "Do it."})
		if inTool {
			first.hook("PreToolUse", bash("a"))
		}
		require.NoError(t, first.bridge.Close().Interrupt(t.Context(), schema.InterruptedPreempted))
		fleet := w.Fleet("two", nil)
		require.NoError(t, fleet.Cancel(t.Context(), "s1", "ann", "left"))
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		worker := &codingagent.Worker{Fleet: fleet, Dialect: codingagent.Codex, Program: "/none", Stderr: io.Discard}
		go func() { served <- worker.Serve(ctx, nil, 1) }()
		require.Eventually(t, func() bool {
			head, err := fleet.Head(t.Context(), "s1")
			return err == nil && head.Status == schema.StatusCancelled
		}, time.Minute, 10*time.Millisecond)
		stop()
		require.NoError(t, <-served)
	}
}
