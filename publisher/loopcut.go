package publisher

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// cutOffType is the error type of a call that is not made because its answer is incomplete.
const cutOffType = "answer_cut_off"

// mostCuts is how many answers in a row may be cut off.
const mostCuts = 3

// Finish reasons of incomplete answers: OpenAI's Chat Completions (length, content_filter), its Responses
// (max_output_tokens, content_filter, incomplete), and Anthropic's Messages (max_tokens, model_context_window_exceeded,
// refusal).
var (
	cutReasons      = []string{"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded", "incomplete"}
	withheldReasons = []string{"content_filter", "refusal"}
)

// cutReason is the finish reason of an incomplete answer; empty for a complete one.
func cutReason(reasons []string) string {
	for _, reason := range reasons {
		if slices.Contains(cutReasons, reason) || slices.Contains(withheldReasons, reason) {
			return reason
		}
	}
	return ""
}

// cutOff is the reason why the latest answer is incomplete, and how many answers in a row are; empty and 0 if it is
// complete.
func (l *looping) cutOff() (reason string, cuts int) {
	l.run.View(func(s *schema.State) {
		for i := range slices.Backward(s.Turns) {
			a := s.Turns[i].Answer
			if a == nil {
				continue
			}
			why := cutReason(a.FinishReasons)
			if why == "" {
				return
			}
			reason = cmp.Or(reason, why)
			cuts++
		}
	})
	return reason, cuts
}

// checkCutOff returns an error if the run cannot continue after its incomplete latest answer.
func (l *looping) checkCutOff(reason string, cuts int) error {
	switch {
	case slices.Contains(withheldReasons, reason):
		return fmt.Errorf("run %s: the provider withheld the answer of the model (%s)", l.run.id, reason)
	case cuts >= mostCuts:
		return fmt.Errorf("run %s: %d answers of the model in a row were cut off (%s): raise the model's token limit, or ask for less at a time", l.run.id, cuts, reason)
	}
	return nil
}
