//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// paused pauses a run between a model's answer and its call, and returns what the fleet lets happen all the same.
func paused(t *testing.T, w *waymarktest.World, id string) (mistakes []string) {
	t.Helper()
	f := w.Fleet("exec-"+id, nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "coder"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c", Name: "pay", Replay: publisher.Hold}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{}}, Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the answer to a pause is of the runs that its daemon knows
		page, err := w.Reader().List(t.Context(), schema.ListRequest{Status: []schema.Status{schema.StatusRunning}})
		require.NoError(t, err)
		return slices.ContainsFunc(page.Runs, func(s schema.RunSummary) bool { return s.Run == id })
	}, time.Minute, 10*time.Millisecond)
	nc := w.Conn()
	m, err := nc.Request(schema.ServiceSubject(schema.VerbPause, schema.DefaultFleet, ""), []byte(`{"run":"`+id+`","reason":"why","by":"ann"}`), time.Minute)
	require.NoError(t, err)
	require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), "%s", m.Data)
	if _, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		mistakes = append(mistakes, "begun")
		return publisher.Result("paid")
	}); !errors.Is(err, publisher.ErrPaused) {
		require.NoError(t, err)
	}
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPaused))
	if _, err = w.Fleet("other-"+id, nil).Resume(t.Context(), id, publisher.ResumeSpec{}); !errors.Is(err, publisher.ErrPaused) {
		require.NoError(t, err)
		mistakes = append(mistakes, "taken")
	}
	return mistakes
}

func TestMutants_Pauses_AreFound(t *testing.T) {
	w := waymarktest.Start(t)
	require.Empty(t, paused(t, w, "without"))
	for name, mistake := range map[string]string{"begun-in-pause": "begun", "taken-in-pause": "taken"} {
		t.Run(name, func(t *testing.T) {
			undo, err := mutant.Switch(name)
			require.NoError(t, err)
			defer undo()
			require.Equal(t, []string{mistake}, paused(t, w, name))
		})
	}
}
