package transcript

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

func TestWrite_EveryRun_RecoversAsRead(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	fleet := w.Fleet("writer", nil)
	for _, file := range files(t) {
		runs, err := Read(file)
		require.NoError(t, err)
		for _, run := range runs {
			require.NoError(t, run.Write(t.Context(), fleet), "%s: %s", file, run.ID)
			requireSame(t, run, w.State(run.ID))
		}
	}
}

// requireSame compares a run with its recovered state.
func requireSame(t *testing.T, want *Run, got *schema.State) {
	t.Helper()
	require.Zero(t, got.Head.Counts.DeadLetters)
	require.Equal(t, want.Agent, got.Head.Agent)
	require.Equal(t, want.Format, got.Started.Labels["format"])
	require.True(t, got.Head.Status.Terminal())
	require.Len(t, got.Turns, len(want.Turns))
	require.Len(t, got.Calls, want.Calls())
	require.Len(t, got.Messages, want.Messages())
	var messages []schema.Message
	calls := got.Calls
	for i, turn := range want.Turns {
		messages = append(append(messages, turn.New...), turn.Answer.Message)
		require.NotEmpty(t, got.Turns[i].EndedAt)
		for j, c := range turn.Answer.Calls {
			require.Equal(t, c.ID, calls[j].ToolCallID)
			require.Equal(t, c.Name, calls[j].Name)
			require.True(t, schema.SameJSON(jsontext.Value(c.Arguments), calls[j].Arguments), "%s, %s", c.Arguments, calls[j].Arguments)
			require.Contains(t, []schema.Outcome{schema.OutcomeReturned, schema.OutcomeAbandoned}, calls[j].Outcome)
		}
		for _, r := range turn.Results {
			require.Equal(t, schema.OutcomeReturned, calls[r.Call].Outcome)
			require.True(t, schema.SameJSON(jsontext.Value(r.Result), calls[r.Call].Result), "%s, %s", r.Result, calls[r.Call].Result)
		}
		calls = calls[len(turn.Answer.Calls):]
	}
	messages = append(messages, want.Rest...)
	for i := range messages {
		require.Equal(t, toldMessage(&messages[i]), toldMessage(&got.Messages[i].Message))
	}
}

func TestWrite_RunExists_ErrorAndUnchanged(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	fleet := w.Fleet("writer", nil)
	runs, err := Read("testdata/mill-array.json")
	require.NoError(t, err)
	require.NoError(t, runs[0].Write(t.Context(), fleet))
	before := w.State(runs[0].ID).Head.Digest
	require.ErrorIs(t, runs[0].Write(t.Context(), fleet), publisher.ErrRunExists)
	require.Equal(t, before, w.State(runs[0].ID).Head.Digest)
}
