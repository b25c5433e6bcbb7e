package examples

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: loop

// Model asks a language model what comes next in a conversation: its answer, with the calls that it asks for.
type Model func(ctx context.Context, conversation []schema.Message) (publisher.Answer, error)

// Loop is an agent: it asks the model, runs what the model asks for, and ends when the model asks for nothing more.
func Loop(model Model, tools map[string]publisher.ToolFunc) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		turn, calls, err := latest(ctx, run, model)
		for err == nil && len(calls) > 0 {
			for _, call := range calls {
				_, err := turn.Tool(ctx, call, tools[call.Name]) // a tool that is not there is a failed call
				// The model reads that a call failed or was abandoned. Any other error ends the work.
				if err != nil && !errors.Is(err, publisher.ErrToolFailed) && !errors.Is(err, publisher.ErrAbandoned) {
					return err
				}
			}
			turn, calls, err = ask(ctx, run, model)
		}
		return err
	}
}

// latest returns the latest turn with the calls of its answer. The model is not asked again for an answer that an
// earlier executor recorded.
func latest(ctx context.Context, run *publisher.Run, model Model) (*publisher.Turn, []publisher.ToolCall, error) {
	head := run.Head()
	if !head.TurnAnswered {
		return ask(ctx, run, model)
	}
	turn := run.Turn(head.Turn)
	calls, err := turn.Calls(ctx)
	return turn, calls, err
}

// ask starts the next turn, or again the one that was left without an answer, and records what the model answers.
func ask(ctx context.Context, run *publisher.Run, model Model) (*publisher.Turn, []publisher.ToolCall, error) {
	spec := publisher.TurnSpec{Number: run.Head().Turn + 1}
	if open := run.OpenTurn(); open != nil {
		spec.Number = open.Number()
	}
	if spec.Number == 1 {
		task, err := run.Task(ctx)
		if err != nil {
			return nil, nil, err
		}
		spec.Messages = []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(task)}}}
	}
	turn, err := run.StartTurn(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	conversation, err := run.Conversation(ctx)
	if err != nil {
		return nil, nil, err
	}
	answer, err := model(ctx, conversation)
	if err != nil {
		return nil, nil, err
	}
	// Recorded before anything is acted on, in one event. The turn ends with the last result.
	_, err = turn.Answer(ctx, answer)
	return turn, answer.Calls, err
}

// end of loop
