package publisher

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// callStage is what this handle did with an open call.
type callStage int

const (
	// ready: recorded in this epoch, and not begun.
	ready callStage = iota + 1
	// running: begun by this handle.
	running
)

// callBook knows which open calls this handle may run without doubt: it keeps what this handle did with each of them,
// in addition to the log. Folded events and the calls of Turn.Tool update it. It depends on neither log nor fold.
type callBook struct {
	mu    sync.Mutex
	stage map[schema.CallKey]callStage
	// asked are the calls that this handle closed.
	asked map[schema.CallKey]bool
	// reserved are the occurrences that a Tool call is working on.
	reserved map[schema.CallKey]bool
	// tries counts how often this handle began a call.
	tries map[schema.CallKey]int
	// outcomes of tools that ran, until they are durable and Tool has returned them.
	outcomes map[schema.CallKey]*outcome
	// questions are the approval questions about calls.
	questions map[schema.CallKey]*schema.RunWaitingData
	// old are the calls that were open at the takeover: the previous executor may be about to begin them.
	old map[schema.CallKey]bool
	// taken is when this handle learned that it took the run over.
	taken time.Time
}

func newCallBook() *callBook {
	return &callBook{
		stage: make(map[schema.CallKey]callStage), asked: make(map[schema.CallKey]bool),
		reserved: make(map[schema.CallKey]bool), tries: make(map[schema.CallKey]int),
		outcomes:  make(map[schema.CallKey]*outcome),
		questions: make(map[schema.CallKey]*schema.RunWaitingData),
		old:       make(map[schema.CallKey]bool),
	}
}

// note applies an event that the fold accepted. foreign: another process wrote it.
func (b *callBook) note(v schema.Verdict, foreign bool) {
	if v.Kind != schema.Applied {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
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
			b.outcomes[v.Call] = o // its caller may have received only an error, and may repeat this call
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
			// After this event the tool may run again in any case, or the log refuses the previous epochs.
			delete(b.old, v.Call)
		}
	case *schema.TurnStartedData:
		b.forget(d.Turn)
	}
}

// takeOver notes the calls that were open when the run was taken over.
func (b *callBook) takeOver(state *schema.State) {
	head := &state.Head
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = time.Now()
	if head.TurnOpen {
		for i := range state.Calls {
			// The start of the turn abandoned it, not a person: the model may use the id again.
			if c := &state.Calls[i]; c.Turn == head.Turn && c.Outcome == schema.OutcomeAbandoned && len(c.Settlements) == 0 {
				b.asked[c.CallKey] = true
			}
		}
	}
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		b.old[c.CallKey] = true
		if c.Requested {
			if call := state.Call(c.CallKey); call != nil && len(call.Settlements) == 0 {
				delete(b.old, c.CallKey) // never begun
			}
		}
	}
}

// left returns how long the previous executor may still begin the call, given that it may for outwait after the
// takeover.
func (b *callBook) left(key schema.CallKey, outwait time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.old[key] {
		return 0
	}
	return time.Until(b.taken.Add(outwait))
}

// forget drops entries that only matter in turns before turn.
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

// reserve returns the key of the requested call. Without an occurrence it picks the first one of the id that this
// handle has neither closed nor reserved.
func (b *callBook) reserve(turn int32, id string, occurrence int) (schema.CallKey, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
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

// release ends the reservation of a call. ended: the caller has its outcome. An outcome that was not returned is kept
// for the next request.
func (b *callBook) release(key schema.CallKey, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reserved, key)
	if ended && b.outcomes[key] == nil {
		b.asked[key] = true
	}
}

// allow notes that this handle may run the call.
func (b *callBook) allow(key schema.CallKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stage[key] != running {
		b.stage[key] = ready
	}
}

// begin marks a call as run by this handle and returns the number of the attempt.
func (b *callBook) begin(key schema.CallKey, earlier int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stage[key] = running
	b.tries[key]++
	return earlier + b.tries[key]
}

// ran keeps the outcome of a tool until it is durable and returned.
func (b *callBook) ran(key schema.CallKey, o *outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[key] = o
}

// returned drops the outcome of a call: the caller has it.
func (b *callBook) returned(key schema.CallKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.outcomes, key)
}

// begun reports whether this handle began a call and did not learn its outcome.
func (b *callBook) begun(key schema.CallKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stage[key] == running && b.outcomes[key] == nil
}

// question returns the approval question about a call, or nil. A handle keeps the same question, so that a repeated
// call repeats the same event.
func (b *callBook) question(key schema.CallKey) *schema.RunWaitingData {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.questions[key]
}

// ask keeps the question about a call unless there is one already, and returns the one that is kept.
func (b *callBook) ask(key schema.CallKey, question *schema.RunWaitingData) *schema.RunWaitingData {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.questions[key] == nil {
		b.questions[key] = question
	}
	return b.questions[key]
}

// callView is the state of a call as this handle knows it.
type callView struct {
	// known: the call was recorded.
	known bool
	// call is its record; nil if its event is missing.
	call *schema.Call
	// decision is the latest one about the call; nil if there is none.
	decision *schema.StateDecision
	// approving: an approval question is open.
	approving bool
	// open is its entry among the open calls; nil if it is closed.
	open  *schema.OpenCall
	stage callStage
	// stricter is the caller's call, if its policy is stricter than the recorded one.
	stricter *ToolCall
	// arguments for the tool.
	arguments []byte
	// outcome of a tool that ran, if Tool has not returned it yet.
	outcome *outcome
}

// view looks up a call.
func (b *callBook) view(state *schema.State, key schema.CallKey) callView {
	head := &state.Head
	b.mu.Lock()
	v := callView{stage: b.stage[key], outcome: b.outcomes[key]}
	b.mu.Unlock()
	if c := openCall(head, key); c != nil {
		open := *c
		v.known, v.open = true, &open
		if v.stage == 0 && open.Requested && (!open.Replay.Rerunnable() || open.Epoch < head.Epoch) {
			v.stage = ready // not begun in this epoch: only this executor may begin it
		}
	}
	v.approving = slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolApproval && o.CallKey() == key
	})
	if c := state.Call(key); c != nil {
		call := *c
		v.known, v.call = true, &call
	}
	for i := range slices.Backward(state.Decisions) {
		if d := state.Decisions[i]; d.CallKey() == key && d.Policy != schema.BeginPolicy {
			v.decision = &d
			break
		}
	}
	if v.open != nil && v.open.Decision == "" && v.decision != nil && v.decision.Decision != schema.DecisionAllow && v.decision.Binds() {
		v.decision = nil // a person's rerun revoked it
	}
	return v
}
