package examples

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: limits

// Bounded is work that may take so many turns. What the model learned is not lost when they run out: one more turn sums up.
func Bounded(most int32, turn func(context.Context, *publisher.Run) (done bool, err error), sumUp func(ctx context.Context, conversation []schema.Message) (publisher.Answer, error)) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for {
			if head := run.Head(); head.Limit != "" || head.Turn >= most && !head.TurnOpen {
				// After a crash in the middle of this, the next executor comes here again, and it goes on where it was.
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

// snippet: budget

// TooFull says when the context is so full that the work should go on in a child: offer a continuation then.
func TooFull(run *publisher.Run) (bool, error) {
	level, _, err := publisher.Budget{Window: 200_000}.Check(run) // warns at 80 %
	return level == publisher.BudgetHandoff, err                  // at 95 %
}

// end of budget
