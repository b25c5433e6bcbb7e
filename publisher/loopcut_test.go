package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// cutAnswer is an answer with a finish reason.
func cutAnswer(reason, text string, calls ...publisher.ToolCall) publisher.Answer {
	return publisher.Answer{Message: assistant(schema.Text(text)), Calls: calls, FinishReasons: []string{reason}}
}

// saying answers with one answer after the other, and shows what was asked.
func saying(asked *[]publisher.ModelRequest, answers ...publisher.Answer) publisher.Model {
	return func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		*asked = append(*asked, q)
		return answers[len(*asked)-1], nil
	}
}

func TestLoop_AnswerCutOff_NoCallOfItIsMadeAndTheModelGoesOn(t *testing.T) {
	t.Parallel()
	removed := []string{}
	remove := publisher.NewTool("remove", "Removes files.", publisher.Hold, func(_ context.Context, in struct {
		Path string `json:"path"`
		Only string `json:"only,omitzero"`
	},
	) (string, error) {
		removed = append(removed, in.Path+" "+in.Only)
		return "removed", nil
	})
	var asked []publisher.ModelRequest
	run := unrecorded(t, publisher.Config{Heartbeat: -1}, publisher.RunSpec{Task: "tidy up"})
	loop := publisher.Loop{Tools: []publisher.Tool{remove}, Model: saying(&asked,
		cutAnswer("max_tokens", "I remove.", publisher.ToolCall{ID: "c1", Name: "remove", Arguments: raw(`{"path":"/srv"}`)}),
		cutAnswer("tool_use", "I remove.", publisher.ToolCall{ID: "c2", Name: "remove", Arguments: raw(`{"path":"/srv","only":"*.tmp"}`)}),
		cutAnswer("length", "I removed a, b and"),
		cutAnswer("stop", "c."),
	)}
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, []string{"/srv *.tmp"}, removed)
	s := run.State()
	require.Equal(t, "answer_cut_off", s.Calls[0].Error.Type)
	last := asked[3].Messages
	require.Contains(t, *last[len(last)-1].Parts[0].Content, "Your last answer was cut off (length).")
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	require.Equal(t, "c.", s.Ended.Summary)
}

func TestLoop_AnswersCutOffAgainAndAgain_FailTheRun(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string][]publisher.ToolCall{"text": nil, "calls": {{ID: "c", Name: "look", Arguments: raw(`{}`)}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []publisher.ModelRequest
			run := unrecorded(t, publisher.Config{Heartbeat: -1}, publisher.RunSpec{})
			cut := cutAnswer("max_output_tokens", "and", calls...)
			err := publisher.Loop{Tools: []publisher.Tool{look(nil)}, Model: saying(&asked, cut, cut, cut, cut)}.Work(t.Context(), run)
			require.ErrorContains(t, err, "3 answers of the model in a row were cut off (max_output_tokens)")
			require.Len(t, asked, 3)
		})
	}
}

func TestLoop_AnswerWithheld_FailsTheRun(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"refusal", "content_filter"} {
		var asked []publisher.ModelRequest
		run := unrecorded(t, publisher.Config{Heartbeat: -1}, publisher.RunSpec{})
		err := publisher.Loop{Model: saying(&asked, cutAnswer(reason, ""))}.Work(t.Context(), run)
		require.ErrorContains(t, err, "the provider withheld the answer of the model ("+reason+")")
	}
}

func TestLoop_ModelWritesRedactedItself_TheCallIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("I write.")), Calls: []publisher.ToolCall{
		{ID: "c1", Name: "write", Arguments: raw(`{"text":"the name is [redacted]"}`), Replay: schema.ReplayPure},
	}})
	require.NoError(t, err)

	var wrote string
	write := publisher.NewTool("write", "Writes.", publisher.Pure, func(_ context.Context, in struct {
		Text string `json:"text"`
	},
	) (string, error) {
		wrote = in.Text
		return "written", nil
	})
	next, err := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }).Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	var asked []publisher.ModelRequest
	require.NoError(t, publisher.Loop{Tools: []publisher.Tool{write}, Model: saying(&asked, cutAnswer("stop", "done"))}.Work(t.Context(), next))
	require.Equal(t, "the name is [redacted]", wrote)
}
