package examples_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func said(text string, calls ...publisher.ToolCall) publisher.Answer {
	return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text)}}, Calls: calls}
}

// results counts the messages of helpers in a conversation.
func results(conversation []schema.Message) (n int) {
	for i := range conversation {
		for _, p := range conversation[i].Parts {
			if p.Content != nil && strings.HasPrefix(*p.Content, `Message "result" from `) {
				n++
			}
		}
	}
	return n
}

func TestDelegation_HelpersSendTheirResults_LeadGoesOnWithThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("ex-1", nil)
	lead := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		switch n := results(r.Messages); {
		case r.Turn == 1:
			var calls []publisher.ToolCall
			for i := range 3 {
				calls = append(calls, publisher.ToolCall{ID: fmt.Sprint("d", i), Name: "delegate", Arguments: fmt.Appendf(nil, `{"task":"part %d"}`, i)})
			}
			return said("", calls...), nil
		case n < 3:
			return said("", publisher.ToolCall{ID: "w", Name: "wait", Arguments: []byte(`{}`)}), nil
		default:
			return said(fmt.Sprintf("All %d parts are done.", n)), nil
		}
	}
	helper := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		return said("", publisher.ToolCall{ID: "r", Name: "report", Arguments: fmt.Appendf(nil, `{"text":%q}`, *r.Messages[0].Parts[0].Content+" is done")}), nil
	}
	e, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"lead": examples.Lead(lead, fleet), "helper": examples.Helper(helper, fleet)}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	_, err = fleet.Submit(t.Context(), publisher.RunSpec{ID: "lead", Agent: "lead", Task: "three parts"})
	require.NoError(t, err)
	result, err := fleet.Result(t.Context(), "lead")
	require.NoError(t, err)
	require.Equal(t, "All 3 parts are done.", result.Summary)
	require.Empty(t, result.Unread)
	state, err := fleet.Get(t.Context(), "lead")
	require.NoError(t, err)
	require.Len(t, state.Signals, 3)
	for i := range state.Signals {
		require.Contains(t, string(state.Signals[i].Payload), "is done")
		require.NotEmpty(t, state.Signals[i].ConsumedAt)
	}
	stop()
	require.NoError(t, <-done)
}

func TestSteer_SignalsBetweenStepsAndAtTheEnd_EachActedOnOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("ex-1", nil)
	run := start(t, fleet)
	send := func(id string) {
		require.NoError(t, fleet.Signal(t.Context(), "r1", publisher.SignalSpec{ID: id, Name: "change"}))
	}
	var steps atomic.Int32
	var changed []string
	step := func(ctx context.Context, run *publisher.Run) (bool, error) {
		n := steps.Add(1)
		if n < 4 {
			send(fmt.Sprint("s", n)) // the third one comes as the work is done
		}
		return n >= 3, run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("step")}})
	}
	change := func(_ context.Context, s publisher.Signal) error {
		changed = append(changed, s.ID)
		return nil
	}
	require.NoError(t, examples.Steer(step, change)(t.Context(), run))
	require.Equal(t, []string{"s1", "s2", "s3"}, changed)
	require.EqualValues(t, 4, steps.Load())
	require.Equal(t, schema.StatusCompleted, run.Head().Status)
}

func TestWriter_HandsOver_RunIsContinuedByTheReviewer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet("ex-1", nil))
	writer := examples.Writer(func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		return said("", publisher.ToolCall{ID: "a", Name: "review", Arguments: []byte(`{"agent":"reviewer","remaining":["Check the names."]}`)}), nil
	})
	require.NoError(t, writer.Work(t.Context(), run))
	head := run.Head()
	require.Equal(t, schema.StatusCompleted, head.Status)
	child, err := w.fleet("ex-2", nil).Head(t.Context(), head.Handoffs[0].ChildRun)
	require.NoError(t, err)
	require.Equal(t, "reviewer", child.Agent)
	require.Equal(t, schema.StatusInterrupted, child.Status)
}
