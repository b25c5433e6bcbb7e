package examples

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: state

// Todo is what the agent still has to do. It keeps its list in the state of the run.
type Todo struct {
	Text string `json:"text"`
	Done bool   `json:"done,omitzero"`
}

// Plan is the tool by which the model writes its list down. Setting it once more does no harm, so the tool is pure.
var Plan = publisher.NewTool("plan", "Replaces the list of things to do.", schema.ReplayPure, setPlan)

type planned struct {
	List []Todo `json:"list"`
}

func setPlan(ctx context.Context, in planned) (string, error) {
	return "noted", publisher.InvocationOf(ctx).Run().SetState(ctx, "todo", in.List)
}

// Left is how much of the list is not done, on whatever executor the run is.
func Left(ctx context.Context, run *publisher.Run) (n int, err error) {
	var list []Todo
	if _, err := run.GetState(ctx, "todo", &list); err != nil {
		return 0, err
	}
	for _, t := range list {
		if !t.Done {
			n++
		}
	}
	return n, nil
}

// end of state

// snippet: resume

// TryAgain lets a run go on behind the outcome of one of its tool calls, with a word to the model, and leaves it to the fleet's
// executors.
func TryAgain(ctx context.Context, fleet *publisher.Fleet, run string, call uint64, word string) error {
	resumed, err := fleet.Resume(ctx, run, publisher.ResumeSpec{At: schema.Point{Kind: schema.PointResult, Number: call}})
	if err != nil {
		return err
	}
	if err := resumed.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(word)}}); err != nil {
		return err
	}
	return resumed.Interrupt(ctx, schema.InterruptedPreempted)
}

// end of resume
