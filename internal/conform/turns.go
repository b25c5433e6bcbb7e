package conform

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// turn is what is known of the turn that a run is in.
type turn struct {
	number int32
	// asked are the ids of calls that a message of the turn names, called those that are recorded, each with how often.
	asked, called map[string]int
	// early are the calls that were recorded before a message named them.
	early map[string]int
	// messages of the turn, by hash.
	messages map[[32]byte]bool
	// again: the turn was started anew, and what was called before cannot be told from what is asked anew.
	again bool
}

func newTurn() turn {
	return turn{asked: map[string]int{}, called: map[string]int{}, early: map[string]int{}, messages: map[[32]byte]bool{}}
}

// enter makes the turn the one that the run is in.
func (r *run) enter() {
	if r.turn.number != r.head.Turn {
		r.turn = newTurn()
		r.turn.number = r.head.Turn
	}
}

// turnEvent judges turn.started, turn.ended and message.added.
func (r *run) turnEvent(a *moment) {
	r.enter()
	var number int32
	switch d := a.data.(type) {
	case *schema.TurnStartedData:
		number = d.Turn
		if a.verdict.Superseded {
			clear(r.turn.asked)
			clear(r.turn.messages)
			clear(r.turn.early)
			r.turn.again = true
		}
		r.summed = r.summed || r.limit && d.Purpose == schema.PurposeRecovery
		r.heard(a, "/messages", d.Messages, given)
	case *schema.TurnAnsweredData:
		number = d.Turn
		r.heard(a, "/message", []schema.Message{d.Message}, said)
		for i, key := range a.verdict.Calls {
			r.policy(a, fmt.Sprintf("/calls/%d/replay", i), d.Calls[i].Replay)
			r.calls[key] = &call{}
			if len(r.turn.called) < maxTurnThings {
				r.turn.called[key.ToolCallID]++
			}
		}
		r.partsKnown(a)
	case *schema.TurnEndedData:
		number = d.Turn
		if a.verdict.Kind == schema.Applied && !a.verdict.Over {
			break // the turn ended with its answer's last outcome
		}
		if !a.turnOpen || a.turn != d.Turn {
			r.found(ruleTurnStarted, a, "/turn", fmt.Sprintf("turn.started of turn %d before", d.Turn), "turn.ended")
		}
		r.heard(a, "/messages", d.Messages, ending)
		r.turnEnded(a, d)
	case *schema.MessageAddedData:
		if a.e.Turn == 0 || a.e.Turn == r.head.Turn {
			r.heard(a, "/message", []schema.Message{d.Message}, said)
		}
	}
	if number != 0 && a.e.Turn != 0 && a.e.Turn != number {
		r.found(ruleTurnSame, a, "ce-turn", fmt.Sprint(number), fmt.Sprint(a.e.Turn))
	}
}

// how a message comes: given to the model, said in the turn, or with its end.
type how int

const (
	given how = iota
	said
	ending
)

// heard judges messages of the turn.
func (r *run) heard(a *moment, path string, messages []schema.Message, how how) {
	for i := range messages {
		m := &messages[i]
		at := path
		if strings.HasSuffix(path, "s") {
			at = fmt.Sprintf("%s/%d", path, i)
		}
		if body, err := json.Marshal(m, json.Deterministic(true)); err == nil && len(r.turn.messages) < maxTurnThings {
			sum := sha256.Sum256(body)
			if how == ending && r.turn.messages[sum] {
				r.found(ruleMessageOnce, a, at, "a message that is new", "one that was published before in the turn")
			}
			r.turn.messages[sum] = true
		}
		r.parts(a, at, m, how)
	}
}

// parts judges what a message says of calls. What the model is given may show calls that nobody made.
func (r *run) parts(a *moment, path string, m *schema.Message, how how) {
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.CallTurn != 0 && p.CallTurn != r.turn.number {
			continue
		}
		at := fmt.Sprintf("%s/parts/%d", path, i)
		recorded := r.turn.called[p.ID] > 0
		switch {
		case p.Type == schema.PartToolCall && how != given:
			if m.Role == schema.RoleAssistant && len(r.turn.asked) < maxTurnThings {
				r.turn.asked[p.ID]++
				if r.turn.called[p.ID] >= r.turn.asked[p.ID] && !r.turn.again && r.turn.early[p.ID] > 0 {
					r.turn.early[p.ID]--
					r.found(ruleAnswerFirst, a, at, "before tool.called of "+p.ID, "behind it")
				}
			}
			if len(p.Arguments) > 0 {
				r.found(ruleStoredOnce, a, at+"/arguments", "no arguments: they are in tool.called", fmt.Sprintf("%d bytes", len(p.Arguments)))
			}
		case p.Type == schema.PartToolCallResponse:
			if len(p.Response) > 0 && recorded {
				r.found(ruleStoredOnce, a, at+"/response", "no response: it is in tool.returned", fmt.Sprintf("%d bytes", len(p.Response)))
			}
		}
	}
}

// turnEnded judges a turn that is over.
func (r *run) turnEnded(a *moment, d *schema.TurnEndedData) {
	for i := range r.head.OpenCalls {
		if c := &r.head.OpenCalls[i]; c.Turn == d.Turn {
			r.found(ruleTurnClean, a, "/turn", "an outcome of call "+c.ToolCallID, "the call is open")
		}
	}
	r.partsKnown(a)
}

// partsKnown judges whether the calls that messages of the turn name are recorded.
func (r *run) partsKnown(a *moment) {
	for id := range r.turn.asked {
		if r.turn.called[id] == 0 {
			r.found(rulePartsKnown, a, "/turn", "the call "+id+", which a message of the turn names", "no record of it")
		}
	}
}
