package publisher

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// callStage is what the handle itself did with an open call.
type callStage int

const (
	// ready: recorded in this epoch, and not begun.
	ready callStage = iota + 1
	// running: begun by this handle.
	running
)

// callBook knows which calls this handle may run without a doubt. Under Run.mu.
type callBook struct {
	stage map[schema.CallKey]callStage
	// asked are the calls that this handle brought to an end.
	asked map[schema.CallKey]bool
	// reserved are the occurrences that a Tool call is busy with.
	reserved map[schema.CallKey]bool
	// tries counts how often this handle began a call.
	tries map[schema.CallKey]int
	// outcomes are those of tools that ran, until they are durable and Tool has returned them.
	outcomes map[schema.CallKey]*outcome
	// questions are what people are asked about calls.
	questions map[schema.CallKey]*schema.RunWaitingData
	// old are the calls that were open when the run was taken over: the executor before may be about to begin them.
	old map[schema.CallKey]bool
}

func (b *callBook) reset() {
	*b = callBook{
		stage: make(map[schema.CallKey]callStage), asked: make(map[schema.CallKey]bool),
		reserved: make(map[schema.CallKey]bool), tries: make(map[schema.CallKey]int),
		outcomes:  make(map[schema.CallKey]*outcome),
		questions: make(map[schema.CallKey]*schema.RunWaitingData),
		old:       make(map[schema.CallKey]bool),
	}
}

// note follows an event that the fold accepted; foreign ones were written by others.
func (b *callBook) note(v schema.Verdict, foreign bool) {
	if v.Kind != schema.Applied {
		return
	}
	for _, key := range v.Abandoned {
		b.close(key)
		if v.Superseded {
			b.asked[key] = true // the model may use the id again
		}
	}
	switch d := v.Data.(type) {
	case *schema.TurnAnsweredData:
		if !foreign {
			for _, key := range v.Calls {
				b.stage[key] = ready
			}
		}
		b.forget(d.Turn)
	case *schema.ToolCalledData:
		if !foreign && b.stage[v.Call] != running {
			b.stage[v.Call] = ready
		}
	case *schema.ToolReturnedData, *schema.ToolFailedData:
		o := b.outcomes[v.Call]
		b.close(v.Call)
		switch {
		case foreign:
		case o != nil:
			b.outcomes[v.Call] = o // its caller may have heard of an error only, and asks for this call again
		default:
			b.asked[v.Call] = true
		}
	case *schema.ToolSettledData:
		if d.How != schema.SettledRerun {
			b.close(v.Call)
			return
		}
		if b.stage[v.Call] != running {
			b.stage[v.Call] = ready
		}
		if !foreign {
			// Its tool may run again whatever became of it, or refuses the epochs before from now on.
			delete(b.old, v.Call)
		}
	case *schema.TurnStartedData:
		b.forget(d.Turn)
	}
}

// forget drops what is only of use in turns before one.
func (b *callBook) forget(turn int32) {
	maps.DeleteFunc(b.asked, func(key schema.CallKey, _ bool) bool { return key.Turn < turn })
	maps.DeleteFunc(b.outcomes, func(key schema.CallKey, _ *outcome) bool { return key.Turn < turn && b.stage[key] != running })
}

func (b *callBook) close(key schema.CallKey) {
	delete(b.stage, key)
	delete(b.tries, key)
	delete(b.outcomes, key)
	delete(b.questions, key)
	delete(b.old, key)
}

// reserve returns the key of the call that is asked for. Without an occurrence it is the first of its id that
// this handle has not brought to an end and is not busy with.
func (b *callBook) reserve(turn int32, id string, occurrence int) (schema.CallKey, bool) {
	key := schema.CallKey{Turn: turn, ToolCallID: id, Occurrence: occurrence}
	if occurrence == 0 {
		for key.Occurrence = 1; b.asked[key] || b.reserved[key]; key.Occurrence++ {
		}
	}
	if b.reserved[key] {
		return key, false
	}
	b.reserved[key] = true
	return key, true
}

// callView is what is known about a call.
type callView struct {
	// known: the call was recorded.
	known bool
	// call is its record, nil when only the head is kept.
	call *schema.Call
	// decision is the latest about the call, nil when there is none or only the head is kept.
	decision *schema.StateDecision
	// approving: a person is asked whether it may run.
	approving bool
	// open is its entry among the open calls, nil when it is closed.
	open  *schema.OpenCall
	stage callStage
	// stricter is what the caller asks for, if its policy is stricter than the recorded one.
	stricter *ToolCall
	// arguments that the tool is given.
	arguments jsontext.Value
	// outcome of a tool that ran, if Tool has not returned it yet.
	outcome *outcome
}

// viewCall looks a call up.
func (r *Run) viewCall(key schema.CallKey) callView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := callView{stage: r.calls.stage[key], outcome: r.calls.outcomes[key]}
	if i := slices.IndexFunc(r.head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key }); i >= 0 {
		open := r.head.OpenCalls[i]
		v.known, v.open = true, &open
		if v.stage == 0 && open.Requested && (!open.Replay.Rerunnable() || open.Epoch < r.head.Epoch) {
			v.stage = ready // not begun in this epoch: only this executor may begin it
		}
	}
	v.approving = slices.ContainsFunc(r.head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolApproval && o.CallKey() == key
	})
	if r.state != nil {
		if c := r.state.Call(key); c != nil {
			call := *c
			v.known, v.call = true, &call
		}
		for i := range slices.Backward(r.state.Decisions) {
			if d := r.state.Decisions[i]; d.CallKey() == key && d.Policy != beginPolicy {
				v.decision = &d
				break
			}
		}
		if v.open != nil && v.open.Decision == "" && v.decision != nil && v.decision.Decision != schema.DecisionAllow {
			v.decision = nil // a person's rerun took it back
		}
		return v
	}
	v.known = v.known || r.head.CallsOf(key.Turn, key.ToolCallID) >= key.Occurrence
	return v
}

// begin marks a call as run by this handle and returns the number of the attempt.
func (r *Run) begin(key schema.CallKey, earlier int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.stage[key] = running
	r.calls.tries[key]++
	return earlier + r.calls.tries[key]
}
