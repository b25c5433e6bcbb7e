package codingagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Types of failures that this package records.
const (
	interrupted = "interrupted" // the process that made the call is gone, or stopped it
	notRun      = "not_run"     // the agent did not run the tool, for example because a person refused
	unreported  = "unreported"  // the agent went on without reporting an outcome
	toolError   = "error"       // the tool's own failure
)

// Settle closes the calls that an earlier process of the session left open, by their policies: a late result is
// adopted, and a call that may run again fails, because the model repeats it under an id of its own. For a call that a
// person must settle, Settle returns a *publisher.HeldError after it has closed the others.
func Settle(ctx context.Context, run *publisher.Run) error {
	var held error
	for _, open := range run.Head().OpenCalls {
		turn := run.Turn(open.Turn)
		if open.State.Requested() {
			why := session.Failure{Type: interrupted, Message: "its process died before the call began, or a person found that it had no effect: it may be repeated"}
			if err := turn.Fail(ctx, open.CallKey, schema.Error(why)); err != nil {
				return err
			}
			continue
		}
		calls, err := turn.Calls(ctx)
		if err != nil {
			return err
		}
		for _, call := range calls {
			if call.ID != open.ToolCallID || call.Occurrence != open.Occurrence {
				continue
			}
			_, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
				return publisher.ToolResult{}, session.Failure{Type: interrupted, Message: "its process died before the outcome was known: it is safe to repeat"}
			})
			switch {
			case errors.Is(err, publisher.ErrHeld):
				held = errors.Join(held, err)
			case err != nil && !errors.Is(err, publisher.ErrToolFailed) && !errors.Is(err, publisher.ErrAbandoned):
				return err
			}
		}
	}
	return held
}

// maxNews bounds the arguments and the outcome of a call in the news.
const maxNews = 1000

// news tells the model the outcomes that its transcript lacks: of calls that an earlier process left open, and of
// returned calls, because a killed agent has not written its last lines. Only the transcript decides: an agent may be
// killed again before it writes the news. The news is empty if nothing is missing. The state has its large fields loaded.
func (d *Dialect) news(state *schema.State, transcript []byte) string {
	cut := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxNews)], "") }
	var lines []string
	for i := range state.Calls {
		c := &state.Calls[i]
		left := len(c.Settlements) > 0 || c.Error != nil && c.Error.Type == interrupted // the agent's own result is not the outcome
		mark := fmt.Sprintf("(call %s): ", c.ToolCallID)
		known := !left && (len(c.Source) > 0 || bytes.Contains(transcript, fmt.Appendf(nil, d.result, c.ToolCallID)))
		if known || bytes.Contains(transcript, []byte(mark)) {
			continue
		}
		text, _ := outcome(c)
		lines = append(lines, "- "+c.Name+" "+cut(string(c.Arguments))+" "+mark+cut(text))
	}
	if len(lines) == 0 {
		return ""
	}
	return "Waymark: an earlier process of this session ended in the middle of its work. What became of its last tool calls:\n" + strings.Join(lines, "\n")
}

// outcome is what the model is told of a closed call.
func outcome(c *schema.Call) (text string, isError bool) {
	by := ""
	if n := len(c.Settlements); n > 0 {
		switch c.Settlements[n-1] {
		case schema.SettledDecided, schema.SettledVerified:
			by = "A person says what its outcome was: "
		case schema.SettledAdopted:
			by = "It did finish: "
		case schema.SettledAbandoned:
			return "A person decided to go on without its result. It may or may not have had its effect.", true
		case schema.SettledRerun: // the failure says the rest
		}
	}
	switch {
	case c.Error != nil:
		return by + c.Error.Message, true
	case c.Outcome == "" || c.Outcome == schema.OutcomeOpen:
		return "Its outcome is not known.", true
	}
	return by + shown([]byte(c.Result)), c.IsError != nil && *c.IsError
}
