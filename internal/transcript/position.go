package transcript

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// cursor walks a state in the order of the plan.
type cursor struct {
	s           *schema.State
	messages    int
	calls       int
	compactions int
	turns       int
}

// position returns how many steps of the plan the state holds: the first ones, all of them, and nothing else.
// It is what makes a crash at any point harmless: the rest of the plan is what is left to do.
func position(s *schema.State, run *Run, steps []step) (int, error) {
	if s.Head.Status.Terminal() {
		return len(steps), ErrAlreadyThere
	}
	c := &cursor{s: s}
	done := 0
	for ; done < len(steps); done++ {
		there, err := c.holds(&steps[done])
		if err != nil {
			return done, fmt.Errorf("%w: step %d (%s): %w", ErrDiverged, done+1, steps[done].data.EventName(), err)
		}
		if !there {
			break
		}
	}
	if done == 0 {
		return 0, fmt.Errorf("%w: it was not started from a transcript", ErrDiverged)
	}
	if agent := s.Head.Agent; agent != run.Agent {
		return done, fmt.Errorf("%w: it is agent %s's, the transcript is %s's", ErrDiverged, agent, run.Agent)
	}
	if len(s.Messages) != c.messages || len(s.Calls) != c.calls || len(s.Turns) != c.turns || len(s.Compactions) != c.compactions {
		return done, fmt.Errorf("%w: after %d steps it has %d messages, %d calls, %d turns; the transcript has %d, %d, %d", ErrDiverged, done,
			len(s.Messages), len(s.Calls), len(s.Turns), c.messages, c.calls, c.turns)
	}
	return done, nil
}

// holds reports whether the state has what the step publishes, and moves on if it has.
func (c *cursor) holds(st *step) (bool, error) {
	switch d := st.data.(type) {
	case *schema.RunStartedData:
		return c.s.Started != nil, nil
	case *schema.MessageAddedData:
		return c.message(st.turn, d.Message)
	case *schema.TurnStartedData:
		if c.turns >= len(c.s.Turns) {
			return false, nil
		}
		if got := c.s.Turns[c.turns].Turn; got != d.Turn {
			return false, fmt.Errorf("turn %d stands where turn %d belongs", got, d.Turn)
		}
		c.turns++
		return c.messagesOf(d.Turn, d.Messages)
	case *schema.ToolCalledData:
		return c.called(st.call)
	case *schema.ToolReturnedData:
		call := c.s.Call(st.call.Key)
		return call != nil && call.Outcome != schema.OutcomeOpen, nil
	case *schema.TurnEndedData:
		if c.s.Turns[c.turns-1].Ended == nil {
			return false, nil
		}
		return c.messagesOf(d.Turn, d.Messages)
	case *schema.ContextCompactedData:
		if c.compactions >= len(c.s.Compactions) {
			return false, nil
		}
		c.compactions++
		return true, nil
	case *schema.RunEndedData:
		return c.s.Ended != nil, nil
	default:
		return false, nil
	}
}

// messagesOf checks the messages of one event: all of them are there, or it is another run.
func (c *cursor) messagesOf(turn int32, messages []schema.Message) (bool, error) {
	for i := range messages {
		there, err := c.message(turn, messages[i])
		if err != nil {
			return false, err
		}
		if !there {
			return false, fmt.Errorf("message %d of turn %d is missing", c.messages, turn)
		}
	}
	return true, nil
}

func (c *cursor) message(turn int32, want schema.Message) (bool, error) {
	if c.messages >= len(c.s.Messages) {
		return false, nil
	}
	got := &c.s.Messages[c.messages]
	if got.Turn != turn {
		// The state has the turn's end or the next turn instead.
		return false, fmt.Errorf("message %d is of turn %d, not %d", c.messages, got.Turn, turn)
	}
	if len(got.Refs) == 0 && !sameMessage(&got.Message, &want) || got.Role != want.Role || len(got.Parts) != len(want.Parts) {
		return false, fmt.Errorf("message %d of turn %d is another one", c.messages, turn)
	}
	c.messages++
	return true, nil
}

func (c *cursor) called(want *Call) (bool, error) {
	if c.calls >= len(c.s.Calls) {
		return false, nil
	}
	got := &c.s.Calls[c.calls]
	if got.CallKey != want.Key || got.Name != want.Name || len(got.Refs) == 0 && !schema.SameJSON(got.Arguments, want.Arguments) {
		return false, fmt.Errorf("call %d is %s(%s) in turn %d, not %s(%s)", c.calls, got.Name, got.ToolCallID, got.Turn, want.Name, want.Key.ToolCallID)
	}
	c.calls++
	return true, nil
}

func sameMessage(a, b *schema.Message) bool {
	x, err := json.Marshal(a, json.Deterministic(true))
	y, err2 := json.Marshal(b, json.Deterministic(true))
	return err == nil && err2 == nil && schema.SameJSON(x, y)
}
