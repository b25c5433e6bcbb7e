package schema

import "math"

// ReachedLimit returns the limit that a run has reached before its next turn, given its maximum of turns and tokens,
// 0 for none; kind is empty if it has reached neither. The SDK, publisher's Loop and waymark verify all use this
// rule. An open turn without an answer may still get it, unless it is the summing-up turn. Tokens are the recorded input
// and output of the run without those of abandoned records.
func (h *Head) ReachedLimit(maxTurns int32, maxTokens int64) (kind string, value, maximum int64) {
	unanswered := h.TurnOpen && !h.TurnAnswered
	if maxTurns > 0 && h.Turn >= maxTurns && (!unanswered || h.TurnPurpose == PurposeRecovery) {
		return LimitTurns, int64(h.Turn), int64(maxTurns)
	}
	used := h.Usage.Tokens()
	for i := range h.Superseded {
		used -= h.Superseded[i].Tokens
	}
	if maxTokens > 0 && used >= maxTokens {
		return LimitTokens, used, maxTokens
	}
	return "", 0, 0
}

// Tokens are the input and output tokens together.
func (u *Usage) Tokens() int64 {
	in, out := max(0, u.InputTokens), max(0, u.OutputTokens)
	if in > math.MaxInt64-out {
		return math.MaxInt64
	}
	return in + out
}
