package examples_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// planner is an agent that plans two things, does one, and says in the end what is left.
func planner(run *publisher.Run) publisher.Loop {
	calls := map[int32]publisher.ToolCall{
		1: {ID: "c1", Name: "plan", Arguments: []byte(`{"list":[{"text":"look"},{"text":"mend"}]}`)},
		2: {ID: "c2", Name: "plan", Arguments: []byte(`{"list":[{"text":"look","done":true},{"text":"mend"}]}`)},
	}
	return publisher.Loop{Tools: []publisher.Tool{examples.Plan}, Model: func(ctx context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		say := func(text string) schema.Message {
			return schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text)}}
		}
		if call, ok := calls[q.Turn]; ok {
			return publisher.Answer{Message: say("I plan."), Calls: []publisher.ToolCall{call}}, nil
		}
		if left, err := examples.Left(ctx, run); err != nil || left == 0 {
			return publisher.Answer{Message: say("all done")}, err
		}
		return publisher.Answer{Message: say("one is left")}, nil
	}}
}

func TestPlan_RunGoesOnBehindAnEarlierCall_HasTheListOfThatTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet("exec-1", nil)
	run := start(t, f)
	require.NoError(t, planner(run).Work(t.Context(), run))
	left, err := examples.Left(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, 1, left)

	require.NoError(t, examples.TryAgain(t.Context(), f, "r1", 1, "Do both."))
	next := takeOver(t, w.fleet("exec-2", nil))
	left, err = examples.Left(t.Context(), next)
	require.NoError(t, err)
	require.Equal(t, 2, left, "the second list was left behind")
	said := next.State().Messages
	require.Equal(t, "Do both.", *said[len(said)-1].Parts[0].Content)
	require.NoError(t, planner(next).Work(t.Context(), next))
	require.Equal(t, schema.StatusCompleted, next.Head().Status)
}

func TestFirstWhere_Condition_IsThePointBehindItsFirstEvent(t *testing.T) {
	t.Parallel()
	f := newWorld(t).fleet("exec-1", nil)
	run := start(t, f)
	require.NoError(t, planner(run).Work(t.Context(), run))
	point, found, err := examples.FirstWhere(t.Context(), f, "r1", func(h *schema.Head, _ *schema.Event) bool { return h.Counts.ToolResults > 1 })
	require.NoError(t, err)
	require.True(t, found)
	at, err := f.HeadAt(t.Context(), "r1", point)
	require.NoError(t, err)
	require.EqualValues(t, 2, at.Counts.ToolResults)
	require.EqualValues(t, 2, at.Turn)

	_, found, err = examples.FirstWhere(t.Context(), f, "r1", func(h *schema.Head, _ *schema.Event) bool { return h.Turn > 99 })
	require.NoError(t, err)
	require.False(t, found)
}
