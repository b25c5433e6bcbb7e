package examples_test

import (
	"context"
	"errors"
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

func TestDelegation_HelperFailsAndHelpersEnd_LeadGoesOnWithTheirEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("ex-1", nil)
	lead := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		if r.Turn == 1 {
			var calls []publisher.ToolCall
			for i := range 3 {
				calls = append(calls, publisher.ToolCall{ID: fmt.Sprint("d", i), Name: "delegate", Arguments: fmt.Appendf(nil, `{"task":"part %d"}`, i)})
			}
			return said("", calls...), nil
		}
		var text strings.Builder
		for i := range r.Messages {
			for _, p := range r.Messages[i].Parts {
				text.Write(p.Response)
			}
		}
		return said(fmt.Sprintf("%d are done, %d failed", strings.Count(text.String(), `"completed"`), strings.Count(text.String(), `"failed"`))), nil
	}
	helper := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		task := *r.Messages[0].Parts[0].Content
		if task == "part 1" {
			return publisher.Answer{}, publisher.Permanent(errors.New("no such part"))
		}
		return said(task + " is done"), nil
	}
	e, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"lead": examples.Lead(lead), "helper": {Model: helper}}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	_, err = fleet.Submit(t.Context(), publisher.RunSpec{ID: "lead", Agent: "lead", Task: "three parts"})
	require.NoError(t, err)
	result, err := fleet.Result(t.Context(), "lead")
	require.NoError(t, err)
	require.Equal(t, "2 are done, 1 failed", result.Summary)
	require.Empty(t, result.Unread)
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
