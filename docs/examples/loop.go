package examples

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: loop

// Model asks a language model what comes next in a conversation: its answer, with the calls that it asks for.
type Model func(ctx context.Context, conversation []schema.StateMessage) (publisher.Answer, error)

// Loop is an agent: it asks the model, runs what the model asks for, and ends when the model asks for nothing more.
func Loop(model Model, tools map[string]publisher.ToolFunc) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for !finished(run) {
			turn, calls, err := answered(ctx, run, model)
			if err != nil {
				return err
			}
			for _, call := range calls {
				// A tool that fails is something for the model to read. Any other error ends the work.
				if _, err := turn.Tool(ctx, call, tools[call.Name]); err != nil && !errors.Is(err, publisher.ErrToolFailed) {
					return err
				}
			}
		}
		return nil
	}
}

// finished reports whether the last turn has ended, and asked for nothing.
func finished(run *publisher.Run) (done bool) {
	run.View(func(s *schema.State) {
		done = s.Head.Turn > 0 && !s.Head.TurnOpen &&
			!slices.ContainsFunc(s.Calls, func(c schema.Call) bool { return c.Turn == s.Head.Turn })
	})
	return done
}

// answered returns a turn to which the model's answer is recorded. A turn that an earlier executor left with an answer
// is gone on with: the model is not asked again. One without an answer is started again.
func answered(ctx context.Context, run *publisher.Run, model Model) (*publisher.Turn, []publisher.ToolCall, error) {
	spec := publisher.TurnSpec{}
	if turn := run.OpenTurn(); turn != nil {
		if calls, ok := recorded(run, turn.Number()); ok {
			return turn, calls, nil
		}
		spec.Number = turn.Number()
	}
	turn, err := run.StartTurn(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	answer, err := model(ctx, run.State().Joined())
	if err != nil {
		return nil, nil, err
	}
	// Recorded before anything is acted on, in one event. The turn ends with the last result.
	_, err = turn.Answer(ctx, answer)
	return turn, answer.Calls, err
}

// recorded returns the calls of a turn whose answer is in the record.
func recorded(run *publisher.Run, turn int32) (calls []publisher.ToolCall, ok bool) {
	run.View(func(s *schema.State) {
		ok = s.Head.Turn == turn && s.Head.TurnAnswered
		for i := range s.Calls {
			if c := &s.Calls[i]; c.Turn == turn {
				calls = append(calls, publisher.ToolCall{
					ID: c.ToolCallID, Occurrence: c.Occurrence, Name: c.Name, Arguments: c.Arguments, Replay: c.Replay, VerifySubject: c.VerifySubject,
				})
			}
		}
	})
	return calls, ok
}

// end of loop
