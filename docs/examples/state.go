package examples

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: state

// Todo is the agent's remaining work. The agent keeps its list in the state of the run.
type Todo struct {
	Text string `json:"text"`
	Done bool   `json:"done,omitzero"`
}

// Plan is the tool with which the model writes its list. Setting it again does no harm, so the tool is pure.
var Plan = publisher.NewTool("plan", "Replaces the list of things to do.", schema.ReplayPure, setPlan)

type planned struct {
	List []Todo `json:"list"`
}

func setPlan(ctx context.Context, in planned) (string, error) {
	return "noted", publisher.InvocationOf(ctx).Run().SetState(ctx, "todo", in.List)
}

// Left counts the open entries of the list, on any executor.
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

// TryAgain continues a run after the outcome of one of its tool calls, with a message to the model, and releases it to
// the fleet's executors.
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

// snippet: search

// FirstWhere returns the point of a run behind the first event after which a condition holds: fork or resume there.
func FirstWhere(ctx context.Context, fleet *publisher.Fleet, run string, holds func(*schema.Head, *schema.Event) bool) (point schema.Point, found bool, err error) {
	err = fleet.Walk(ctx, run, schema.Point{}, func(step *schema.Step) error {
		if !found && step.Kind == schema.Applied && holds(step.Head, step.Event) {
			point, found = schema.Point{Kind: schema.PointEvent, Name: step.Event.ID}, true
		}
		return nil
	})
	return point, found, err
}

// end of search
