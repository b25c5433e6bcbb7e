package publisher

import (
	"context"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/waymarkio/waymark/schema"
)

// handover is what a model says with a hand-off tool.
type handover struct {
	Agent     string   `json:"agent" jsonschema:"the agent that continues the work"`
	Remaining []string `json:"remaining" jsonschema:"what is left to do, one piece each"`
	Decisions []string `json:"decisions,omitempty" jsonschema:"decisions that remain valid"`
	Issues    []string `json:"issues,omitempty" jsonschema:"open questions and known problems"`
}

// HandoffTool makes a tool with which the model of a [Loop] hands its run over to one of the agents. Once the calls of
// the answer have their outcomes, the loop starts a child run of that agent with the same task, leaves it to the
// executors of the agent, and ends its own run, as [Run.Continue] does. The child has the run's labels and limits. A
// message that follows the answer is answered first, also one that comes when the child was started; the run then ends
// without another call.
func HandoffTool(name, description string, agents ...string) Tool {
	t := NewTool(name, description, Pure, func(_ context.Context, to handover) (string, error) {
		return "The work goes to " + to.Agent + ". If a message follows, answer it; then call " + name + " again.", nil
	})
	t.handsOver = true
	if len(agents) == 0 {
		t.err = errors.New("a hand-off tool without agents: name those that may continue the work")
	}
	if t.err != nil {
		return t
	}
	made := new(jsonschema.Schema)
	if t.err = made.UnmarshalJSON(t.Parameters); t.err != nil {
		return t
	}
	for _, agent := range agents {
		made.Properties["agent"].Enum = append(made.Properties["agent"].Enum, agent)
	}
	t.Parameters, t.err = made.MarshalJSON()
	return t
}

// handOver does what a returned call of a hand-off tool asks for, or what is left to do of a hand-off that was accepted.
// It reports whether the work is given away. Each step is durable before the next: an executor that finds the call
// returned does the rest. noSignals: with open signals, the run does not end; the model is told of them first.
func (l *looping) handOver(ctx context.Context, calls []ToolCall, results []called, noSignals bool) (over bool, err error) {
	run := l.run
	offer, accepted := run.accepted("")
	var call *ToolCall
	for i := range calls {
		if t := l.tools[calls[i].Name]; call == nil && t != nil && t.handsOver && results[i].err == nil {
			call = &calls[i]
		}
	}
	if !accepted && call == nil {
		return false, nil
	}
	if !accepted {
		if offer, err = l.offerBy(ctx, call); err != nil {
			return false, err
		}
	}
	started, err := run.started(ctx)
	if err != nil {
		return false, err
	}
	var unless signalGuard
	if noSignals {
		unless = unlessOpen
	}
	child, err := run.giveAway(ctx, offer, RunSpec{Task: started.Task, Labels: started.Labels}, unless)
	if child != nil {
		left := fmt.Errorf("run %s: %w: it is left to the executors of agent %s", child.id, ErrStopped, offer.Data.NextAgent)
		if failed := child.publishLast(ctx, left, draft{data: &schema.RunInterruptedData{Reason: schema.InterruptedPreempted}}); failed != nil {
			child.ledger.release(left) // the heartbeats do not name it: it is orphaned
		}
	}
	if errors.Is(err, ErrSignalled) || run.Head().Status.Terminal() && (errors.Is(err, ErrHandoffTaken) || errors.Is(err, ErrRunEnded)) {
		err = nil // a signal arrived at this moment, or another executor started the child
	}
	return true, err
}

// offerBy offers the run's work as the call says.
func (l *looping) offerBy(ctx context.Context, call *ToolCall) (Offer, error) {
	var to handover
	if err := jsonv2.Unmarshal(plainArguments(call.Arguments), &to); err != nil {
		return Offer{}, fmt.Errorf("hand-off of run %s by call %s: %w", l.run.id, call.ID, err)
	}
	data := schema.HandoffOfferedData{
		Reason: "task_complete", NextAgent: to.Agent, Context: &schema.HandoffContext{Decisions: to.Decisions, Issues: to.Issues},
	}
	if to.Agent != l.run.Head().Agent {
		data.Kind = schema.HandoffTransfer
	}
	for _, left := range to.Remaining {
		data.Remaining = append(data.Remaining, schema.HandoffRemaining{Description: left})
	}
	return l.run.Handoff(data).Offer(ctx)
}
