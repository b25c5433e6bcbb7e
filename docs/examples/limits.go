package examples

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: limits

// Bounded is work that may take so many turns. At the limit, one more turn sums up, so that the model's findings are
// not lost.
func Bounded(most int32, turn func(context.Context, *publisher.Run) (done bool, err error), sumUp func(ctx context.Context, conversation []schema.Message) (publisher.Answer, error)) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for {
			if head := run.Head(); head.Limit != "" || head.Turn >= most && !head.TurnOpen {
				// After a crash during this call, the next executor reaches it again and continues where it stopped.
				return run.LimitReached(ctx, publisher.Limit{Kind: "turns", Value: head.Turn, Maximum: most},
					func(ctx context.Context, turn *publisher.Turn) (string, error) {
						conversation, err := run.Conversation(ctx)
						if err != nil {
							return "", err
						}
						answer, err := sumUp(ctx, conversation)
						if err != nil {
							return "", err
						}
						_, err = turn.Answer(ctx, answer)
						return *answer.Message.Parts[0].Content, err
					}, publisher.RunEnd{Status: schema.StatusFailed})
			}
			if done, err := turn(ctx, run); done || err != nil {
				return err
			}
		}
	}
}

// end of limits

// snippet: contract

// Submitted is work without a Loop on runs that only a call of submit completes, in a bounded number of turns and
// tokens. The contract is in ExecutorSpec.Contracts, or in the run's RunSpec; the SDK refuses events that break it.
func Submitted(turn func(context.Context, *publisher.Turn) (submitted schema.CallKey, err error), sumUp func(context.Context, *publisher.Turn) (string, error)) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for {
			next, err := run.StartTurn(ctx, publisher.TurnSpec{})
			if limit, ok := errors.AsType[*publisher.LimitError](err); ok {
				// The last turn. sumUp may end the run with Run.Complete; otherwise it has failed.
				return run.LimitReached(ctx, limit.Limit, sumUp, publisher.RunEnd{Status: schema.StatusFailed})
			}
			if err != nil {
				return err
			}
			switch submitted, err := turn(ctx, next); {
			case err != nil:
				return err
			case submitted.ToolCallID != "":
				return run.Complete(ctx, submitted, publisher.RunEnd{})
			}
		}
	}
}

// end of contract

// snippet: budget

// TooFull reports that the context is so full that a child run should continue the work: offer a continuation then.
func TooFull(run *publisher.Run) bool {
	const window = 200_000 // of the model
	return run.ContextTokens() > window/100*95
}

// end of budget
