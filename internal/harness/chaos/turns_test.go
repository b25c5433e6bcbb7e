//go:build waymark_failpoints

package chaos_test

import (
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// afterTheTurn makes an executor write events that its turns no longer accept: a second end and a call after the end,
// and a second answer.
func afterTheTurn(seed uint64) *plan {
	p := &plan{seed: seed, executors: 1, runs: 1, batch: 64, seal: 8}
	for _, a := range []act{
		{what: "start"},
		{what: "step", choice: 2}, // begins a turn
		{what: "end-turn"},
		{what: "end-turn"},
		{what: "call-again"},
		{what: "step", choice: 1}, // answers the next one
		{what: "answer-again"},
	} {
		a.run, a.times = "run-1", 1
		p.steps = append(p.steps, step{kind: burst, acts: []act{a}})
	}
	return p
}

// turnEvent is an event of the run's latest turn, whether the turn takes it or not.
func turnEvent(what string, h *schema.Head, token string) (schema.Data, int32) {
	message := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(token)}}
	switch what {
	case "end-turn":
		return &schema.TurnEndedData{Turn: h.Turn, Messages: []schema.Message{message}}, h.Turn
	case "call-again":
		return &schema.ToolCalledData{ToolCallID: "again", Name: "read", Arguments: []byte(`{"token":"` + token + `"}`), Replay: schema.ReplayPure}, h.Turn
	case "answer-again":
		return &schema.TurnAnsweredData{
			Turn: h.Turn, Message: message, Calls: []schema.RequestedCall{{ToolCallID: "again", Name: "read", Replay: schema.ReplayPure}},
		}, h.Turn
	}
	panic(fmt.Sprintf("%q is no event of a turn", what))
}
